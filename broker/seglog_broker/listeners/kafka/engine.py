"""The part of the broker that the Kafka listener uses."""

from typing import Protocol

from seglog_broker.listeners.broker_api import BrokerApi
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_protocol.messages import CreateTopicRequest


class KafkaEngine(BrokerApi, Protocol):
    """The requests that a broker serves, and what it knows of topics and partitions."""

    @property
    def directory(self) -> LogDirectory:
        """Topics, and the identity of the cluster."""
        ...

    @property
    def partitions(self) -> PartitionTable:
        """The partitions in service."""
        ...

    def check_new_topic(self, request: CreateTopicRequest, /) -> None:
        """Raise the error that creating the topic would raise."""
        ...
