"""Answers on their way to peers that cannot take them at once: which files they hold open, and how to cut them off.

Removing a file gives its room back only when the last descriptor of it is closed, and a slow reader may keep one for as
long as it likes. That is its right, unless the disk is full.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import trio

REMOVED_PATIENCE_SECONDS: Final = 10
"""For which a reader may go on with a file that has left its log, when its room is needed."""


class Held(Protocol):
    """A part of an answer that holds a file open."""

    @property
    def is_removed(self) -> bool:
        """Whether its file has left its log."""
        ...


class CutError(Exception):
    """The broker cut this connection on purpose; the message says why."""


class _Transfer:
    __slots__ = ("parts", "removed_since", "scope")

    def __init__(self, parts: Sequence[Held]) -> None:
        self.parts = parts
        self.removed_since: float | None = None  # when that was first seen, while the room was needed
        self.scope = trio.CancelScope()


class Transfers:
    """The answers under way on all connections; only those that wait for their peers are here."""

    def __init__(self) -> None:
        self._under_way: set[_Transfer] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    @contextmanager
    def track(self, parts: Sequence[Held]) -> Iterator[None]:
        """Let what is sent within this block be cut off, which raises CutError."""
        transfer = _Transfer(parts)
        self._under_way.add(transfer)
        try:
            with transfer.scope:
                yield
        finally:
            self._under_way.discard(transfer)
        if transfer.scope.cancelled_caught:
            raise CutError(
                f"it read from a removed file for more than {REMOVED_PATIENCE_SECONDS} s while the disk was full"
            )

    def cut_removed(self) -> int:
        """Cut those that have read from removed files for too long, as far as earlier calls have seen; how many.

        To be called again and again while room is needed, and ``forgive`` when it is not any more.
        """
        now = trio.current_time()
        cut = 0
        for transfer in self._under_way:
            if not any(part.is_removed for part in transfer.parts):
                continue
            if transfer.removed_since is None:
                transfer.removed_since = now
            elif now - transfer.removed_since >= REMOVED_PATIENCE_SECONDS:
                transfer.scope.cancel()
                cut += 1
        return cut

    def forgive(self) -> None:
        """There is room enough: no reader is in the way."""
        for transfer in self._under_way:
            transfer.removed_since = None
