"""The ends of partitions, and offsets by timestamp."""

from dataclasses import dataclass
from functools import partial

from seglog_broker.api.turns import LOOKUPS_A_TURN, RESULTS_MAX, bring_in_times, lookup_cost
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.pauses import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_protocol.errors import InvalidRequestError, SeglogError, without_frames
from seglog_protocol.isolation import READ_COMMITTED, Isolation
from seglog_protocol.messages import OffsetsPartition, OffsetsReply, OffsetsRequest, OffsetsResult


@dataclass(eq=False)
class ListOffsetsService:
    """Answers requests for the start and end of partitions, and for offsets by timestamp."""

    _table: PartitionTable
    _handles: HandlePool
    _scheduler: Scheduler

    def offsets_now(self, request: OffsetsRequest) -> OffsetsReply | None:
        """As ``offsets``, if that waits for nothing and takes no longer than one turn; else None."""
        if len(request.partitions) > LOOKUPS_A_TURN:
            return None
        results: list[OffsetsResult] = []
        topic_ids: dict[str, str] = {}
        spent = 0.0
        with self._handles.only_warm:
            for item in request.partitions:
                try:
                    topic = self._table.topic(item.topic)
                    if item.partition is None:
                        return None
                    topic_ids[topic.name] = topic.id
                    partition = self._table.find_readable(item.topic, item.partition)
                    spent += lookup_cost(partition, item.timestamp)
                    if spent > budget.TURN or (
                        item.timestamp is not None and any(True for _ in bring_in_times(partition))
                    ):
                        return None
                    results.append(self._offsets_of(item, item.partition, request.isolation))
                except SeglogError as error:
                    results.append(OffsetsResult(item.topic, item.partition, error=without_frames(error)))
                except (ColdReadError, RecordsWantedError, TurnWantedError):
                    return None
        return OffsetsReply(results, topic_ids)

    async def offsets(self, request: OffsetsRequest) -> OffsetsReply:
        """The start and end of partitions, and their first offsets at or after a timestamp.

        Raises InvalidRequestError for more results than fit a reply: a request may name whole topics repeatedly.
        """
        results: list[OffsetsResult] = []
        topic_ids: dict[str, str] = {}
        turns = budget.Turns(self._scheduler.turn)
        for item in request.partitions:
            try:
                topic = self._table.topic(item.topic)
            except SeglogError as error:
                results.append(OffsetsResult(item.topic, item.partition, error=without_frames(error)))
                if len(results) % LOOKUPS_A_TURN == LOOKUPS_A_TURN - 1:
                    await self._scheduler.turn()
                continue
            topic_ids[topic.name] = topic.id
            wanted = range(topic.partitions) if item.partition is None else (item.partition,)
            if len(results) + len(wanted) > RESULTS_MAX:
                raise InvalidRequestError(
                    f"the offsets of more than {RESULTS_MAX} partitions are requested: use several requests",
                    field="partitions",
                )
            for number in wanted:
                await turns.spend(lookup_cost(self._table.find_readable(topic.name, number), item.timestamp))
                if item.timestamp is not None:
                    await self._scheduler.in_turns(bring_in_times(self._table.find_readable(item.topic, number)))
                results.append(
                    await self._scheduler.retry_after_cold_read(
                        partial(self._offsets_of, item, number, request.isolation)
                    )
                )
        return OffsetsReply(results, topic_ids)

    def _offsets_of(self, item: OffsetsPartition, number: int, isolation: Isolation | None) -> OffsetsResult:
        try:
            partition_log = self._table.readable(item.topic, number).log
            moment = None if item.timestamp is None else partition_log.find_timestamp(item.timestamp)
        except SeglogError as error:
            return OffsetsResult(item.topic, number, error=without_frames(error))
        stable = partition_log.last_stable_offset
        end = stable if isolation == READ_COMMITTED else partition_log.log_end_offset
        if moment is not None and moment.offset >= end:
            moment = None
        return OffsetsResult(
            item.topic,
            number,
            earliest=partition_log.log_start_offset,
            latest=end,
            durable=partition_log.durable_end_offset,
            leader_epoch=partition_log.leader_epoch,
            offset=None if moment is None else moment.offset,
            timestamp=None if moment is None else moment.timestamp,
            last_stable_offset=stable,
        )
