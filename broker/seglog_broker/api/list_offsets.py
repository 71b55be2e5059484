"""The ends of partitions, and offsets by timestamp."""

from dataclasses import dataclass

from seglog_broker.engine.turns import LOOKUPS_A_TURN, SegmentTimes, lookup_cost
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.runtime import budget
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.pauses import ColdReadError, RecordsWantedError, TurnWantedError
from seglog_protocol.errors import SeglogError, without_frames
from seglog_protocol.isolation import READ_COMMITTED, Isolation
from seglog_protocol.messages import OffsetsPartition, OffsetsReply, OffsetsRequest, OffsetsResult


@dataclass(eq=False, repr=False)
class ListOffsetsService:
    """Answers requests for the start and end of partitions, and for offsets by timestamp."""

    table: PartitionTable
    _handles: HandlePool

    def offsets_now(self, request: OffsetsRequest) -> OffsetsReply | None:
        """The reply, if it waits for nothing and takes no longer than one turn; else None: see ``long_offsets``."""
        if len(request.partitions) > LOOKUPS_A_TURN:
            return None
        results: list[OffsetsResult] = []
        topic_ids: dict[str, str] = {}
        spent = 0.0
        with self._handles.only_warm:
            for item in request.partitions:
                try:
                    topic = self.table.topic(item.topic)
                    if item.partition is None:
                        return None
                    topic_ids[topic.name] = topic.id
                    partition = self.table.find_readable(item.topic, item.partition)
                    spent += lookup_cost(partition, item.timestamp)
                    if spent > budget.TURN:
                        return None
                    if item.timestamp is not None and partition is not None:
                        SegmentTimes(partition).load()
                    results.append(self.offsets_of(item, item.partition, request.isolation))
                except SeglogError as error:
                    results.append(OffsetsResult(item.topic, item.partition, error=without_frames(error)))
                except (ColdReadError, RecordsWantedError, TurnWantedError):
                    return None
        return OffsetsReply(results, topic_ids)

    def offsets_of(self, item: OffsetsPartition, number: int, isolation: Isolation | None) -> OffsetsResult:
        """Those of one partition, or the error as its result. Raises what makes a look-up pause."""
        partition = self.table.find_readable(item.topic, number)
        try:
            partition_log = self.table.readable(item.topic, number).log
            moment = None if item.timestamp is None else partition_log.find_timestamp(item.timestamp)
        except SeglogError as error:
            if partition is not None:
                self.table.awaited.ask(partition, error)
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
