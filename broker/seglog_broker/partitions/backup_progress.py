"""How far the continuous backup of a broker is, for all who ask; its task tells it, see ``tasks.backups``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.cuts import CutMaker, Moment
from seglog_broker.partitions.feed import Feed
from seglog_broker.partitions.partition import Problem
from seglog_broker.runtime.fence import Fence
from seglog_protocol.messages import BackupStatus

STOP_SECONDS: Final = 5.0
"""How long a stop of the broker waits for the last cut to be published."""

TOLD_MAX: Final = 20
"""Partitions that are named because the backup does not have everything of them."""


@dataclass(frozen=True, slots=True)
class _Mark:
    number: int
    at_ms: int
    at: float
    records: int
    size: int


class BackupProgress:
    """The loss that there would be without the disk, and what holds the backup up. Made where there is a backup."""

    def __init__(self, config: BrokerConfig, feed: Feed, cuts: CutMaker) -> None:
        """From now on ``feed`` is followed."""
        self.cuts: Final = cuts
        self.place: Final = config.seglog_backup_to
        self.lag_ms: Final = config.seglog_backup_lag_ms
        self.fence: Final = Fence() if config.seglog_backup_lease_ms else None
        """Open while the broker may acknowledge; None without a lease."""
        self.reason: str | None = None
        """Why nothing is published now."""
        self.published_id: str | None = None
        """Of the newest base or point of this process."""
        self.written = 0
        """Bytes that were sent to the place, since the start."""
        self.stop_wanted = trio.Event()
        self.has_ended = trio.Event()
        """Set while no task serves the backup."""
        self.has_ended.set()
        self._feed = feed
        self._cut: _Mark | None = None  # the last that was given away
        self._published: _Mark | None = None
        self._clean_at: float | None = None  # when nothing was there to be lost, by the loop's clock
        feed.follow()

    @property
    def is_lease_lost(self) -> bool:
        """True where the broker may never acknowledge again."""
        return self.fence is not None and bool(self.fence.end_reason)

    def begin(self) -> None:
        """Another process makes the backup from now on, and gets everything first."""
        self.cuts.begin()
        self._cut = None
        self._look()  # the time of what is not published is counted from here, whoever asks first

    def note_cut(self, moment: Moment) -> None:
        """A cut is given away."""
        self._look()
        self._cut = _Mark(moment.number, moment.at_ms, moment.at, moment.records, moment.size)

    def note_published(self, number: int, point: str, written: int) -> None:
        """The place has everything of a cut, under the id ``point``; ``written`` bytes more were sent to it."""
        self.written += written
        if self._cut is None or self._cut.number != number:
            return
        self._published, self.published_id = self._cut, point
        self._clean_at = self._cut.at
        self._look()

    @property
    def lost_records(self) -> int:
        """Records that only this disk has; without a cut that was published, those since the start."""
        return self._feed.records - (0 if self._published is None else self._published.records)

    @property
    def lost_bytes(self) -> int:
        """Bytes of their batches."""
        return self._feed.size - (0 if self._published is None else self._published.size)

    def lost_seconds(self) -> float:
        """Time of which records would be lost; 0 if none would. Before anything is published, since the start."""
        now = self._look()
        return now - (now if self._clean_at is None else self._clean_at)

    def _look(self) -> float:
        """The time, which is noted if nothing would be lost at it."""
        now = trio.current_time()
        if self._clean_at is None or (self._published is not None and not self.lost_records):
            self._clean_at = now
        return now

    def status(self) -> BackupStatus:
        """The state as clients are told it."""
        return BackupStatus(
            self.place,
            lost_ms=round(self.lost_seconds() * 1000),
            lost_records=self.lost_records,
            lost_bytes=self.lost_bytes,
            lag_ms=self.lag_ms,
            published_id=self.published_id,
            published_ms=None if self._published is None else self._published.at_ms,
            written_bytes=self.written,
            appended_bytes=self._feed.size,
            reason=self.why_held_up() or next(iter(self._left_behind()), None),
        )

    def problems(self) -> Iterator[Problem]:
        """Problems of the backup."""
        if self.fence is not None and not self.fence.is_open:
            sentence = f"nothing is acknowledged, as the broker does not hold its lease: {self.fence.waits_for}"
            yield Problem("backup", sentence)
        reason, seconds = self.why_held_up(), self.lost_seconds()
        if reason is not None:
            yield Problem("backup", f"the backup to {self.place} is held up: {reason}")
        elif seconds * 1000 > self.lag_ms:
            yield Problem(
                "backup",
                f"the backup to {self.place} is {seconds:.0f} s behind, more than seglog.backup.lag.ms = "
                f"{self.lag_ms}: its place hangs or takes less than is appended, or this is the first copy",
            )
        yield from (Problem("backup", sentence) for sentence in self._left_behind()[:TOLD_MAX])

    def _left_behind(self) -> list[str]:
        """Sentences about partitions of which the place will not have everything."""
        return [sentence for partition, sentence in self.cuts.left_behind.items() if not partition.is_deleted]

    def why_held_up(self) -> str | None:
        """The reason why nothing is published now, None if there is none."""
        return self.reason or self.cuts.waits_for

    async def finish(self) -> None:
        """Have the last cut published, when nothing is appended any more; returns when it is, or is given up."""
        self.stop_wanted.set()
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await self.has_ended.wait()
