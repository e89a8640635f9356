"""The endpoint's description of itself, for tools and for tests that make requests from it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic import BaseModel

from localspec.server.chat import ChatRequest
from localspec.server.completions import CompletionRequest
from localspec.server.messages import MessagesRequest
from localspec.server.responses import ResponsesRequest

_POSTS: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatRequest, "Answer in a conversation."),
    "/v1/completions": (CompletionRequest, "Continue a text, or fill in before a suffix."),
    "/v1/responses": (ResponsesRequest, "Answer in a conversation, by items."),
    "/v1/messages": (MessagesRequest, "Answer in a conversation, as Anthropic does."),
    "/v1/messages/count_tokens": (MessagesRequest, "Count the tokens of a conversation."),
}
_GETS = {
    "/v1/models": "The model that is loaded.",
    "/v1/models/{name}": "One model.",
    "/api/v0/models": "The model, in LM Studio's shape.",
    "/health": "Whether the server answers.",
}
_REFS = "#/components/schemas/"


def describe() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for path, (model, summary) in _POSTS.items():
        schema = model.model_json_schema(ref_template=_REFS + "{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
        body = {"schema": {"$ref": _REFS + model.__name__}}
        answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
        if path != "/v1/messages/count_tokens":
            # What a stream's schema describes, the text or each event, readers do not agree on.
            answer["text/event-stream"] = {"schema": {}}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": {"application/json": body}},
                "responses": {
                    "200": {"description": "The answer.", "content": answer},
                    **_errors(400, 401, 403, 404, 405, 413, 503),
                },
            }
        }
    for path, summary in _GETS.items():
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {
                "200": {
                    "description": "The answer.",
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
                **_errors(401, 403, 404, 405),
            },
        }
        if "{name}" in path:
            operation["parameters"] = [
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        paths[path] = {"get": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "localspec", "version": version("localspec")},
        "paths": paths,
        "components": {"schemas": schemas},
    }


_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}


def _errors(*statuses: int) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REFS + "Error"}}}
    return {str(s): {"description": "An error.", "content": content} for s in statuses}
