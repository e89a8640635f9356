"""From what a request asks for, whatever its protocol, to jobs for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.errors import UsageError
from localspec.history import asked
from localspec.server.engine import Engine, Job, Sampling
from localspec.server.errors import bad, overflow
from localspec.server.fields import SamplingFields
from localspec.text.answer import AnswerFormat
from localspec.text.dialect import THINKING_SWITCH
from localspec.text.grammars import call_grammar, harmony_grammar, json_grammar
from localspec.text.messages import for_template

_RESERVED = frozenset(
    {
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)
_NO_THOUGHTS = frozenset({"none", "minimal", "off"})
_LEAST_TOP_P = 1e-6


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions that the model may call.

    Attributes:
        functions: as chat templates take them: `type`, and `function` with name, description,
            parameters and, where they must hold, strict.
        choice: `none`, `auto`, `required`, or the one name that must be called.
        parallel: more than one call is welcome.
    """

    functions: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    named: bool = False
    parallel: bool = True

    @property
    def offered(self) -> Sequence[Mapping[str, Any]]:
        return () if self.choice == "none" and not self.named else self.functions

    @property
    def are_strict(self) -> bool:
        return any(tool["function"].get("strict") for tool in self.offered)

    @property
    def forced(self) -> Sequence[Mapping[str, Any]]:
        """Of which one must be called."""
        if self.named:
            return [tool for tool in self.functions if tool["function"]["name"] == self.choice]
        return self.functions if self.choice == "required" else ()


@dataclass(frozen=True, slots=True)
class Ask:
    """One answer that is wanted.

    Attributes:
        job: for the engine.
        format: how its text is read.
        param: the request's field that holds the prompt.
        echo: what goes before the text.
    """

    job: Job
    format: AnswerFormat
    param: str
    echo: str = ""


def sampling_of(fields: SamplingFields, defaults: Sampling) -> Sampling:
    """What a request says about choosing tokens, else the model's own defaults."""

    def given(name: str) -> Any:
        value = getattr(fields, name)
        return getattr(defaults, name) if value is None else value

    return Sampling(
        temperature=given("temperature"),
        # None at all would leave no token; the least keeps the most likely one.
        top_p=max(given("top_p"), _LEAST_TOP_P),
        top_k=max(given("top_k"), 0),
        min_p=given("min_p"),
        repetition_penalty=given("repetition_penalty"),
        presence_penalty=given("presence_penalty"),
        frequency_penalty=given("frequency_penalty"),
    )


def chosen_drafter(fields: SamplingFields, engine: Engine) -> str:
    """
    Raises:
        ApiError: no drafter of that name was loaded at the start.
    """
    name = fields.drafter or "auto"
    if name not in engine.drafters:
        loaded = ", ".join(engine.drafters)
        raise bad(f"drafter: '{name[:80]}' is not loaded; choose one of {loaded}", "drafter")
    return name


def base_job(fields: SamplingFields, engine: Engine, *limits: str) -> Job:
    """A job without its prompt.

    Args:
        limits: fields that may hold the most tokens, the first that does counts; none or -1: up to the
            context length.

    Raises:
        ApiError: no token may be said, or the drafter is not loaded.
    """
    name = next((name for name in limits if getattr(fields, name) is not None), limits[0])
    limit = getattr(fields, name)
    if limit == 0:
        raise bad(f"{name} must be at least 1, not 0", name)
    return Job(
        prompt=(),
        max_tokens=None if limit == -1 else limit,
        sampling=sampling_of(fields, engine.defaults),
        seed=fields.seed,
        drafter=chosen_drafter(fields, engine),
        width=fields.width if isinstance(fields.width, int) else None,
    )


def chat_ask(
    engine: Engine,
    job: Job,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools,
    *,
    schema: Any = None,
    options: Mapping[str, Any] | None = None,
    param: str = "messages",
    schema_param: str = "response_format",
) -> Ask:
    """An answer in a conversation.

    Args:
        messages: see `for_template`.
        schema: JSON schema that the answer must obey; None: any text.
        options: more variables for the chat template.
        param: what a wrong conversation is called.

    Raises:
        ApiError: it does not fit, the template refuses it, or something cannot be enforced.
    """
    dialect = engine.dialect
    _check_tools(tools)
    offered = list(tools.offered)
    templated = for_template(messages, offered, dialect.tools)
    try:
        native = offered if dialect.tools.native else []
        prompt = engine.encode_chat(templated, native, options or {})
    except UsageError as error:
        raise bad(str(error), param) from None
    thinking = engine.opens_thoughts(prompt[-8:])
    most_calls = None if tools.parallel and not tools.named else 1
    grammar = _grammar(engine, tools, schema, most_calls, schema_param)
    format = AnswerFormat(
        think=dialect.think,
        thinking=thinking,
        tool_format=dialect.tools if offered else None,
        tools=[dict(tool) for tool in offered],
        most_calls=most_calls,
        harmony=dialect.harmony,
    )
    said = asked(messages)
    job = replace(job, prompt=prompt, thinking=thinking, grammar=grammar, asked=said)
    return fitting(engine, Ask(job, format, param))


