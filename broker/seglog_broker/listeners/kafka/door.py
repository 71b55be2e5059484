"""What all connections of the Kafka listener share: its engine, its settings, its address."""

from typing import Final, NamedTuple

from seglog_broker.config import BrokerConfig
from seglog_broker.listeners.kafka.engine import KafkaEngine
from seglog_broker.storage.directory.identity import NODE_ID

LEADER_EPOCH: Final = 0
"""The leader epoch that clients are told for partitions without a log in service."""


class Endpoint(NamedTuple):
    """Where clients are to connect."""

    host: str
    port: int


class Caller(NamedTuple):
    """Who sent a request: what its answer depends on beside the request itself."""

    engine: KafkaEngine
    endpoint: Endpoint
    """The address that this client is told to use."""
    client_id: str | None

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self.engine.config

    @property
    def node_id(self) -> int:
        """The only node of the cluster."""
        return NODE_ID
