"""Forgets committed offsets when their time is over, and groups that have nothing left; says so before, and then."""

from functools import partial
from itertools import islice
from typing import Final

import structlog
import trio

from seglog_broker.coordinators.groups.committed_offsets import Key
from seglog_broker.coordinators.groups.service.offsets import OFFSETS_A_WRITE, OffsetService
from seglog_broker.coordinators.groups.service.runner import GroupRunner
from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.cold_reads import ColdReads
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.texts import time_text
from seglog_protocol.errors import SeglogError

WARNED_PART: Final = 0.1
"""Of ``offsets.retention.minutes``: when so much of it is left, the log says that offsets are about to be forgotten."""

log = structlog.get_logger()


class OffsetExpiry:
    """The task that forgets."""

    def __init__(
        self,
        runner: GroupRunner,
        offsets: OffsetService,
        config: LiveConfig,
        clock_trust: ClockTrust,
        reads: ColdReads,
    ) -> None:
        self._runner = runner
        self._offsets = offsets
        self._config = config
        self._clock_trust = clock_trust
        self._reads = reads
        self._warned: dict[str, int] = {}  # group -> the moment that the log told

    async def run(self) -> None:
        """Check every ``offsets.retention.check.interval.ms``.

        Where the retention is so short that offsets could be forgotten before a check has warned of it, looks between
        the checks warn.
        """
        self._clock_trust.now_ms()  # a jump after this moment is noticed
        checked = trio.current_time()
        while True:
            await self._config.sleep_until(partial(self._next_look, checked, trio.current_time()))
            is_check = trio.current_time() >= checked + self._check_seconds
            if is_check:
                checked = trio.current_time()
            await self.check(forgets=is_check)

    @property
    def _check_seconds(self) -> float:
        return self._config.current.offsets_retention_check_interval_ms / 1000

    @property
    def _warned_ms(self) -> float:
        return self._config.current.offsets_retention_minutes * 60_000 * WARNED_PART

    def _next_look(self, checked: float, looked: float) -> float:
        """When to look next, after a check and a look at these moments of the loop."""
        return min(checked + self._check_seconds, looked + self._warned_ms / 1000 / 2)

    async def check(self, *, forgets: bool = True) -> None:
        """Say what is about to be forgotten, and forget what is over."""
        for group in {*self._runner.groups, *self._offsets.committed}:
            await self._reads.turn()
            try:
                await self._check_group(group, forgets=forgets)
            except SeglogError as error:
                log.warning("offsets_not_expired", group=group, reason=error.message)

    async def _check_group(self, group: str, *, forgets: bool) -> None:
        now_ms = self._clock_trust.now_ms()
        retention = self._offsets.retention(group)
        if forgets and await self._forget(group, now_ms):
            return
        moments = [retention.expires_ms(key[0], stored) for key, stored in self._offsets.committed.of(group).items()]
        self._warn(group, [moment for moment in moments if moment is not None and moment > now_ms], now_ms)

    def _over(self, group: str, now_ms: int) -> list[Key]:
        """Some offsets whose time is over, without those that are being committed again."""
        retention = self._offsets.retention(group)
        over = (
            key
            for key, stored in self._offsets.committed.of(group).items()
            if (moment := retention.expires_ms(key[0], stored)) is not None
            and moment <= now_ms
            and not self._offsets.is_under_way(group, key)
        )
        return list(islice(over, OFFSETS_A_WRITE))

    async def _forget(self, group: str, now_ms: int) -> bool:
        """Forget what is over; and the group, if it has nothing left: then True."""
        known = self._runner.groups.get(group)
        forgotten: list[Key] = []
        while over := self._over(group, now_ms):  # looked at for each write: a commit may have come in between
            await self._offsets.forget(group, over)
            forgotten += over
        if forgotten:
            log.info(
                "committed_offsets_expired",
                group=group,
                topics=sorted({topic for topic, _ in forgotten}),
                partitions=len(forgotten),
                retention_minutes=self._config.current.offsets_retention_minutes,
            )
        if self._offsets.committed.of(group) or not (known is None or known.is_empty):
            return False
        self._warned.pop(group, None)
        self._offsets.committed.end(group)
        if known is not None and self._runner.groups.get(group) is known and known.deadline_ms is None:
            await self._offsets.forget(group, (), self._runner.remove(group))
            log.info("group_expired", group=group)
        return True

    def _warn(self, group: str, moments: list[int], now_ms: int) -> None:
        """Say once that offsets are about to be forgotten."""
        if not moments:
            self._warned.pop(group, None)
            return
        first = min(moments)
        if first - now_ms > self._warned_ms:
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
