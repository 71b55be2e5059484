"""Forgets what groups committed for topics that are gone, or were made again under their name."""

from collections.abc import Sequence
from functools import partial

import structlog
import trio

from seglog_broker.coordinators.groups.committed_offsets import Key
from seglog_broker.coordinators.groups.records import encode_forgotten
from seglog_broker.coordinators.groups.service.clamping import GROUP_LINES_MAX, note_corrected
from seglog_broker.coordinators.groups.service.offsets import OFFSETS_A_WRITE, OffsetService
from seglog_broker.coordinators.groups.service.offsets_topic import OffsetsTopic
from seglog_broker.partitions.cold_reads import ColdReads

log = structlog.get_logger()


class GoneTopics:
    """The task that forgets. Look-ups leave such offsets out already before."""

    def __init__(self, offsets: OffsetService, topic: OffsetsTopic, reads: ColdReads) -> None:
        self._offsets = offsets
        self._topic = topic
        self._reads = reads
        self._wanted = trio.Event()

    def note_deleted(self) -> None:
        """A topic was deleted."""
        self._wanted.set()

    async def run(self) -> None:
        """Forget after each deletion, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.forget()

    async def forget(self) -> None:
        """Forget the offsets of every group for topics that do not exist."""
        looked_at = groups = partitions = 0
        for group in list(self._offsets.committed):
            looked_at += 1 + len(self._offsets.committed.of(group))
            if looked_at > OFFSETS_A_WRITE:
                looked_at = 0
                await self._reads.turn()
            kept = self._offsets.committed.of(group)
            gone = [key for key, committed in kept.items() if self._offsets.is_gone(key[0], committed)]
            if not gone:
                continue
            for begin in range(0, len(gone), OFFSETS_A_WRITE):
                if begin:
                    await self._reads.turn()
                self._forget(group, gone[begin : begin + OFFSETS_A_WRITE])
            groups += 1
            partitions += len(gone)
            if groups <= GROUP_LINES_MAX:
                log.info(
                    "committed_offsets_forgotten",
                    group=group,
                    topics=sorted({topic for topic, _ in gone}),
                    partitions=len(gone),
                    reason="the topic was deleted",
                )
        if groups > GROUP_LINES_MAX:
            log.info("committed_offsets_forgotten_in_all", groups=groups, partitions=partitions)

    def _forget(self, group: str, keys: Sequence[Key]) -> None:
        kept = self._offsets.committed.of(group)
        # A topic that was made again may have a commit by now.
        keys = [key for key in keys if key in kept and self._offsets.is_gone(key[0], kept[key])]
        for key in keys:
            self._offsets.committed.drop(group, key)
        forgotten = [encode_forgotten(group, key) for key in keys if not self._offsets.is_under_way(group, key)]
        self._topic.write(group, forgotten, partial(note_corrected, group))
