"""What people ask about transactions: which there are, what one does, and its end."""

from typing import Final

from seglog.core.conversations import Conversation, ask
from seglog_protocol import messages

OPEN: Final = "Ongoing"
"""The state of an open transaction, in Kafka's word."""


def list_transactions() -> Conversation[tuple[list[messages.TransactionDescription], int]]:
    """As ``Client.transactions``, and the broker's time in epoch ms."""
    found: list[messages.TransactionDescription] = []
    after: str | None = None
    while True:
        request = messages.TransactionsRequest(after=after)
        reply, _ = yield from ask(request, messages.TransactionsReply, is_repeatable=True)
        found += reply.transactions
        if not reply.more or not reply.transactions:
            return found, reply.now_ms
        after = reply.transactions[-1].transactional_id


def describe_transaction(transactional_id: str) -> Conversation[tuple[messages.TransactionDescription, int]]:
    """As ``Client.describe_transaction``, and the broker's time in epoch ms."""
    request = messages.TransactionsRequest([transactional_id])
    reply, _ = yield from ask(request, messages.TransactionsReply, is_repeatable=True)
    return reply.transactions[0], reply.now_ms


def abort_transaction(transactional_id: str) -> Conversation[None]:
    """As ``Client.abort_transaction``."""
    yield from ask(messages.AbortTransactionRequest(transactional_id), messages.AbortTransactionReply)


def abort_hanging(topic: str, partition: int, first_offset: int) -> Conversation[None]:
    """Abort the transaction of a partition that begins at an offset, and that no transactional id will end."""
    request = messages.AbortTransactionRequest(topic=topic, partition=partition, first_offset=first_offset)
    yield from ask(request, messages.AbortTransactionReply)