def fitting(engine: Engine, ask: Ask) -> Ask:
    """With its limit cut to what is left of the context.

    Raises:
        ApiError: the prompt leaves no room.
    """
    num_prompt = len(ask.job.prompt)
    room = engine.context_length - num_prompt
    if room < 1:
        raise overflow(num_prompt, engine.context_length, ask.param)
    limit = min(ask.job.max_tokens or room, room)
    return replace(ask, job=replace(ask.job, max_tokens=limit))


def template_options(
    kwargs: Mapping[str, Any] | None, effort: str | None, param: str
) -> dict[str, Any]:
    """Variables for the chat template.

    Args:
        kwargs: the client's own.
        effort: how much to think; `none` and `minimal` mean not to.
    """
    options: dict[str, Any] = {}
    if effort:
        options["reasoning_effort"] = effort
        if effort in _NO_THOUGHTS:
            options[THINKING_SWITCH] = False
    for name, value in (kwargs or {}).items():
        if name in _RESERVED:
            raise bad(f"{param}.{name} is not the client's to set", f"{param}.{name}")
        options[name] = value
    return options


def _check_tools(tools: Tools) -> None:
    names = [tool["function"]["name"] for tool in tools.functions]
    if tools.named and tools.choice not in names:
        raise bad(f"tool_choice names '{tools.choice[:80]}', which is not in tools", "tool_choice")
    if tools.choice == "required" and not names:
        raise bad("tool_choice is required, but there are no tools", "tool_choice")


def _grammar(
    engine: Engine, tools: Tools, schema: Any, most_calls: int | None, schema_param: str
) -> str | None:
    dialect, mark = engine.dialect, engine.mark
    format, param = dialect.tools, "tools"
    if dialect.harmony and (tools.forced or tools.are_strict or schema is not None):
        calls = tools.forced or tools.offered
        grammar = harmony_grammar(calls, mark, answers=not tools.forced, schema=schema)
        param = "tools" if tools.forced or schema is None else schema_param
    elif tools.forced:
        grammar = call_grammar(tools.forced, format, mark, most_calls=most_calls)
    elif tools.offered and (schema is not None or tools.are_strict):
        grammar = call_grammar(
            tools.offered,
            format,
            mark,
            most_calls=most_calls,
            free_text=schema is None,
            schema=schema,
        )
        param = "tools" if schema is None else schema_param
    elif schema is not None:
        grammar, param = json_grammar(schema), schema_param
    else:
        return None
    try:
        engine.check_grammar(grammar)
    except UsageError as error:
        raise bad(f"{param}: {error}", param) from None
    return grammar


def function_tool(function: Any, param: str) -> dict[str, Any]:
    """A function as chat templates take it.

    Raises:
        ApiError: it has no name, or parameters that are no schema.
    """
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad(f"{param}.name must be a string", f"{param}.name")
    if not function["name"]:
        raise bad(f"{param}.name is empty", f"{param}.name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise bad(f"{param}.parameters must be a JSON schema", f"{param}.parameters")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": str(function.get("description") or ""),
            "parameters": parameters or {"type": "object", "properties": {}},
            **({"strict": True} if function.get("strict") else {}),
        },
    }


def schema_of(format: Any, param: str) -> Any:
    """The schema of a response format; None for text.

    Raises:
        ApiError: an unknown kind, or no schema where there must be one.
    """
    if format is None:
        return None
    if not isinstance(format, dict) or not isinstance(format.get("type"), str):
        raise bad(f"{param} must be an object with a type", param)
    kind = format["type"]
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise bad(f"{param}.type '{kind[:80]}' cannot be enforced", f"{param}.type")
    holder = format.get("json_schema", format)
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise bad(f"{param} has no JSON schema", param)
    return schema


def is_short(job: Job) -> bool:
    """Whether a job is over so soon that it may have the place that is kept for such."""
    return len(job.prompt) <= 2048 and (job.max_tokens or 2**31) <= 256
