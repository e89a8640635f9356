"""Who may talk to the endpoint: host names, origins, the key, the size of a body. Pure ASGI."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.errors import ApiError

OPEN_PATHS = frozenset({"/health"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ALLOWED_METHODS = "GET, POST, OPTIONS"


@dataclass(frozen=True, slots=True)
class Access:
    """Who is let in.

    Attributes:
        host: the address that the server listens on.
        hosts: further names by which clients may call it.
        origins: web pages that may read answers; `*` is every one.
        key: what clients must send; None: nothing.
        max_body: bytes of a request.
    """

    host: str = "127.0.0.1"
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    key: str | None = None
    max_body: int = 32 * 2**20


class Guard:
    """Lets requests through to the app, or answers them itself."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._names = {*_LOOPBACK, *(name.lower() for name in access.hosts)}
        self._is_local = access.host in _LOOPBACK
        if not self._is_local:
            name = socket.gethostname().lower()
            self._names |= {access.host, name, name.partition(".")[0] + ".local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # Base addresses are often pasted with a slash too many.
        scope["path"] = "/" + "/".join(part for part in scope["path"].split("/") if part)
        origin = headers.get("origin")
        allowed = origin if origin is not None and self._may_read(origin) else None
        try:
            self._check_host(headers)
            self._check_origin(origin, allowed)
            if allowed and scope["method"] == "OPTIONS":
                await _preflight(allowed, headers)(scope, receive, send)
                return
            self._check_key(scope["path"], headers)
            self._check_size(headers)
        except ApiError as error:
            response = JSONResponse(error.body(scope["path"]), error.status, error.headers)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, _with_origin(send, allowed) if allowed else send)

    def _check_host(self, headers: Headers) -> None:
        """Else a web page whose name is pointed at this computer could talk to the server."""
        name = _host_name(headers.get("host", ""))
        if name in self._names or (not self._is_local and _is_address(name)):
            return
        raise ApiError(
            403, f"this server is not called '{name}'; allow it with --allow-host", code="bad_host"
        )

    def _may_read(self, origin: str) -> bool:
        return origin in self._access.origins or "*" in self._access.origins

    def _check_origin(self, origin: str | None, allowed: str | None) -> None:
        """A page cannot read what it may not, but it could still keep the model busy."""
        if origin is None or allowed is not None:
            return
        parts = urlsplit(origin)
        if parts.scheme in ("http", "https") and (parts.hostname or "") not in self._names:
            raise ApiError(
                403, f"pages of {origin} may not use this server; allow it with --allow-origin"
            )

    def _check_key(self, path: str, headers: Headers) -> None:
        key = self._access.key
        if key is None or path in OPEN_PATHS:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else ""
        for candidate in (given, headers.get("x-api-key", "")):
            if hmac.compare_digest(candidate.encode(), key.encode()):
                return
        raise ApiError(
            401,
            "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_size(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._access.max_body:
            raise too_large(self._access.max_body)


def too_large(max_body: int) -> ApiError:
    return ApiError(
        413, f"the request's body is larger than {max_body} bytes", headers={"Connection": "close"}
    )


def parse_origins(origins: Iterable[str]) -> frozenset[str]:
    return frozenset(origin.rstrip("/") for origin in origins)


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _preflight(origin: str, headers: Headers) -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": _ALLOWED_METHODS,
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        },
    )


def _with_origin(send: Send, origin: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers.add_vary_header("Origin")
        await send(message)

    return sending
