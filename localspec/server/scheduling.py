"""Who may generate when: a bounded queue in front of a few places.

Generations that hold a place take turns round by round, so what matters is that a place comes free.
Long ones never hold all of them, and a request only enters when the memory that it may take is there.
Everything happens on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from localspec.server.errors import ApiError

_RETRY_AFTER_S = 2


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place in the queue, and then a place to generate.

    Attributes:
        holds: it may generate.
        num_ahead: requests before it in the queue.
    """

    is_short: bool
    nbytes: int
    holds: bool = False
    num_ahead: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def queueing(self) -> AsyncGenerator[int, None]:
        """How many are ahead, now and whenever that changes, until it holds a place."""
        while not self.holds:
            yield self.num_ahead
            await self.moved.wait()
            self.moved.clear()


@dataclass(slots=True)
class Scheduler:
    """Places for generations.

    Attributes:
        capacity: bytes for all of them.
        places: generations at a time.
        max_waiting: requests that may wait; a further one is turned away.
    """

    capacity: int
    places: int = 4
    max_waiting: int = 32
    reserved: int = 0
    num_short: int = 0
    num_long: int = 0
    _queue: list[Ticket] = field(default_factory=list)

    @property
    def num_running(self) -> int:
        return self.num_short + self.num_long

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def enter(self, nbytes: int, *, is_short: bool, bounded: bool = True) -> Ticket:
        """Take the next place in the queue; `leave` gives it back, whatever came of it.

        Args:
            nbytes: memory that the generation may take.
            is_short: so short that it may have the place that long ones must leave free.
            bounded: a full queue turns it away.

        Raises:
            ApiError: 503, with the time after which to try again.
        """
        if bounded and len(self._queue) >= self.max_waiting:
            raise ApiError(
                503,
                f"{self.num_running} requests are running and {len(self._queue)} are waiting; "
                "try again later",
                code="overloaded",
                headers={"Retry-After": str(_RETRY_AFTER_S)},
            )
        ticket = Ticket(is_short, min(nbytes, self.capacity), num_ahead=len(self._queue))
        self._queue.append(ticket)
        self._admit()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give up a place, or the wait for it; once more changes nothing."""
        if ticket.holds:
            ticket.holds = False
            self.reserved -= ticket.nbytes
            if ticket.is_short:
                self.num_short -= 1
            else:
                self.num_long -= 1
        elif ticket in self._queue:
            self._queue.remove(ticket)
        self._admit()

    def _admit(self) -> None:
        self._give_places()
        for num_ahead, ticket in enumerate(self._queue):
            if ticket.num_ahead != num_ahead:
                ticket.num_ahead = num_ahead
                ticket.moved.set()

    def _give_places(self) -> None:
        for ticket in list(self._queue):
            if self.num_running >= self.places:
                return
            if self.reserved + ticket.nbytes > self.capacity:
                # Nobody overtakes a request that waits for memory, or it would wait for ever.
                return
            if ticket.is_short:
                self.num_short += 1
            elif self.num_long < max(1, self.places - 1):
                self.num_long += 1
            else:
                continue
            self.reserved += ticket.nbytes
            self._queue.remove(ticket)
            ticket.holds = True
            ticket.moved.set()
