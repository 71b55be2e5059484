"""The families that have samples of transactions, and what is wrong with transactions, in sentences."""

from collections.abc import Iterator, Mapping
from typing import Final

from seglog_broker.api.monitoring.broker_sources import by_label, one, total
from seglog_broker.api.monitoring.samples import Source
from seglog_broker.coordinators.transactions.service.open_transactions import Hanging
from seglog_broker.coordinators.transactions.service.service import TransactionService
from seglog_broker.partitions.partition import Problem
from seglog_broker.texts import counted, time_text

NAME_CHARACTERS_TOLD: Final = 100
"""Of a transactional id, in a sentence."""

TOLD_MAX: Final = 20
"""Sentences about transactions that cannot be ended, and about those that hang: there may be thousands of each."""


class TransactionSources:
    """Reads the transactions of a broker, whenever it is asked."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions: Final = transactions

    def sources(self) -> Mapping[str, Source]:
        """What makes the samples of each of these families."""
        transactions = self._transactions
        return {
            "seglog_transactional_ids": one(lambda: transactions.count),
            "seglog_transactions_open": one(lambda: len(transactions.open)),
            "seglog_transaction_oldest_seconds": one(transactions.oldest_seconds),
            "seglog_transactions_ended_total": by_label(transactions.open.ended),
            "seglog_transaction_markers_waiting": one(lambda: transactions.markers.waiting),
            "seglog_transactions_held_up": one(lambda: len(transactions.markers.all_held_up())),
            "seglog_transactions_hanging": lambda: total(found is not None for found in transactions.hanging()),
            "seglog_partitions_held_back": lambda: total(transactions.open.held_back()),
        }

    def problems(self) -> Iterator[Problem | None]:
        """A problem for each transaction that cannot be ended, or that nothing will end; None is a pause."""
        for ending, left, error in self._transactions.markers.all_held_up()[:TOLD_MAX]:
            decided = "committed" if ending.is_commit else "aborted"
            yield Problem(
                "transaction",
                f"the transaction of {ending.transactional_id[:NAME_CHARACTERS_TOLD]} is {decided}, and its end is "
                f"held up in {counted(left, 'partition')}, where it is tried again: {error.message}",
            )
        told = 0
        for found in self._transactions.hanging():
            if found is not None:
                told += 1
                if told > TOLD_MAX:
                    return
            yield None if found is None else Problem("transaction", _in_words(found))


def _in_words(found: Hanging) -> str:
    topic, number, transaction = found
    first_offset = transaction.first_offset
    return (
        f"{topic}-{number} has a hanging transaction: producer {transaction.producer_id} began it at offset "
        f"{first_offset}, its last batch is of {time_text(transaction.last_timestamp)}, and no transactional id will "
        f"end it, so that readers at read_committed stay there: abort it by `seglog transaction abort-hanging {topic} "
        f"{number} {first_offset}`"
    )
