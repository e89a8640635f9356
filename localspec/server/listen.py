"""Listening on an address, and serving an app there until a signal comes."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp

from localspec.errors import LocalspecError, reason

_GRACE_S = 2
_IDLE_S = 75


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        LocalspecError: the address cannot be had, with the reason.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise LocalspecError(f"cannot listen on {host}, port {port}: {reason(error)}") from error
    try:
        # Else a server that was just stopped would hold the port for a while.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise LocalspecError(
            f"cannot listen on {host}, port {port}: {reason(error)}; choose another with --port"
        ) from error
    return listening


def url_of(listening: socket.socket) -> str:
    """Where clients on this computer reach a listening socket."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: ASGIApp, *, log_requests: bool = False) -> uvicorn.Server:
    """A server for the app; run it with a socket from `bind`."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="info" if log_requests else "warning",
            access_log=log_requests,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=_IDLE_S,
            # Streams that are under way when the server is told to end.
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
