"""Transactions: what producers ask of them, and what people do."""

from typing import ClassVar

from seglog_protocol.messages.base import Int31, Int63, Int64, Items, Message, Request, RequestPart
from seglog_protocol.messages.groups import DescribedPartitions


class TransactionPartition(RequestPart):
    """A partition that becomes part of a transaction."""

    topic: str
    partition: Int31


class ExtendTransactionRequest(Request):
    """Make partitions part of a producer's transaction; the first ones begin it.

    Answered when that is durable. From then on the partitions accept batches of the transaction.
    """

    api: ClassVar[str] = "extend_transaction"
    transactional_id: str
    producer_id: Int63
    producer_epoch: Int31
    partitions: Items[TransactionPartition]


class ExtendTransactionReply(Message):
    """All of them are part of the transaction."""


class EndTransactionRequest(Request):
    """Commit or abort a producer's transaction; answered when the outcome is durable, and cannot change any more.

    Whatever the ack of its batches was, all that is committed survives a loss of power. As a rule it can be read by
    then, too: the answer waits for that for a second at most. An end that was not answered may be asked for again.
    """

    api: ClassVar[str] = "end_transaction"
    transactional_id: str
    producer_id: Int63
    producer_epoch: Int31
    commit: bool


class EndTransactionReply(Message):
    """The id and epoch for the producer's next transaction."""

    producer_id: Int64
    producer_epoch: Int64


class TransactionsRequest(Request):
    """List transactions by their ids, those after ``after``, or describe those in ``transactional_ids``."""

    api: ClassVar[str] = "transactions"
    transactional_ids: Items[str] | None = None
    after: str | None = None
    limit: Int31 | None = None


class TransactionDescription(Message):
    """What is known of a transactional id.

    ``started_ms`` is when its open transaction began; ``partitions`` are those of the transaction, if it was asked for
    by name; ``held_up`` is why it could not be ended at the last try. Times are ms of the broker's clock.
    """

    transactional_id: str
    state: str
    producer_id: Int64
    producer_epoch: Int64
    timeout_ms: Int64
    started_ms: Int64 | None = None
    updated_ms: Int64 | None = None
    partition_count: Int64 | None = None
    partitions: list[DescribedPartitions] | None = None
    held_up: str | None = None


class TransactionsReply(Message):
    """Transactions by their ids, at ``now_ms``; with ``more`` others follow the last one.

    ``missing`` says of which ids it is not known what they do, and why, where that cannot be read.
    """

    transactions: list[TransactionDescription]
    now_ms: Int64
    more: bool | None = None
    missing: str | None = None


class AbortTransactionRequest(Request):
    """Abort the open transaction of any producer, which is fenced: for people.

    With ``topic``, ``partition`` and ``first_offset`` in place of the id it is the transaction that begins there, and
    that no transactional id will end: it hangs.
    """

    api: ClassVar[str] = "abort_transaction"
    transactional_id: str | None = None
    topic: str | None = None
    partition: Int31 | None = None
    first_offset: Int63 | None = None


class AbortTransactionReply(Message):
    """It will be aborted, also if the broker stops now; one that hangs is aborted."""
