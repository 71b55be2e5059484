"""Appends: batches are checked, written in the order of the request, and acknowledged at the requested level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from seglog_broker.api.pending_appends import AppendContext, PendingAppends
from seglog_broker.api.topics import TopicService
from seglog_broker.api.turns import LOOKUPS_A_TURN
from seglog_broker.partitions.durability import wait_durable
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
from seglog_broker.storage.log.batch_checks import (
    may_be_early,
)
from seglog_protocol.errors import (
    SeglogError,
    TopicExistsError,
    without_frames,
)
from seglog_protocol.messages import (
    AppendRequest,
    CreateTopicRequest,
    FlushReply,
    FlushRequest,
    FlushResult,
)

FILES_AT_ONCE: Final = 256
"""Files that must be free for an append to be written together with others, of as many partitions."""

PLAIN_BATCHES_MAX: Final = 8
"""The most batches of a request that is written together with others."""


log = structlog.get_logger()


@dataclass(eq=False)
class AppendService:
    """Appends batches to partitions, and flushes partitions."""

    _context: AppendContext
    _topics: TopicService
    _config: LiveConfig

    def missing_topics(self, request: AppendRequest) -> list[str]:
        """Topics of an append that do not exist and that it may create; none if creation is disabled."""
        known = self._context.directory.registry.topics
        if not request.create or not self._config.current.auto_create_topics_enable:
            return []
        return [item.topic for item in request.partitions if item.topic not in known]

    async def create_missing(self, request: AppendRequest) -> dict[str, SeglogError]:
        """Create topics with the broker's defaults. Returns topic -> error for those that failed, for ``append``."""
        refused: dict[str, SeglogError] = {}
        missing = list(dict.fromkeys(self.missing_topics(request)))
        outcomes = await self._topics.create_all([CreateTopicRequest(name) for name in missing])
        for name, outcome in zip(missing, outcomes, strict=True):
            # A topic that exists by now was made for another connection.
            if isinstance(outcome, SeglogError) and not isinstance(outcome, TopicExistsError):
                log.warning("topic_not_created", topic=name[:TOPIC_NAME_MAX], reason=outcome.message)
                refused[name] = outcome
        return refused

    def is_plain(self, request: AppendRequest, payload: memoryview) -> bool:
        """Whether ``append`` writes it at once, also together with others.

        It is short, its topics exist and look at no records, none of its batches is refused for a time in the future,
        whose records would be looked at, its files need not wait for others to be closed, and its ack is sent.
        """
        if request.ack == "none" or len(request.partitions) > PLAIN_BATCHES_MAX:
            return False
        has_files = self._context.directory.handles.has_room_for(FILES_AT_ONCE)
        now = self._context.clock.now_ms()
        position = 0
        for item in request.partitions:
            partition = self._context.table.find(item.topic, item.partition)
            if partition is None or partition.looks_at_records:
                return False
            if not has_files and not partition.log.active.log.holds_writer:
                return False
            if may_be_early(payload, position, partition.log.config, now):
                return False
            position += item.size
        return True

    def append(
        self,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        refused: Mapping[str, SeglogError] | None = None,
        *,
        for_broker: bool = False,
        at_once: bool = False,
    ) -> PendingAppends:
        """Write the batches of requests with one ack, in their order, each with its own result; some at once.

        Batches for one partition that follow each other are written together. ``refused``: topic -> error, for topics
        that could not be created. ``payloads`` are changed in place. ``for_broker``: they are the broker's own, which
        writes internal topics. ``at_once``: they are plain, and none waits for files to be closed.
        """
        pending = PendingAppends(
            self._context, requests, payloads, refused or {}, for_broker=for_broker, at_once=at_once
        )
        assert pending.is_written or not at_once, "a plain append waits for nothing"
        return pending

    async def flush(self, request: FlushRequest) -> FlushReply:
        """Sync everything in these partitions, as an append at ack ``disk`` syncs earlier records."""
        results: list[FlushResult] = []
        waits: list[tuple[int, Partition, int]] = []
        for number, item in enumerate(request.partitions):
            if number % LOOKUPS_A_TURN == LOOKUPS_A_TURN - 1:
                await self._context.scheduler.turn()
            try:
                partition = self._context.table.partition(item.topic, item.partition)
            except SeglogError as error:
                results.append(FlushResult(item.topic, item.partition, error=without_frames(error)))
                continue
            partition.want_durable()  # all before the first wait, so that they share a round
            waits.append((len(results), partition, partition.log.log_end_offset))
            results.append(FlushResult(item.topic, item.partition))
        for done, (number, partition, end_offset) in enumerate(waits, start=1):
            if done % LOOKUPS_A_TURN == 0:
                await self._context.scheduler.turn()
            try:
                await wait_durable(partition, end_offset)
            except SeglogError as error:
                results[number] = FlushResult(partition.topic, partition.number, error=without_frames(error))
            else:
                durable = partition.log.durable_end_offset
                results[number] = FlushResult(partition.topic, partition.number, durable=durable)
        return FlushReply(results)
