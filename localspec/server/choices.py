"""Running the choices of a chat or completion request, to a whole body or to a stream."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from localspec.server.asks import Ask
from localspec.server.chat import ChatAnswer, Choice
from localspec.server.completions import CompletionAnswer
from localspec.server.errors import ApiError
from localspec.server.generations import Finish, Generations, Part, Progress, Update
from localspec.server.scheduling import Ticket
from localspec.server.transport import DONE, Line, event, progress

Answer = ChatAnswer | CompletionAnswer


def each_choice(asks: list[Ask], n: int) -> list[Ask]:
    """`n` choices of every prompt, each with a seed of its own that follows from the request's."""
    choices = []
    for ask in asks:
        for number in range(n):
            seed = ask.job.seed
            if n > 1 and seed is None:
                seed = secrets.randbits(32)
            elif seed is not None:
                seed += number
            choices.append(replace(ask, job=replace(ask.job, seed=seed)))
    return choices


async def whole(
    generations: Generations, asks: list[Ask], answer: Answer, ticket: Ticket
) -> dict[str, Any]:
    """The body. Choices run one after the other, so that the later find the prompt in the cache.

    Args:
        ticket: the first choice's.
    """
    choices = []
    for index, ask in enumerate(asks):
        choice = Choice(index)
        async with aclosing(generations.run(ask, None if index else ticket)) as updates:
            async for update in updates:
                _take(choice, update)
        choices.append(choice)
    return answer.body(choices)


async def streamed(
    generations: Generations, asks: list[Ask], answer: Answer, ticket: Ticket, *, usage: bool
) -> AsyncGenerator[Line, None]:
    """Chunks, `[DONE]` last."""
    choices = []
    for index, ask in enumerate(asks):
        choice = Choice(index)
        choices.append(choice)
        if isinstance(answer, ChatAnswer):
            yield event(answer.chunk(index, {"role": "assistant", "content": ""}))
        async with aclosing(generations.run(ask, None if index else ticket)) as updates:
            async for update in updates:
                num_logprobs = len(choice.logprobs)
                deltas = _take(choice, update)
                if isinstance(update, Progress):
                    yield progress(update)
                fresh = choice.logprobs[num_logprobs:]
                if fresh and not deltas:
                    deltas = [{"content": ""}]
                for delta in deltas:
                    yield event(answer.chunk(index, delta, logprobs=fresh))
                    fresh = []
                if isinstance(update, Finish):
                    yield event(answer.chunk(index, {}, reason=update.reason))
    if usage:
        yield event(answer.usage_chunk(choices))
    yield DONE


def _take(choice: Choice, update: Update) -> list[dict[str, Any]]:
    if isinstance(update, Finish):
        choice.finish = update
        return []
    return choice.take(update) if isinstance(update, Part) else []


def stream_failure(error: ApiError) -> list[Line]:
    """An error after the first byte: clients would take a silent end for a short answer."""
    return [event(error.openai()), DONE]
