"""Requests for offsets that take turns, or wait for the disk."""

from dataclasses import dataclass
from functools import partial

from seglog_broker.api.list_offsets import ListOffsetsService
from seglog_broker.engine.turns import LOOKUPS_A_TURN, RESULTS_MAX, SegmentTimes, lookup_cost
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget
from seglog_protocol.errors import InvalidRequestError, SeglogError, without_frames
from seglog_protocol.messages import OffsetsReply, OffsetsRequest, OffsetsResult


@dataclass(eq=False, repr=False)
class LongOffsets:
    """Answers what ``ListOffsetsService`` does not answer at once."""

    _offsets: ListOffsetsService
    _scheduler: Scheduler

    async def offsets(self, request: OffsetsRequest) -> OffsetsReply:
        """The start and end of partitions, and their first offsets at or after a timestamp.

        Raises InvalidRequestError for more results than fit a reply: a request may name whole topics repeatedly.
        """
        results: list[OffsetsResult] = []
        topic_ids: dict[str, str] = {}
        turns = budget.Turns(self._scheduler.turn)
        for item in request.partitions:
            try:
                topic = self._offsets.table.topic(item.topic)
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
                partition = self._offsets.table.find_readable(topic.name, number)
                await turns.spend(lookup_cost(partition, item.timestamp))
                if item.timestamp is not None and partition is not None:
                    await self._scheduler.retry_after_cold_read(SegmentTimes(partition).load)
                results.append(
                    await self._scheduler.retry_after_cold_read(
                        partial(self._offsets.offsets_of, item, number, request.isolation)
                    )
                )
        return OffsetsReply(results, topic_ids)
