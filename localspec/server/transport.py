"""Requests in, answers out: JSON bodies, event streams, and clients that leave.

An answer is an ASGI app that works while it watches the connection, so that work ends with it, streamed
or not.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from localspec.server.errors import ApiError, bad, internal
from localspec.server.generations import Progress, Waiting
from localspec.server.scheduling import Ticket
from localspec.server.security import too_large

log = logging.getLogger("localspec.server")

KEEP_ALIVE_S = 5.0
Line = str
"""A whole event of a stream, or a comment, with its blank line."""


def event(data: Any, name: str | None = None) -> Line:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def comment(text: str) -> Line:
    return f": {text}\n\n"


def progress(update: Progress) -> Line:
    """What is told of a request that says nothing yet."""
    if isinstance(update, Waiting):
        return comment(f"waiting, {update.num_ahead} ahead")
    return comment(f"prefill {update.done}/{update.total}")


DONE: Line = "data: [DONE]\n\n"


async def read_object(request: Request, max_body: int) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        ApiError: it is no JSON object, or too large.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_body:
            raise too_large(max_body)
    try:
        value = json.loads(bytes(body), parse_constant=_no_constant)
        if not isinstance(value, dict):
            raise ValueError("it is no object")
        # Half of a surrogate pair cannot be encoded, whatever is done with it.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise bad(f"the body is not a JSON object: {reason}", None) from None
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


class Answer:
    """An answer whose work is cancelled when the client leaves."""

    def __init__(self, work: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        working = asyncio.ensure_future(self._work(scope, receive, send))
        watching = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, watching):
                if not task.done():
                    task.cancel()
            await asyncio.wait([working, watching])
        if not working.cancelled():
            working.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Queue(Protocol):
    """Where answers queue up; a full one refuses with an `ApiError`."""

    def enter(self) -> Ticket: ...
    def leave(self, ticket: Ticket) -> None: ...


def json_answer(queue: Queue, make: Callable[[Ticket], Awaitable[dict[str, Any]]]) -> Answer:
    """A whole body, once it is made."""

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        ticket = None
        try:
            ticket = queue.enter()
            response = JSONResponse(await make(ticket))
        except ApiError as error:
            response = error_response(error, scope["path"])
        except Exception:
            log.exception("a request failed")
            response = error_response(internal(), scope["path"])
        finally:
            if ticket:
                queue.leave(ticket)
        await response(scope, receive, send)

    return Answer(work)


def stream_answer(
    queue: Queue,
    make: Callable[[Ticket], AsyncGenerator[Line, None]],
    fail: Callable[[ApiError], list[Line]],
) -> Answer:
    """Events as they come; the head goes out at once, comments while there is nothing to say.

    Args:
        queue: entered before the head goes out, so that a full one is a status.
        make: the events.
        fail: what is said when something breaks after the head.
    """

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            ticket = queue.enter()
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        try:
            await send(_HEAD)
            await _say(send, comment("accepted"))
            async with aclosing(_kept_alive(make(ticket))) as lines:
                async for line in lines:
                    await _say(send, line)
        except ApiError as error:
            await _say(send, "".join(fail(error)))
        except Exception:
            log.exception("a request failed")
            await _say(send, "".join(fail(internal())))
        finally:
            queue.leave(ticket)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Answer(work)


_HEAD: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
}


async def _say(send: Send, line: Line) -> None:
    if line:
        await send({"type": "http.response.body", "body": line.encode(), "more_body": True})


async def _kept_alive(lines: AsyncGenerator[Line, None]) -> AsyncGenerator[Line, None]:
    """With a comment wherever nothing else comes for some seconds."""
    coming: asyncio.Future[Line] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(lines))
            done, _ = await asyncio.wait([coming], timeout=KEEP_ALIVE_S)
            if not done:
                yield comment("keep-alive")
                continue
            finished, coming = coming, None
            try:
                yield finished.result()
            except StopAsyncIteration:
                return
    finally:
        if coming is not None:
            coming.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await coming
        await lines.aclose()


def error_response(error: ApiError, path: str) -> JSONResponse:
    return JSONResponse(error.body(path), error.status, error.headers)
