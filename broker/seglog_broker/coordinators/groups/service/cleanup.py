"""Cleans up committed offsets, in sweeps: those beyond the end of their log, of deleted topics, and expired ones."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import trio

from seglog_broker.coordinators.coordinator_runtime import CoordinatorRuntime
from seglog_broker.coordinators.groups.committed_offsets import CommittedOffset, Key
from seglog_broker.coordinators.groups.records import encode_commit, encode_tombstone
from seglog_broker.coordinators.groups.service.machines import Group
from seglog_broker.coordinators.groups.service.offsets import OFFSETS_A_WRITE, OffsetService
from seglog_broker.coordinators.loader import RECOVERY_POLL_SECONDS
from seglog_broker.coordinators.topic import StateTopic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Scheduler, Service
from seglog_broker.runtime import budget
from seglog_broker.texts import time_text
from seglog_protocol.errors import SeglogError

GROUPS_A_TURN: Final = budget.items_of(cost=20)
"""Groups whose offsets are compared with their logs before other tasks run."""

_OFFSETS_SHOWN: Final = 5

WARNED_PART: Final = 0.1
"""Of ``offsets.retention.minutes``: when so much of it is left, a warning is logged that offsets will expire."""

log = get_logger()


class _Clamped(NamedTuple):
    key: Key
    before: int
    now: CommittedOffset


@dataclass(eq=False, repr=False)
class OffsetClamp(Service):
    """Compares each offset that is loaded with the end of its log, once, before the offset is answered.

    A power cut may have taken records that were read, and committed, before they were on the disk. Or the commit was
    beyond the log end when it came. Such an offset is set back to the log end.
    """

    _offsets: OffsetService
    _topic: StateTopic

    def __post_init__(self) -> None:
        self._to_compare: dict[str, dict[Key, CommittedOffset]] = {}
        self._more = trio.Event()
        self._lines = SweepLines(log.warning, "committed_offsets_clamped", "groups", "partitions")

    async def settle(self, loaded: Mapping[str, Mapping[Key, CommittedOffset]]) -> None:
        """Compare what was loaded, by group, before requests reach it.

        Offsets of logs that are still being recovered are ``OffsetService.unsettled`` until ``run`` has compared them,
        and those that are set back until that is durable, so that a second crash does not bring them forward again.
        """
        async for group in self._scheduler.spread(loaded, GROUPS_A_TURN):
            self._settle(group, loaded[group])
        if self._to_compare:
            self._more.set()

    async def run(self, is_loading: Callable[[], bool]) -> None:
        """Compare what is unsettled, each partition as soon as it is recovered. Ends when all is loaded and settled."""
        while is_loading() or self._to_compare:
            async for group in self._scheduler.spread(list(self._to_compare), GROUPS_A_TURN):
                self._settle(group, self._to_compare.pop(group))
            await trio.sleep(RECOVERY_POLL_SECONDS)
        self._lines.end()

    async def run_later(self) -> None:
        """Compare what is loaded and counts only since a transaction was committed, until cancelled."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            await self.run(lambda: False)

    def _settle(self, group: str, loaded: Mapping[Key, CommittedOffset]) -> None:
        clamped: list[_Clamped] = []
        later: dict[Key, CommittedOffset] = {}
        for key, stored in loaded.items():
            if self._offsets.committed.of(group).get(key) is not stored or self._offsets.is_gone(key[0], stored):
                continue  # a commit or a deletion came after it
            partition = self._table.find_readable(*key)  # a view ends where the recovery is going to leave the log
            if self._offsets.is_under_way(group, key) or (partition is None and self._recoveries.refusal(*key)):
                later[key] = stored
            elif partition is not None and stored.offset > partition.end_offset_at_start:
                end = max(partition.end_offset_at_start, partition.log.log_start_offset)
                clamped.append(_Clamped(key, stored.offset, stored._replace(offset=end, leader_epoch=-1)))
        unsettled = self._offsets.unsettled.pop(group, {})
        for key in loaded:
            unsettled.pop(key, None)
        unsettled.update(later)
        for key, _, now in clamped:
            self._offsets.committed.put(group, key, now)
            unsettled[key] = now
        if unsettled:
            self._offsets.unsettled[group] = unsettled
        if clamped:
            self._write(group, clamped)
        if later:
            self._to_compare[group] = later

    def _write(self, group: str, clamped: Sequence[_Clamped]) -> None:
        for begin in range(0, len(clamped), OFFSETS_A_WRITE):
            some = clamped[begin : begin + OFFSETS_A_WRITE]
            records = [encode_commit(group, offset.key, offset.now) for offset in some]
            self._topic.append(group, records, partial(self._end, group, some))
        self._lines.note(
            len(clamped),
            group=group,
            partitions=len(clamped),
            first=[
                {"topic": key[0], "partition": key[1], "committed": before, "log_end_offset": now.offset}
                for key, before, now in clamped[:_OFFSETS_SHOWN]
            ],
            consequence="the log lost records that the group had read, or the commit was beyond the log end; "
            "the group goes on at that end",
        )

    def _end(self, group: str, clamped: Sequence[_Clamped], error: SeglogError | None) -> None:
        """Answer the offsets from now on: they are durable, or cannot be written."""
        _note_corrected(group, error)
        unsettled = self._offsets.unsettled.get(group, {})
        for key, _, now in clamped:
            if unsettled.get(key) is now:
                del unsettled[key]
        if not unsettled:
            self._offsets.unsettled.pop(group, None)


