"""The part of the broker that the Kafka listener uses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from seglog_broker.config.kafka_configs import Alteration, ConfigEntry
from seglog_broker.coordinators.groups.groups_api import Groups
from seglog_broker.listeners.broker_api import BrokerApi
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import ConfigValue, CreateTopicReply, CreateTopicRequest


class KafkaConfigs(Protocol):
    """The configuration of topics and of this broker; ``api.configs.ConfigService`` has it, and says what is raised."""

    def describe(
        self,
        resource: int,
        name: str,
        names: Collection[str] | None = None,
        *,
        actual: Mapping[str, str] | None = None,
    ) -> list[ConfigEntry]:
        """The entries of a resource, those of all keys if none are named."""
        ...

    def describe_new(self, settings: Mapping[str, ConfigValue]) -> list[ConfigEntry]:
        """The entries of a topic that would have these settings."""
        ...

    async def alter(
        self,
        resource: int,
        name: str,
        alterations: Sequence[Alteration],
        *,
        replaces: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Make all alterations of a resource, or with an error none; with ``replaces``, reset what is not named."""
        ...


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

    @property
    def clock(self) -> Clock:
        """The time of day."""
        ...

    @property
    def configs(self) -> KafkaConfigs:
        """Configuration, described and altered."""
        ...

    @property
    def groups(self) -> Groups:
        """Consumer groups and what they have committed."""
        ...

    async def learn_sizes(self, logs: Iterable[PartitionLog], /) -> None:
        """Read, in a thread, the file sizes that ``PartitionLog.size`` needs."""
        ...

    async def create_topics(self, requests: Sequence[CreateTopicRequest], /) -> list[CreateTopicReply | SeglogError]:
        """Create topics, whose names differ, together; none fails another. The outcomes are in the same order."""
        ...

    async def check_new_topics(self, requests: Sequence[CreateTopicRequest], /) -> list[SeglogError | None]:
        """The errors with which ``create_topics`` would refuse topics that cannot be, None for the others."""
        ...
