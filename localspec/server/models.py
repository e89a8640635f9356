"""What models there are, in OpenAI's and in LM Studio's shape: the one that is loaded."""

from __future__ import annotations

from typing import Any

from localspec.server.engine import Engine
from localspec.server.errors import ApiError


def model_list(engine: Engine) -> dict[str, Any]:
    # Codex does not start without a list called `models`, which may be empty.
    return {"object": "list", "data": [model_entry(engine)], "models": []}


def model_entry(engine: Engine) -> dict[str, Any]:
    return {
        "id": engine.name,
        "object": "model",
        "created": engine.created,
        "owned_by": "localspec",
        "context_length": engine.context_length,
        "max_model_len": engine.context_length,
        "drafters": list(engine.drafters),
    }


def lmstudio_list(engine: Engine) -> dict[str, Any]:
    return {"object": "list", "data": [lmstudio_entry(engine)]}


def lmstudio_entry(engine: Engine) -> dict[str, Any]:
    return {
        "id": engine.name,
        "object": "model",
        "type": "llm",
        "publisher": engine.name.rpartition("/")[0] or "localspec",
        "arch": "unknown",
        "compatibility_type": "mlx",
        "quantization": "unknown",
        "state": "loaded",
        "max_context_length": engine.context_length,
        "loaded_context_length": engine.context_length,
        "capabilities": ["tool_use"],
    }


def require_model(engine: Engine, name: str) -> None:
    """
    Raises:
        ApiError: 404: another name.
    """
    # A folder's name may begin with a slash, of which addresses bear no two in a row.
    if name.strip("/") != engine.name.strip("/"):
        raise ApiError(
            404,
            f"there is no model '{name[:80]}'; '{engine.name}' is loaded",
            param="model",
            code="model_not_found",
        )
