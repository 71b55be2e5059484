"""Tells partitions which transactions they may take batches of, also partitions that come into service later."""

from collections.abc import Mapping
from typing import Final

from seglog_broker.coordinators.transactions.facts import Partition as Key
from seglog_broker.coordinators.transactions.machine import EPOCH_BUMPING_VERSION, Expectation
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable


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
