"""Conversations of the responses protocol, in memory, to go on from by an id."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from localspec.server.errors import ApiError

_MOST_STORED = 256
_MOST_CHARACTERS = 64 * 2**20


@dataclass(slots=True)
class Store:
    """Conversations by the id of their last response, within bounds; the oldest go first."""

    _kept: OrderedDict[str, list[dict[str, Any]]] = field(default_factory=OrderedDict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def put(self, response_id: str, messages: list[dict[str, Any]]) -> None:
        self._kept[response_id] = messages
        self._sizes[response_id] = sum(len(str(message)) for message in messages)
        while len(self._kept) > 1 and (
            len(self._kept) > _MOST_STORED or sum(self._sizes.values()) > _MOST_CHARACTERS
        ):
            oldest, _ = self._kept.popitem(last=False)
            del self._sizes[oldest]

    def get(self, response_id: str) -> list[dict[str, Any]]:
        """
        Raises:
            ApiError: 404, when it is not known, or no more.
        """
        if response_id not in self._kept:
            raise ApiError(
                404,
                f"previous_response_id: there is no response '{response_id[:80]}'",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        self._kept.move_to_end(response_id)
        return self._kept[response_id]
