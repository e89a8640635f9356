"""Settings to paste into editors and other clients of the endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from localspec.errors import UsageError

_ANSWER_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the settings speak of.

    Attributes:
        model: the model's name.
        url: of the server, without `/v1`.
        key: what to put where a key is wanted; some clients refuse an empty one.
        context: tokens of the model's context.
    """

    model: str
    url: str
    key: str
    context: int

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]


def settings(editor: str, endpoint: Endpoint) -> str:
    """
    Raises:
        UsageError: not an editor that is known here.
    """
    make = EDITORS.get(editor.lower())
    if make is None:
        raise UsageError(f"--editor knows {', '.join(EDITORS)}, not '{editor}'")
    return make(endpoint)


def _zed(to: Endpoint) -> str:
    model = {
        "name": to.model,
        "display_name": f"{to.model} (localspec)",
        "max_tokens": to.context,
        "max_output_tokens": min(_ANSWER_TOKENS, to.context // 2),
        "capabilities": {
            "tools": True,
            "images": False,
            "parallel_tool_calls": True,
            "prompt_cache_key": False,
        },
    }
    provider = {"api_url": f"{to.url}/v1", "available_models": [model]}
    chosen = {"default_model": {"provider": "localspec", "model": to.model}}
    value = {"language_models": {"openai_compatible": {"localspec": provider}}, "agent": chosen}
    return (
        "Add to Zed's settings.json (command 'zed: open settings file'):\n\n"
        + _json(value)
        + f"\n\nStart Zed with LOCALSPEC_API_KEY={to.key} set, or give the key '{to.key}' in its "
        "settings of LLM providers."
    )


def _continue(to: Endpoint) -> str:
    return f"""Add to ~/.continue/config.yaml:

name: localspec
version: 0.0.1
schema: v1
models:
  - name: {to.model} (localspec)
    provider: openai
    model: {json.dumps(to.model)}
    apiBase: {to.url}/v1
    apiKey: {json.dumps(to.key)}
    roles: [chat, edit, apply, autocomplete]
    defaultCompletionOptions:
      contextLength: {to.context}"""


def _xcode(to: Endpoint) -> str:
    return (
        "In Xcode's settings choose Intelligence, then Add a Model Provider, then Locally Hosted.\n\n"
        f"Port: {to.port}\nDescription: localspec"
    )


def _cline(to: Endpoint) -> str:
    return (
        "In Cline's (or Roo Code's) settings:\n\n"
        f"API Provider: OpenAI Compatible\nBase URL: {to.url}/v1\nAPI Key: {to.key}\n"
        f"Model ID: {to.model}\nContext Window Size: {to.context}"
    )


def _aider(to: Endpoint) -> str:
    return (
        f"export OPENAI_API_BASE={to.url}/v1\nexport OPENAI_API_KEY={to.key}\n"
        f"aider --model openai/{to.model}"
    )


def _codex(to: Endpoint) -> str:
    return f"""Add to ~/.codex/config.toml, and start Codex with LOCALSPEC_API_KEY={to.key} set:

model = {json.dumps(to.model)}
model_provider = "localspec"
model_context_window = {to.context}

[model_providers.localspec]
name = "localspec"
base_url = "{to.url}/v1"
wire_api = "responses"
env_key = "LOCALSPEC_API_KEY\""""


def _copilot(to: Endpoint) -> str:
    answer = min(_ANSWER_TOKENS, to.context // 2)
    model = {
        "id": to.model,
        "name": f"{to.model} (localspec)",
        "url": f"{to.url}/v1/chat/completions",
        "toolCalling": True,
        "vision": False,
        "maxInputTokens": to.context - answer,
        "maxOutputTokens": answer,
    }
    provider = {
        "name": "localspec",
        "vendor": "customendpoint",
        "apiKey": to.key,
        "apiType": "chat-completions",
        "models": [model],
    }
    return (
        "In VS Code run 'Chat: Manage Language Models', then Add Models, then Custom Endpoint, and put "
        "into chatLanguageModels.json:\n\n" + _json([provider])
    )


def _jetbrains(to: Endpoint) -> str:
    return (
        "In Settings, Tools, AI Assistant, Providers & API keys (or Models) add an OpenAI-compatible "
        f"provider:\n\nURL: {to.url}/v1\nAPI key: {to.key}\nTool calling: on"
    )


def _open_webui(to: Endpoint) -> str:
    return (
        "In Admin Settings, Connections, add an OpenAI API connection:\n\n"
        f"URL: {to.url}/v1\nKey: {to.key}\n\n"
        "From a container the server is not at 127.0.0.1: start it with --host 0.0.0.0, --api-key and\n"
        f"--allow-host host.docker.internal, and use http://host.docker.internal:{to.port}/v1."
    )


def _llm(to: Endpoint) -> str:
    return f"""Add to extra-openai-models.yaml in the folder that `dirname "$(llm logs path)"` prints:

- model_id: localspec
  model_name: {json.dumps(to.model)}
  api_base: {to.url}/v1
  api_key: {json.dumps(to.key)}
  supports_tools: true
  supports_schema: true"""


def _claude_code(to: Endpoint) -> str:
    return (
        f"export ANTHROPIC_BASE_URL={to.url}\nexport ANTHROPIC_AUTH_TOKEN={to.key}\n"
        f"export ANTHROPIC_MODEL={to.model}\nexport ANTHROPIC_SMALL_FAST_MODEL={to.model}\nclaude"
    )


def _opencode(to: Endpoint) -> str:
    limit = {"context": to.context, "output": min(_ANSWER_TOKENS, to.context // 2)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "localspec",
        "options": {"baseURL": f"{to.url}/v1", "apiKey": to.key},
        "models": {to.model: {"name": to.model, "limit": limit}},
    }
    value = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"localspec": provider},
        "model": f"localspec/{to.model}",
    }
    return "Add to ~/.config/opencode/opencode.json:\n\n" + _json(value)


def _cursor(to: Endpoint) -> str:
    return (
        "Cursor's own servers make the calls, and they cannot reach this computer. It works only "
        "through a tunnel that you trust, with --api-key and --allow-host set:\n\n"
        f"OpenAI API Key: {to.key}\nOverride OpenAI Base URL: https://YOUR-TUNNEL/v1\nModel: {to.model}"
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


EDITORS: dict[str, Callable[[Endpoint], str]] = {
    "zed": _zed,
    "continue": _continue,
    "xcode": _xcode,
    "cline": _cline,
    "aider": _aider,
    "codex": _codex,
    "copilot": _copilot,
    "jetbrains": _jetbrains,
    "open-webui": _open_webui,
    "llm": _llm,
    "claude-code": _claude_code,
    "opencode": _opencode,
    "cursor": _cursor,
}
