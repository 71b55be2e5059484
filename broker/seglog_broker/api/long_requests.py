"""Requests that need a task: they wait for the disk or for records, or take turns because of many partitions."""

from dataclasses import dataclass
from functools import partial

import trio

from seglog_broker.api.fetch import Collection, FetchService
from seglog_broker.api.list_offsets import ListOffsetsService
from seglog_broker.engine.turns import LOOKUPS_A_TURN, RESULTS_MAX, SegmentTimes, lookup_cost
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.partitions.waiting_fetches import wait_woken
from seglog_broker.runtime import budget
from seglog_protocol import errors
from seglog_protocol.messages import FetchRequest, OffsetsReply, OffsetsRequest, OffsetsResult


@dataclass(eq=False, repr=False)
class WaitingFetches:
    """Waits for what ``FetchService`` does not wait for."""

    _fetches: FetchService
    _scheduler: Scheduler

    async def fetch(self, request: FetchRequest, waiter: Waiter | None = None) -> FetchAnswer:
        """The response, when it has ``min_bytes``, an error or a gap, or when ``max_wait_ms`` are over.

        With ``waiter`` the caller can end the waiting: then RequestCancelledError is raised. Time that ``waiter`` has
        waited before counts. Raises OutOfResourcesError where too many partitions are waited for already.
        """
        waiter = waiter or Waiter()
        waiter.deadline = min(waiter.deadline, self._fetches.deadline_of(request))
        while True:
            # It watches before it looks: records may come while other tasks have their turn.
            waiter.bytes_wanted = request.min_bytes
            try:
                await self._watch(request, waiter)
                if not await self._is_at_the_end_in_turns(request) or trio.current_time() >= waiter.deadline:
                    answer = await self._collect(request)
                    if self._fetches.is_complete(request, answer) or trio.current_time() >= waiter.deadline:
                        return answer
                    waiter.bytes_wanted -= answer.size
                    answer.close()
                self._fetches.metrics.fetches_waited += 1
                with trio.CancelScope(deadline=waiter.deadline):
                    await wait_woken(waiter)
                if len(request.partitions) > self._fetches.watched_a_turn:
                    await self._scheduler.turn()  # one append may have woken many of them
            finally:
                waiter.unwatch()
            if waiter.is_ended:
                raise errors.RequestCancelledError("the fetch was cancelled by its client")

    async def _collect(self, request: FetchRequest) -> FetchAnswer:
        """The response now. If it is cancelled, no lease stays."""
        collection = Collection(self._fetches, request)
        try:
            return await self._scheduler.retry_after_cold_read(collection.go_on)
        finally:
            collection.close()

    async def _watch(self, request: FetchRequest, waiter: Waiter) -> None:
        """Wake ``waiter`` by changes to the partitions of a request. Raises OutOfResourcesError."""
        fetches = self._fetches
        if not fetches.has_room(request):
            raise errors.OutOfResourcesError(
                f"fetches wait for {fetches.watching.count} partitions, with this one they would be above the limit of "
                f"{fetches.watched_max}; ask again later"
            )
        waiter.watch([fetches.waiters], fetches.watching)
        for begin in range(0, len(request.partitions), fetches.watched_a_turn):
            if len(request.partitions) > fetches.watched_a_turn:
                await self._scheduler.turn()
            waiter.watch(
                fetches.watch_lists(request.partitions[begin : begin + fetches.watched_a_turn]), fetches.watching
            )

    async def _is_at_the_end_in_turns(self, request: FetchRequest) -> bool:
        """``_is_at_the_end``, where there may be many partitions."""
        fetches = self._fetches
        if not fetches.may_wait(request):
            return False
        for begin in range(0, len(request.partitions), fetches.watched_a_turn):
            if len(request.partitions) > fetches.watched_a_turn:
                await self._scheduler.turn()
            if not fetches.have_nothing(request.partitions[begin : begin + fetches.watched_a_turn], request.isolation):
                return False
        return True


async def long_offsets(offsets: ListOffsetsService, scheduler: Scheduler, request: OffsetsRequest) -> OffsetsReply:
    """The start and end of partitions, and their first offsets at or after a timestamp, which may wait for the disk.

    Raises InvalidRequestError for more results than fit a reply: a request may name whole topics repeatedly.
    """
    results: list[OffsetsResult] = []
    topic_ids: dict[str, str] = {}
    turns = budget.Turns(scheduler.turn)
    for item in request.partitions:
        try:
            topic = offsets.table.topic(item.topic)
        except errors.SeglogError as error:
            results.append(OffsetsResult(item.topic, item.partition, error=errors.without_frames(error)))
            if len(results) % LOOKUPS_A_TURN == LOOKUPS_A_TURN - 1:
                await scheduler.turn()
            continue
        topic_ids[topic.name] = topic.id
        wanted = range(topic.partitions) if item.partition is None else (item.partition,)
        if len(results) + len(wanted) > RESULTS_MAX:
            raise errors.InvalidRequestError(
                f"the offsets of more than {RESULTS_MAX} partitions are requested: use several requests",
                field="partitions",
            )
        for number in wanted:
            partition = offsets.table.find_readable(topic.name, number)
            await turns.spend(lookup_cost(partition, item.timestamp))
            if item.timestamp is not None and partition is not None:
                await scheduler.retry_after_cold_read(SegmentTimes(partition).load)
            results.append(
                await scheduler.retry_after_cold_read(partial(offsets.offsets_of, item, number, request.isolation))
            )
    return OffsetsReply(results, topic_ids)
