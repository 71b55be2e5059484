"""What people ask about transactions: which there are, what one does, and its end."""

from typing import Final, NamedTuple

from seglog.core.conversations import Conversation, ask
from seglog_protocol import errors, messages
from seglog_protocol.messages import MessageT

OPEN: Final = "Ongoing"
"""The state of an open transaction, in Kafka's word."""


def without_transactions(api: str) -> errors.UnsupportedApiError:
    """The error of a broker that is older than transactions, and that has no ``api``, or not its version."""
    return errors.UnsupportedApiError(
        "the broker has no transactions, it is older than this client: give it a newer version, or do without them",
        api=api,
    )


def _ask(
    request: messages.Request, reply_type: type[MessageT], *, is_repeatable: bool = False
) -> Conversation[MessageT]:
    try:
        reply, _ = yield from ask(request, reply_type, is_repeatable=is_repeatable)
    except errors.UnsupportedApiError as error:
        raise without_transactions(request.api) from error
    return reply


class Listed(NamedTuple):
    """Transactions at ``now_ms``, the broker's time in epoch ms; ``missing`` says which it does not know, and why."""

    transactions: list[messages.TransactionDescription]
    now_ms: int
    missing: str | None

    def whole(self) -> list[messages.TransactionDescription]:
        """The transactions. Raises CoordinatorNotAvailableError where some are missing."""
        if self.missing is not None:
            raise errors.CoordinatorNotAvailableError(self.missing)
        return self.transactions


def list_transactions() -> Conversation[Listed]:
    """All transactions that the broker knows."""
    found: list[messages.TransactionDescription] = []
    after: str | None = None
    while True:
        request = messages.TransactionsRequest(after=after)
        reply = yield from _ask(request, messages.TransactionsReply, is_repeatable=True)
        found += reply.transactions
        if not reply.more or not reply.transactions:
            return Listed(found, reply.now_ms, reply.missing)
        after = reply.transactions[-1].transactional_id


def describe_transaction(transactional_id: str) -> Conversation[tuple[messages.TransactionDescription, int]]:
    """As ``Client.describe_transaction``, and the broker's time in epoch ms."""
    request = messages.TransactionsRequest([transactional_id])
    reply = yield from _ask(request, messages.TransactionsReply, is_repeatable=True)
    return reply.transactions[0], reply.now_ms


def abort_transaction(transactional_id: str) -> Conversation[None]:
    """As ``Client.abort_transaction``."""
    yield from _ask(messages.AbortTransactionRequest(transactional_id), messages.AbortTransactionReply)


def abort_hanging(topic: str, partition: int, first_offset: int) -> Conversation[None]:
    """Abort the transaction of a partition that begins at an offset, and that no transactional id will end."""
    request = messages.AbortTransactionRequest(topic=topic, partition=partition, first_offset=first_offset)
    yield from _ask(request, messages.AbortTransactionReply)
