"""Requests of the native protocol about transactions, and their replies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import NO_TIME
from seglog_broker.coordinators.transactions.service.service import (
    TransactionDescription,
    TransactionFilter,
    TransactionService,
)
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.runtime.begun import by_task
from seglog_protocol import errors, messages

LISTED_MAX: Final = 1_000
"""The most transactional ids in one reply; further requests get the others."""

PARTITION_COST: Final = 0.5
"""Microseconds for a partition that is added, or described."""

VISIBLE_SECONDS: Final = 1.0
"""How long the answer to an end waits for the markers, so that whoever got it reads what was committed.

The next transaction of the producer would have to wait for them. They may take longer while a disk is full, or a
partition is being recovered."""

VERSION: Final = 2
"""Native clients speak transaction version 2: the epoch rises with the end of each transaction."""

TIMEOUT_MS: Final = 60_000
"""How long a transaction may take where the client does not say: as with Kafka's producers."""


@dataclass(eq=False, repr=False)
class NativeTransactions(Service):
    """Answers native requests about transactions."""

    _transactions: TransactionService

    async def answer(self, request: messages.Request) -> messages.Message | None:
        """The reply to a request about transactions; None to any other. Raises TransactionError and its like."""
        match request:
            case messages.InitProducerRequest() if request.transactional_id is not None:
                timeout_ms = TIMEOUT_MS if request.timeout_ms is None else request.timeout_ms
                producer = await self._transactions.init_producer(request.transactional_id, timeout_ms)
                return messages.InitProducerReply(*producer)
            case messages.ExtendTransactionRequest():
                return await self._extend(request)
            case messages.EndTransactionRequest():
                return await self._end(request)
            case messages.TransactionsRequest():
                return await self._list(request)
            case messages.AbortTransactionRequest():
                await self._abort(request)
                return messages.AbortTransactionReply()
            case messages.CommitOffsetsRequest() if request.transactional_id is not None:
                await self._add_group(request, request.transactional_id)  # the rest is for groups
        return None

    async def _add_group(self, request: messages.CommitOffsetsRequest, transactional_id: str) -> None:
        """Make what a group commits part of the transaction of the request."""
        if request.producer_id is None or request.producer_epoch is None:
            raise errors.InvalidRequestError(
                "a commit in a transaction has producer_id and producer_epoch beside transactional_id",
                field="producer_id",
            )
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        await self._transactions.add_offsets(transactional_id, producer, request.group, version=VERSION)

    async def _extend(self, request: messages.ExtendTransactionRequest) -> messages.ExtendTransactionReply:
        turns = budget.Turns(self._scheduler.turn)
        partitions = [(item.topic, item.partition) for item in request.partitions]
        for key in partitions:
            await turns.spend(PARTITION_COST)
            self._table.topic_with(*key)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        await self._transactions.add_partitions(request.transactional_id, producer, partitions, version=VERSION)
        return messages.ExtendTransactionReply()

    async def _end(self, request: messages.EndTransactionRequest) -> messages.EndTransactionReply:
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        following = await self._transactions.end(
            request.transactional_id, producer, is_commit=request.commit, version=VERSION
        )
        await by_task()
        with trio.move_on_after(VISIBLE_SECONDS):
            await self._transactions.ended(request.transactional_id)
        return messages.EndTransactionReply(*following)

    async def _abort(self, request: messages.AbortTransactionRequest) -> None:
        match request:
            case messages.AbortTransactionRequest(str(transactional_id), None, None, None):
                await self._transactions.abort(transactional_id)
            case messages.AbortTransactionRequest(None, str(topic), int(partition), int(first_offset)):
                await self._transactions.abort_hanging(topic, partition, first_offset)
            case _:
                raise errors.InvalidRequestError(
                    "it is aborted by transactional_id, or by topic, partition and first_offset",
                    field="transactional_id",
                )

    async def _list(self, request: messages.TransactionsRequest) -> messages.TransactionsReply:
        turns = budget.Turns(self._scheduler.turn)
        now_ms = self._clock.now_ms()
        found: list[messages.TransactionDescription] = []
        if request.transactional_ids is not None:
            for transactional_id in request.transactional_ids:
                described = self._transactions.describe(transactional_id)
                await turns.spend(PARTITION_COST * sum(map(len, described.facts.partitions.values())))
                found.append(_described(described, described.facts.partitions))
            return messages.TransactionsReply(found, now_ms)
        limit = min(LISTED_MAX, LISTED_MAX if request.limit is None else request.limit)
        listed = await self._transactions.list_all(TransactionFilter())
        after = request.after
        rest = [each for each in listed if after is None or each.transactional_id > after]
        found += [_described(each) for each in rest[:limit]]
        has_more = True if len(rest) > limit else None
        return messages.TransactionsReply(found, now_ms, has_more, self._transactions.missing)


def _described(
    each: TransactionDescription, partitions: Mapping[str, frozenset[int]] | None = None
) -> messages.TransactionDescription:
    facts = each.facts
    return messages.TransactionDescription(
        each.transactional_id,
        facts.state.title,
        facts.producer_id,
        facts.epoch,
        facts.timeout_ms,
        None if facts.start_ms == NO_TIME else facts.start_ms,
        None if facts.updated_ms == NO_TIME else facts.updated_ms,
        sum(map(len, facts.partitions.values())),
        None
        if partitions is None
        else [messages.DescribedPartitions(topic, sorted(numbers)) for topic, numbers in sorted(partitions.items())],
        each.held_up,
    )
