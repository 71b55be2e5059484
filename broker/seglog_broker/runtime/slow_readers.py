"""Replies in progress to slow peers: the files that they hold open, and cutting them off.

The space of a removed file is freed only when its last descriptor is closed. A slow reader may keep one open without
limit, unless the disk is full.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import trio

REMOVED_PATIENCE_SECONDS: Final = 10
"""How long a reader may go on with a file that has left its log when the disk is full."""


class Held(Protocol):
    """A part of a reply that holds a file open."""

    @property
    def is_removed(self) -> bool:
        """Whether its file has left its log."""
        ...


class CutError(Exception):
    """The broker cut this connection; the message says why."""


class _Transfer:
    __slots__ = ("parts", "removed_since", "scope")

    def __init__(self, parts: Sequence[Held]) -> None:
        self.parts = parts
        self.removed_since: float | None = None  # when that was first seen while the disk was full
        self.scope = trio.CancelScope()


class Transfers:
    """The replies of all connections that wait for their peers."""

    def __init__(self) -> None:
        self._under_way: set[_Transfer] = set()
        self.waiting = 0
        """Tasks that wait for a peer to read."""

    def __len__(self) -> int:
        return len(self._under_way)

    @contextmanager
    def track(self, parts: Sequence[Held]) -> Iterator[None]:
        """Allow the reply sent within this block to be cut off, which raises CutError."""
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
        """Cut replies that have read from removed files for too long since an earlier call; return how many.

        Call it repeatedly while the disk is full, and ``forgive`` when it is not full any more.
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
        """The disk has room again: forget how long readers have used removed files."""
        for transfer in self._under_way:
            transfer.removed_since = None
