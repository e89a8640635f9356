"""Errors as clients read them: a status, and OpenAI's or Anthropic's error object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        message: one sentence for the user.
        param: the request's field that is wrong.
        code: a word that programs match.
        headers: more headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if status >= 500 and status != 503:
            # The official clients try again after any 5xx, which would fail the same way.
            self.headers["x-should-retry"] = "false"

    @property
    def type(self) -> str:
        if self.status in (401, 403):
            return "authentication_error" if self.status == 401 else "permission_error"
        if self.status == 503:
            return "overloaded_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def openai(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic(self) -> dict[str, Any]:
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def body(self, path: str) -> dict[str, Any]:
        """In the shape that the clients of a route expect."""
        return self.anthropic() if path.startswith("/v1/messages") else self.openai()


def bad(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A wrong value; the message names the parameter."""
    return ApiError(400, message, param=param, code=code)


def overflow(num_prompt: int, context_length: int, param: str) -> ApiError:
    """A prompt that does not fit, in the words that clients look for."""
    return bad(
        f"prompt is too long: this model's maximum context length is {context_length} tokens, but "
        f"the request has {num_prompt} tokens; shorten it",
        param,
        "context_length_exceeded",
    )


def internal() -> ApiError:
    """A bug; what happened is in the server's log."""
    return ApiError(
        500, "the server failed on this request; its log says why", code="internal_error"
    )