def _note_corrected(group: str, error: SeglogError | None) -> None:
    """Log a correction that could not be written. The next start makes it again."""
    if error is not None:
        log.warning("committed_offsets_not_corrected", group=group, reason=error.message)


@dataclass(eq=False, repr=False)
class OrphanedOffsets(Service):
    """Deletes what groups committed for topics that are gone, or were made again under their name.

    Look-ups leave such offsets out already before.
    """

    _offsets: OffsetService
    _topic: StateTopic

    def __post_init__(self) -> None:
        self._lines = SweepLines(log.info, "committed_offsets_forgotten", "groups", "partitions")
        self.sweep = Sweep(lambda: self._offsets.committed, self._clean, self._scheduler, self._lines)

    async def _clean(self, group: str) -> None:
        kept = self._offsets.committed.of(group)
        gone = [key for key, committed in kept.items() if self._offsets.is_gone(key[0], committed)]
        async for some in self._scheduler.parts(gone, OFFSETS_A_WRITE):
            self._delete(group, some)
        if gone:
            topics = sorted({topic for topic, _ in gone})
            reason = "the topic was deleted"
            self._lines.note(len(gone), group=group, topics=topics, partitions=len(gone), reason=reason)

    def _delete(self, group: str, keys: Sequence[Key]) -> None:
        kept = self._offsets.committed.of(group)
        # A topic that was made again may have a commit by now.
        keys = [key for key in keys if key in kept and self._offsets.is_gone(key[0], kept[key])]
        for key in keys:
            self._offsets.committed.drop(group, key)
        tombstones = [encode_tombstone(group, key) for key in keys if not self._offsets.is_under_way(group, key)]
        self._topic.append(group, tombstones, partial(_note_corrected, group))


