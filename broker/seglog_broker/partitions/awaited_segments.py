"""Segments that are still to be fetched from the backup that the broker was started from: which comes next.

What a client has asked for comes first, in the order in which it was asked for; then the newest one of each partition
in its turn, because most readers begin near the end. The task is in ``tasks/awaiting``.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import trio

from seglog_broker.partitions.partition import Partition
from seglog_protocol.errors import SeglogError, SegmentAwaitedError

ASKED_MAX: Final = 1_000
"""Segments that requests have asked for; more come in the order of all, until some of these are there."""


AGAIN_SECONDS: Final = 10.0
"""Before a segment that the backup did not give is asked for again, others are: one of them may be damaged there."""


class Fetched(NamedTuple):
    """A segment that is fetched, or is to be."""

    partition: Partition
    base_offset: int

    @property
    def is_awaited(self) -> bool:
        """True while it is in the log, and its bytes are not there."""
        return not self.partition.is_deleted and self.base_offset in self.partition.log.segments.awaited


class AwaitedSegments:
    """Those of one broker, from their partition's coming into service until they are there or have left the log."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, None] = {}
        self.asked: dict[Fetched, None] = {}
        """Those that requests have met, the first one first."""
        self.asked_max = ASKED_MAX
        self._counted = 0, 0  # segments, and their bytes
        self._under_way: set[Fetched] = set()
        self._changed = trio.Event()
        self.failed: dict[Fetched, tuple[float, str]] = {}
        """Until when, on trio's clock, others are tried before, and why the backup did not give it."""

    def __len__(self) -> int:
        return sum([len(partition.log.segments.awaited) for partition in self._partitions])

    @property
    def partitions(self) -> list[Partition]:
        """Those that await some."""
        return list(self._partitions)

    @property
    def bytes_left(self) -> int:
        """Bytes that are still to come; added up when their number has changed, because every hello asks."""
        count = len(self)
        if count != self._counted[0]:
            self._counted = count, sum([partition.log.segments.awaited_size for partition in self._partitions])
        return self._counted[1]

    def progress(self) -> dict[str, int] | None:
        """The value of ``HelloReply.awaited``."""
        return {"segments": len(self), "bytes": self.bytes_left} if len(self) else None

    def note_served(self, partition: Partition) -> None:
        """A partition has come into service."""
        if partition.log.segments.awaited:
            self._partitions[partition] = None
            self.wake()

    def ask(self, partition: Partition, error: SeglogError) -> None:
        """Fetch what a request needed next, where ``error`` says that it is awaited."""
        if not isinstance(error, SegmentAwaitedError):
            return
        fetched = Fetched(partition, error.segment)
        if fetched.is_awaited and fetched not in self.asked and len(self.asked) < self.asked_max:
            self.asked[fetched] = None
            self.wake()

    def begin_next(self, *, asked_only: bool = False) -> Fetched | None:
        """Begin with the next segment; None if there is none now. The caller must ``end`` it."""
        for partition in [each for each in self._partitions if each.is_deleted or not each.log.segments.awaited]:
            del self._partitions[partition]
        for kept in (self.asked, self.failed):
            for fetched in [each for each in kept if not each.is_awaited]:
                del kept[fetched]
        now = trio.current_time()
        held = self._under_way | {each for each, (until, _) in self.failed.items() if until > now}
        found = next((each for each in self._in_order(asked_only=asked_only) if each not in held), None)
        if found is not None:
            self._under_way.add(found)
            if found.partition in self._partitions:  # the others come first the next time
                self._partitions[found.partition] = self._partitions.pop(found.partition)
        return found

    def _in_order(self, *, asked_only: bool) -> Iterator[Fetched]:
        yield from self.asked
        if not asked_only:
            for partition in self._partitions:
                yield from (Fetched(partition, base) for base in reversed(partition.log.segments.awaited))

    def note_failed(self, fetched: Fetched, reason: str) -> None:
        """The backup did not give it; ``reason`` is the end of a sentence."""
        self.failed.pop(fetched, None)
        self.failed[fetched] = trio.current_time() + AGAIN_SECONDS, reason

    @property
    def trouble(self) -> str | None:
        """Why the backup did not give the one that failed last; None if it gives all."""
        return next((reason for _, reason in reversed(self.failed.values())), None)

    def end(self, fetched: Fetched, *, has_arrived: bool) -> None:
        """End with a segment; one that has arrived can be read now, and its readers are woken."""
        self._under_way.discard(fetched)
        if has_arrived:
            self.asked.pop(fetched, None)
            self.failed.pop(fetched, None)
            fetched.partition.log.segments.note_arrived(fetched.base_offset)
            fetched.partition.wake_all()
        self.wake()

    @property
    def is_done(self) -> bool:
        """True if nothing is awaited, nor under way."""
        return not len(self) and not self._under_way

    async def wait(self) -> None:
        """Wait until something has changed."""
        await self._changed.wait()

    def wake(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = trio.Event()
