"""Who gets a place when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from localspec.server.errors import ApiError
from localspec.server.scheduling import Scheduler


class Holder:
    """Wants a place, and holds it until it is told to leave."""

    def __init__(self, scheduler: Scheduler, nbytes: int = 1, *, short: bool = False) -> None:
        self.has_place = False
        self.told: list[int] = []
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(scheduler, nbytes, short))

    async def _run(self, scheduler: Scheduler, nbytes: int, short: bool) -> None:
        ticket = scheduler.enter(nbytes, is_short=short)
        try:
            async for num_ahead in ticket.queueing():
                self.told.append(num_ahead)
            self.has_place = True
            await self._leave.wait()
        finally:
            scheduler.leave(ticket)
            scheduler.leave(ticket)
        self.has_place = False

    async def leave(self) -> None:
        self._leave.set()
        await self.task
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(scenario(), 10)

    asyncio.run(within())


def test_places_are_given_in_order() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(capacity=100)
        holders = [Holder(scheduler) for _ in range(6)]
        await settled()
        assert [holder.has_place for holder in holders] == [True] * 3 + [False] * 3
        await holders[1].leave()
        assert [holder.has_place for holder in holders] == [True, False, True, True, False, False]
        # Each was told how many were ahead, and again when there were fewer.
        assert [holder.told for holder in holders] == [[], [], [], [0], [1, 0], [2, 1]]
        for holder in (holders[0], holders[2], holders[3], holders[4], holders[5]):
            await holder.leave()
        assert (scheduler.num_running, scheduler.num_waiting, scheduler.reserved) == (0, 0, 0)

    run(scenario)


def test_one_place_is_kept_for_short_ones() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(capacity=100)
        long_ones = [Holder(scheduler) for _ in range(5)]
        short_ones = [Holder(scheduler, short=True) for _ in range(2)]
        await settled()
        assert sum(holder.has_place for holder in long_ones) == 3
        assert [holder.has_place for holder in short_ones] == [True, False]
        for holder in (*long_ones, *short_ones):
            await holder.leave()

    run(scenario)


def test_nobody_overtakes_a_request_that_waits_for_memory() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(capacity=10)
        first = Holder(scheduler, 6)
        large = Holder(scheduler, 6)
        small = Holder(scheduler, 1, short=True)
        await settled()
        assert (first.has_place, large.has_place, small.has_place) == (True, False, False)
        await first.leave()
        assert (large.has_place, small.has_place) == (True, True)
        # More than there is in all is taken for all there is.
        huge = Holder(scheduler, 1000)
        await settled()
        assert not huge.has_place
        await large.leave()
        await small.leave()
        assert huge.has_place
        await huge.leave()

    run(scenario)


def test_those_who_leave_the_queue_or_their_place_leave_nothing() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(capacity=100)
        holders = [Holder(scheduler) for _ in range(5)]
        await settled()
        for holder in (holders[4], holders[0]):
            holder.task.cancel()
        # Cancelled in the very moment in which it is given the place.
        holders[3].task.cancel()
        await settled()
        assert (scheduler.num_running, scheduler.num_waiting) == (2, 0)
        for holder in holders[1:3]:
            await holder.leave()
        assert (scheduler.num_running, scheduler.reserved) == (0, 0)

    run(scenario)


def test_a_full_queue_turns_away() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(capacity=100, max_waiting=2)
        holders = [Holder(scheduler) for _ in range(5)]
        await settled()
        with pytest.raises(ApiError) as caught:
            scheduler.enter(1, is_short=True)
        assert caught.value.status == 503
        assert "Retry-After" in caught.value.headers
        unbounded = scheduler.enter(1, is_short=False, bounded=False)
        scheduler.leave(unbounded)
        await holders[0].leave()
        scheduler.leave(scheduler.enter(1, is_short=True))
        for holder in holders[1:]:
            await holder.leave()

    run(scenario)
