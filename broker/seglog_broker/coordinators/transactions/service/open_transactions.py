"""Which transactions are open or being ended, how others ended, and what hangs: for metrics, and for operators.

And which transactions partitions may take batches of, also partitions that come into service later.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from seglog_broker.coordinators.transactions.facts import Partition as Key
from seglog_broker.coordinators.transactions.machine import EPOCH_BUMPING_VERSION, Ending, Expectation
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.storage.producers.producer_state import OpenTransaction


class Hanging(NamedTuple):
    """A transaction that is open in a partition, and that no transactional id will end."""

    topic: str
    partition: int
    transaction: OpenTransaction


class OpenTransactions:
    """The transactional ids with a transaction that is open or being ended, as durable records have it.

    A partition takes batches of a transaction only after ``note_open``, and its marker before ``note_ended``: whatever
    is open in a partition and not here hangs, once all transactional ids are loaded.
    """

    def __init__(self, table: PartitionTable) -> None:
        self._table: Final = table
        self._ids: Final[dict[str, int]] = {}  # producer id by transactional id
        self._producers: Final[dict[int, str]] = {}  # the other way round
        self.ended: Final = Counter({"committed": 0, "aborted": 0, "timed_out": 0})
        """Since the start, by outcome; from 0 on, so that a first one shows."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[str]:
        """The transactional ids, a copy."""
        return list(self._ids)

    def note_open(self, transactional_id: str, producer_id: int) -> None:
        """A transaction is open, or its end is decided. It may be told more than once."""
        self._ids[transactional_id] = producer_id
        self._producers[producer_id] = transactional_id

    def note_ended(self, ending: Ending) -> None:
        """A transaction has ended in all of its partitions."""
        self._producers.pop(self._ids.pop(ending.transactional_id, -1), None)
        outcome = "committed" if ending.is_commit else "timed_out" if ending.is_timeout else "aborted"
        self.ended[outcome] += 1

    def id_of(self, producer_id: int) -> str | None:
        """The transactional id that will end the producer's open transaction; None where none does."""
        return self._producers.get(producer_id)

    def held_back(self) -> Iterator[int]:
        """Counts of partitions whose last stable offset is below the log end, part by part."""
        for part in self._table.in_parts():
            yield len([True for partition in part if partition.log.producers.open])

    def hanging(self) -> Iterator[Hanging | None]:
        """What hangs, the oldest transaction of each partition; None is a pause, in which others may run."""
        for part in self._table.in_parts():
            for partition in [partition for partition in part if partition.log.producers.open]:
                oldest = partition.log.producers.oldest_open
                if oldest is not None and oldest.producer_id not in self._producers:
                    yield Hanging(partition.topic, partition.number, oldest)
            yield None


class Expectations:
    """What is expected of partitions. Synchronous, so that nothing comes between a decision and what follows it."""

    def __init__(self, table: PartitionTable) -> None:
        """``table`` tells of partitions that come into service."""
        self._table: Final = table
        self._later: Final[dict[Key, dict[int, Expectation]]] = {}  # by partition and producer id
        table.tell_of_served(self._note_served)

    def expect(self, expectation: Expectation) -> None:
        """Let partitions take batches of a transaction that is durably recorded."""
        for topic, numbers in expectation.partitions.items():
            for number in numbers:
                partition = self._table.find(topic, number)
                if partition is None:
                    self._later.setdefault((topic, number), {})[expectation.producer.producer_id] = expectation
                else:
                    _tell(partition, expectation)

    def forget(self, producer_id: int, partitions: Mapping[str, frozenset[int]]) -> None:
        """The producer's transaction ends: partitions that are not in service yet are not told of it."""
        if not self._later:
            return
        for topic, numbers in partitions.items():
            for number in numbers:
                waiting = self._later.get((topic, number))
                if waiting is not None and waiting.pop(producer_id, None) is not None and not waiting:
                    del self._later[topic, number]

    def _note_served(self, partition: Partition) -> None:
        for expectation in self._later.pop((partition.topic, partition.number), {}).values():
            _tell(partition, expectation)


def _tell(partition: Partition, expectation: Expectation) -> None:
    producer_id, epoch = expectation.producer
    partition.log.producers.expect(producer_id, epoch, begins_at_zero=expectation.version >= EPOCH_BUMPING_VERSION)
