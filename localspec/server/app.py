"""The endpoint as an ASGI app: routes to protocols, protocols to generations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.asks import Ask
from localspec.server.chat import ChatAnswer, ChatRequest, chat_request_ask
from localspec.server.choices import each_choice, stream_failure, streamed, whole
from localspec.server.completions import CompletionAnswer, CompletionRequest, completion_asks
from localspec.server.engine import Engine, Read
from localspec.server.errors import ApiError, internal
from localspec.server.fields import parse
from localspec.server.generations import Finish, Generations, Progress
from localspec.server.messages import MessagesAnswer, MessagesRequest, messages_ask
from localspec.server.models import (
    lmstudio_entry,
    lmstudio_list,
    model_entry,
    model_list,
    require_model,
)
from localspec.server.openapi import describe
from localspec.server.responses import (
    ResponsesAnswer,
    ResponsesRequest,
    responses_ask,
    said,
)
from localspec.server.scheduling import Scheduler, Ticket
from localspec.server.security import Access, Guard
from localspec.server.store import Store
from localspec.server.transport import (
    Answer,
    Line,
    error_response,
    event,
    json_answer,
    log,
    progress,
    read_object,
    stream_answer,
)


def create_app(engine: Engine, access: Access | None = None, *, max_waiting: int = 32) -> Starlette:
    """The app for one engine.

    Args:
        engine: what generates.
        access: who is let in.
        max_waiting: requests that may wait for a place.
    """
    access = access or Access()
    scheduler = Scheduler(engine.capacity, max_waiting=max_waiting)
    routes = _Routes(engine, Generations(engine, scheduler), access)
    app = Starlette(
        routes=routes.table(),
        middleware=[Middleware(Guard, access=access), Middleware(_Counted, routes=routes)],
        exception_handlers={
            ApiError: _on_api_error,
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )
    app.state.generations = routes.generations
    return app


class _Queue:
    """The queue as one answer sees it."""

    def __init__(self, generations: Generations, ask: Ask) -> None:
        self._generations = generations
        self._ask = ask

    def enter(self) -> Ticket:
        return self._generations.enter(self._ask)

    def leave(self, ticket: Ticket) -> None:
        self._generations.scheduler.leave(ticket)


class _Routes:
    """One method a route."""

    def __init__(self, engine: Engine, generations: Generations, access: Access) -> None:
        self.engine = engine
        self.generations = generations
        self._access = access
        self._store = Store()

    def table(self) -> list[Route]:
        return [
            *(
                route
                for prefix in ("/v1", "/api/v0")
                for route in (
                    Route(f"{prefix}/chat/completions", self.chat, methods=["POST"]),
                    Route(f"{prefix}/completions", self.completions, methods=["POST"]),
                )
            ),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/api/v0/models", self.lmstudio_models),
            Route("/api/v0/models/{name:path}", self.lmstudio_model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
        ]

    async def chat(self, request: Request) -> Any:
        asked = parse(ChatRequest, await self._object(request))
        ask = await run_in_threadpool(chat_request_ask, asked, self.engine)
        asks = each_choice([ask], asked.n or 1)
        answer = ChatAnswer(self.engine.name, ask.job.drafter, ask.job.logprobs is not None)
        return self._choices(asked, asks, answer)

    async def completions(self, request: Request) -> Any:
        asked = parse(CompletionRequest, await self._object(request))
        asks = await run_in_threadpool(completion_asks, asked, self.engine)
        asks = each_choice(asks, asked.n or 1)
        job = asks[0].job
        answer = CompletionAnswer(self.engine.name, job.drafter, job.logprobs is not None)
        return self._choices(asked, asks, answer)

    def _choices(
        self,
        asked: ChatRequest | CompletionRequest,
        asks: list[Ask],
        answer: ChatAnswer | CompletionAnswer,
    ) -> Answer:
        queue = _Queue(self.generations, asks[0])
        if not asked.stream:
            return json_answer(queue, lambda ticket: whole(self.generations, asks, answer, ticket))
        usage = bool(asked.stream_options and asked.stream_options.include_usage)
        return stream_answer(
            queue,
            lambda ticket: streamed(self.generations, asks, answer, ticket, usage=usage),
            stream_failure,
        )

    async def responses(self, request: Request) -> Any:
        asked = parse(ResponsesRequest, await self._object(request))
        ask, messages = await run_in_threadpool(responses_ask, asked, self.engine, self._store)
        answer = ResponsesAnswer(asked, self.engine.name, ask.job.drafter)
        queue = _Queue(self.generations, ask)

        async def events(ticket: Ticket) -> AsyncGenerator[dict[str, Any] | Line, None]:
            for told in answer.begin():
                yield told
            async with aclosing(self.generations.run(ask, ticket)) as updates:
                async for update in updates:
                    if isinstance(update, Progress):
                        yield progress(update)
                    elif isinstance(update, Finish):
                        answer.choice.finish = update
                    else:
                        for told in answer.take(answer.choice.take(update)):
                            yield told
            if asked.store is not False:
                # Kept before the client hears of the end, so that it can go on at once.
                self._store.put(answer.id, [*messages, *said(answer.choice)])
            for told in answer.end():
                yield told

        if not asked.stream:
            return json_answer(queue, lambda ticket: _at_the_end(events(ticket), answer.final))
        return stream_answer(
            queue,
            lambda ticket: _named(events(ticket)),
            lambda error: [event(answer.failure(error), "response.failed")],
        )

    async def messages(self, request: Request) -> Any:
        asked = parse(MessagesRequest, await self._object(request))
        ask = await run_in_threadpool(messages_ask, asked, self.engine)
        answer = MessagesAnswer(self.engine.name, ask.job.drafter)
        queue = _Queue(self.generations, ask)
        num_prompt = len(ask.job.prompt)

        async def events(ticket: Ticket) -> AsyncGenerator[dict[str, Any] | Line, None]:
            begun = False
            async with aclosing(self.generations.run(ask, ticket)) as updates:
                async for update in updates:
                    if isinstance(update, Progress):
                        if isinstance(update, Read) and not begun:
                            for told in answer.begin(num_prompt, update.done):
                                yield told
                            begun = True
                        yield progress(update)
                    elif isinstance(update, Finish):
                        answer.choice.finish = update
                    else:
                        for told in answer.take(answer.choice.take(update)):
                            yield told
            for told in answer.end():
                yield told

        if not asked.stream:
            return json_answer(queue, lambda ticket: _at_the_end(events(ticket), answer.body))
        return stream_answer(
            queue,
            lambda ticket: _named(events(ticket)),
            lambda error: [event(answer.failure(error), "error")],
        )

    async def count_tokens(self, request: Request) -> Response:
        asked = parse(MessagesRequest, await self._object(request))
        ask = await run_in_threadpool(messages_ask, asked, self.engine)
        return JSONResponse({"input_tokens": len(ask.job.prompt)})

    async def models(self, request: Request) -> Response:
        return JSONResponse(model_list(self.engine))

    async def model(self, request: Request) -> Response:
        require_model(self.engine, request.path_params["name"])
        return JSONResponse(model_entry(self.engine))

    async def lmstudio_models(self, request: Request) -> Response:
        return JSONResponse(lmstudio_list(self.engine))

    async def lmstudio_model(self, request: Request) -> Response:
        require_model(self.engine, request.path_params["name"])
        return JSONResponse(lmstudio_entry(self.engine))

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        scheduler = self.generations.scheduler
        text = self.generations.metrics.text(
            running=scheduler.num_running, waiting=scheduler.num_waiting
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(describe())

    async def _object(self, request: Request) -> dict[str, Any]:
        return await read_object(request, self._access.max_body)


async def _named(events: AsyncGenerator[dict[str, Any] | Line, None]) -> AsyncGenerator[Line, None]:
    """Events under the name of their type, in which these two protocols differ from the older."""
    async with aclosing(events) as told:
        async for each in told:
            yield each if isinstance(each, str) else event(each, each["type"])


async def _at_the_end(
    events: AsyncGenerator[dict[str, Any] | Line, None], body: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The body that stands when the last event has come."""
    async with aclosing(events) as told:
        async for _ in told:
            pass
    return body()


class _Counted:
    """Counts requests by route and status."""

    def __init__(self, app: ASGIApp, routes: _Routes) -> None:
        self._app = app
        self._requests = routes.generations.metrics.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's own path: what clients make up must not become a label.
                route = scope.get("route")
                path = route.path if isinstance(route, Route) else "other"
                self._requests[path, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counting)


def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error, request.url.path)


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        message = f"there is no route {path[:200]}"
    elif error.status_code == 405:
        message = f"{request.method} is not a method of {path[:200]}"
    else:
        message = error.detail
    made = ApiError(error.status_code, message, headers=error.headers)
    return error_response(made, path)


def _on_bug(request: Request, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return error_response(internal(), request.url.path)