@dataclass(eq=False, repr=False)
class OffsetExpiry(Service):
    """Deletes committed offsets that have expired, and then groups that have nothing left. Warns before it does.

    ``offsets.retention.minutes`` and the groups' members decide what has expired (``Retention``).
    """

    _runtime: CoordinatorRuntime[Group]
    _offsets: OffsetService

    def __post_init__(self) -> None:
        self._warned: dict[str, int] = {}  # group -> the moment that the log named
        self._deletes = True
        runtime, offsets = self._runtime, self._offsets
        self._sweep = Sweep(
            lambda: {*runtime.machines, *runtime.owed, *offsets.committed}, self._clean, self._scheduler
        )

    async def run(self) -> None:
        """Sweep every ``offsets.retention.check.interval.ms``, until cancelled.

        Where the retention is so short that offsets could expire before a sweep has warned of it, sweeps in between
        only warn.
        """
        self._clock_trust.now_ms()  # a jump after this moment is noticed
        checked = trio.current_time()
        while True:
            await self._config.sleep_until(partial(self._next_sweep, checked, trio.current_time()))
            self._deletes = trio.current_time() >= checked + self._check_seconds
            if self._deletes:
                checked = trio.current_time()
            await self._sweep.sweep()

    @property
    def _check_seconds(self) -> float:
        return self._config.current.offsets_retention_check_interval_ms / 1000

    @property
    def _warned_ms(self) -> float:
        return self._config.current.offsets_retention_minutes * 60_000 * WARNED_PART

    def _next_sweep(self, checked: float, swept: float) -> float:
        """When to sweep next, after the last one that deleted and the last one, all in the loop's time."""
        return min(checked + self._check_seconds, swept + self._warned_ms / 1000 / 2)

    async def _clean(self, group: str) -> None:
        now_ms = self._clock_trust.now_ms()
        retention = self._offsets.retention(group)
        if self._deletes and await self._delete(group, now_ms):
            return
        moments = [retention.expires_ms(key[0], stored) for key, stored in self._offsets.committed.of(group).items()]
        self._warn(group, [moment for moment in moments if moment is not None and moment > now_ms], now_ms)

    def _expired(self, group: str, now_ms: int) -> list[Key]:
        """Some offsets that have expired, without those that are being committed again."""
        retention = self._offsets.retention(group)
        expired = (
            key
            for key, stored in self._offsets.committed.of(group).items()
            if (moment := retention.expires_ms(key[0], stored)) is not None
            and moment <= now_ms
            and not self._offsets.is_under_way(group, key)
            and not self._offsets.committed.is_unstable(group, key)  # a tombstone would end that, too
        )
        return list(islice(expired, OFFSETS_A_WRITE))

    async def _delete(self, group: str, now_ms: int) -> bool:
        """Delete what has expired; and the group, if it has nothing left: then True."""
        known = self._runtime.machines.get(group)
        deleted: list[Key] = []
        while expired := self._expired(group, now_ms):  # looked at for each write: a commit may have come in between
            await self._offsets.forget(group, expired)
            deleted += expired
        if deleted:
            log.info(
                "committed_offsets_expired",
                group=group,
                topics=sorted({topic for topic, _ in deleted}),
                partitions=len(deleted),
                retention_minutes=self._config.current.offsets_retention_minutes,
            )
        if (
            self._offsets.committed.of(group)
            or self._offsets.committed.pending.of(group)
            or not (known is None or (known.is_empty and known.expires))
        ):
            return False
        self._warned.pop(group, None)
        self._offsets.committed.end(group)
        is_over = group in self._runtime.owed if known is None else known.deadline_ms is None
        if is_over and self._runtime.machines.get(group) is known:
            await self._runtime.remove(group).wait()
            log.info("group_expired", group=group)
        return True

    def _warn(self, group: str, moments: list[int], now_ms: int) -> None:
        """Warn once that offsets are about to expire."""
        first = min(moments, default=None)
        if first is None or first - now_ms > self._warned_ms:
            self._warned.pop(group, None)
        elif self._warned.get(group) != first:
            self._warned[group] = first
            log.warning(
                "committed_offsets_expire_soon",
                group=group,
                partitions=len(moments),
                at=time_text(first),
                remedy="start a member of the group, commit again, or raise offsets.retention.minutes",
            )


LINES_MAX: Final = 100
"""Coordinator keys of one sweep that are logged one by one."""


class SweepLines:
    """The lines of a sweep in the log: at most LINES_MAX about single keys, then one about all of them."""

    def __init__(self, write: Callable[..., None], event: str, keys: str, items: str) -> None:
        """``write`` is a method of a logger; ``keys`` and ``items`` name the numbers in the line about all."""
        self._write = write
        self._event = event
        self._names = keys, items
        self._counts = 0, 0

    def note(self, items: int, **facts: object) -> None:
        """One key was cleaned up: ``items`` of what it had."""
        self._counts = self._counts[0] + 1, self._counts[1] + items
        if self._counts[0] <= LINES_MAX:
            self._write(self._event, **facts)

    def end(self) -> None:
        """The sweep is over."""
        if self._counts[0] > LINES_MAX:
            self._write(f"{self._event}_total", **dict(zip(self._names, self._counts, strict=True)))
        self._counts = 0, 0


@dataclass(eq=False, repr=False)
class Sweep:
    """A sweep over all coordinator keys, in turns with other tasks."""

    _keys: Callable[[], Iterable[str]]
    _clean: Callable[[str], Awaitable[None]]  # of one key; it may raise SeglogError, and the next sweep tries again
    _scheduler: Scheduler
    _lines: SweepLines | None = None

    def __post_init__(self) -> None:
        self._wanted = trio.Event()

    def want(self) -> None:
        """Wake ``run`` for another sweep."""
        self._wanted.set()

    async def run(self) -> None:
        """Sweep whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.sweep()

    async def sweep(self) -> None:
        """Sweep once."""
        for key in list(self._keys()):
            await self._scheduler.turn()
            try:
                await self._clean(key)
            except SeglogError as error:
                log.warning("coordinator_key_not_swept", key=key, reason=error.message)
        if self._lines is not None:
            self._lines.end()
