"""The Kafka cluster that a log directory becomes: its nodes, which partitions each has, and its first metadata."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.config import BrokerConfig, join_address
from seglog_broker.config.broker_config import AUTHORIZERS
from seglog_broker.config.dynamic_config import ALL_BROKERS, with_dynamic
from seglog_broker.kafka_export import settings
from seglog_broker.kafka_export.settings import Fitted
from seglog_broker.kafka_export.source import ExportError, Source
from seglog_broker.storage.directory import kafka_metadata
from seglog_broker.storage.directory.accounts import Credential
from seglog_broker.storage.directory.kafka_access import AUTHORIZER
from seglog_broker.storage.io.filenames import is_id, new_id, uuid_of
from seglog_broker.texts import counted
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.internal_topics import OFFSETS_TOPIC, SHARE_GROUPS_TOPIC, TRANSACTIONS_TOPIC
from seglog_protocol.kafka import Message, messages

BROKERS_MAX: Final = 1_000
PORT: Final = 9092
"""The first node's; its controller has the next one, and nodes on the same host those after it."""

_ITERATIONS_MIN: Final = 4_096
"""Kafka lets nobody log in by credentials of fewer."""

_REPLICAS_MAX: Final = 3
_NO_EPOCH: Final = -1


class Node(NamedTuple):
    """A Kafka, broker and controller in one, with one log directory."""

    node_id: int
    directory: str
    directory_id: str
    host: str
    port: int

    @property
    def voter(self) -> str:
        """As ``controller.quorum.voters`` names it."""
        return f"{self.node_id}@{join_address(self.host, self.port + 1)}"


@dataclass(eq=False, repr=False)
class Cluster:
    """A plan: nothing is written by it."""

    source: Source
    nodes: Sequence[Node]
    _config: BrokerConfig
    metadata_version: int = kafka_metadata.METADATA_VERSION

    def __post_init__(self) -> None:
        self.placed: dict[TopicPartition, Node] = {}
        """The node of each partition: those of a topic one after the other, each topic beginning at the next node."""
        for position, name in enumerate(sorted(self.source.topics)):
            for number in range(self.source.topics[name].partitions):
                self.placed[name, number] = self.nodes[(position + number) % len(self.nodes)]
        self.changes: list[str] = []
        """Settings that are not as they were, and what else differs, as sentences."""
        self.records = list(self._records())
        """The metadata of the cluster."""
        self._of_file = self._noted(settings.of_file(self._config))
        self._note_differences()

    def properties(self, node: Node) -> str:
        """The content of a ``server.properties`` with which a node starts."""
        address, controller = join_address(node.host, node.port), join_address(node.host, node.port + 1)
        replicas = min(len(self.nodes), _REPLICAS_MAX)
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "controller.quorum.voters": ",".join(each.voter for each in self.nodes),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": node.directory,
            "offsets.topic.replication.factor": str(replicas),
            "transaction.state.log.replication.factor": str(replicas),
            "transaction.state.log.min.isr": str(max(replicas - 1, 1)),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(max(replicas - 1, 1)),
        }
        for topic, key in (
            (OFFSETS_TOPIC, "offsets.topic.num.partitions"),
            (TRANSACTIONS_TOPIC, "transaction.state.log.num.partitions"),
            (SHARE_GROUPS_TOPIC, "share.coordinator.state.topic.num.partitions"),
        ):
            if topic in self.source.topics:
                lines[key] = str(self.source.topics[topic].partitions)
        lines = {**self._of_file, **lines}
        head = (
            "# Written by seglogd export-kafka. Hosts and ports are to be yours; controller.quorum.voters is the same\n"
            "# in the files of all nodes.\n"
        )
        return head + settings.encode_properties(lines.items())

    def _records(self) -> Iterator[Message]:
        for topic in self.source.topics.values():
            topic_id = uuid_of(topic.id).bytes
            yield messages.TopicRecord(name=topic.name, topic_id=topic_id)
            for number in range(topic.partitions):
                yield self._partition(topic.name, number, topic_id)
            yield from self._configs(kafka_metadata.TOPIC_RESOURCE, topic.name, settings.of_topic(topic))
        dynamic = self.source.dynamic
        yield from self._configs(kafka_metadata.BROKER_RESOURCE, "", settings.of_brokers(dynamic, ALL_BROKERS))
        own = self._noted(settings.of_brokers(dynamic, str(self.source.node_id)))
        for node in self.nodes:
            yield from self._configs(kafka_metadata.BROKER_RESOURCE, str(node.node_id), Fitted(own, []))
        for group in dynamic.groups:
            yield from self._configs(kafka_metadata.GROUP_RESOURCE, group, settings.of_group(dynamic, group))
        for name in self.source.accounts.names():
            for credential in (self.source.accounts.account(name) or {}).values():
                yield _credential(name, credential)
        yield from map(kafka_metadata.record_of_rule, self.source.rules)
        for entity, quotas in dynamic.clients.items():
            yield from kafka_metadata.records_of_quotas(entity, quotas)
        if self.source.next_producer_id:
            yield messages.ProducerIdsRecord(
                broker_id=self.nodes[0].node_id, broker_epoch=_NO_EPOCH, next_producer_id=self.source.next_producer_id
            )

    def _partition(self, topic: str, number: int, topic_id: bytes) -> Message:
        node = self.placed[topic, number]
        return messages.PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=[node.node_id],
            isr=[node.node_id],
            removing_replicas=[],
            adding_replicas=[],
            leader=node.node_id,
            leader_epoch=self.source.partitions[topic, number].leader_epoch,  # Kafka begins a higher one
            partition_epoch=0,
            directories=[uuid_of(node.directory_id).bytes],
        )

    def _configs(self, kind: int, name: str, fitted: Fitted) -> Iterator[Message]:
        for key, value in self._noted(fitted).items():
            yield messages.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)

    def _noted(self, fitted: Fitted) -> dict[str, str]:
        self.changes += fitted.changes
        return fitted.settings

    def _note_differences(self) -> None:
        groups = self.source.dynamic.groups
        with_dead_letters = [name for name, own in groups.items() if own.get("errors.deadletterqueue.topic.name")]
        if with_dead_letters and self.metadata_version == kafka_metadata.METADATA_VERSION:
            self.changes.append(
                f"share group {with_dead_letters[0]} and {len(with_dead_letters) - 1} others have a topic for dead "
                "letters, to which Kafka 4.3 writes none, and Kafka 4.4 only with share.version 2: export with "
                f"--metadata-version {kafka_metadata.METADATA_VERSION_MAX}, or upgrade that feature there"
            )
        if self.source.archiving and self.metadata_version == kafka_metadata.METADATA_VERSION:
            self.changes.append(
                f"{counted(self.source.archiving, 'record')} of share groups wait until their dead letters are "
                "written: in Kafka 4.3 they do so for good, and hold up their partitions; for it, have seglogd write "
                "them before, or give them up (seglog.share.dead.letter.retry.ms=0)"
            )
        accounts = self.source.accounts
        if accounts.names():
            self.changes.append(
                "accounts go along, but the listeners in server.properties ask for none: set up SASL with SCRAM there "
                "before others can connect"
            )
        short = [
            name
            for name in accounts.names()
            if any(each.iterations < _ITERATIONS_MIN for each in (accounts.account(name) or {}).values())
        ]
        if short:
            self.changes.append(
                f"account {short[0]} and {len(short) - 1} others have credentials of fewer than {_ITERATIONS_MIN} "
                "iterations, with which Kafka lets nobody in: give them their passwords again"
            )
        if self.source.rules:
            is_open = with_dynamic(self._config, self.source.dynamic).allow_everyone_if_no_acl_found
            self.changes.append(
                "permissions go along, but are not in force until server.properties has "
                f"{AUTHORIZER}={AUTHORIZERS[0]}{', allow.everyone.if.no.acl.found=true' if is_open else ''} and "
                "super.users with those that administer and the nodes themselves, which are User:ANONYMOUS while their "
                "listener asks for no login"
            )
        elif self._config.super_users:
            self.changes.append(
                "super.users does not go along: without an authorizer Kafka lets every client administer; see "
                "authorizer.class.name and super.users in its documentation"
            )


def _credential(name: str, credential: Credential) -> Message:
    [number] = [number for number, known in kafka_metadata.MECHANISMS.items() if known == credential.mechanism]
    return messages.UserScramCredentialRecord(
        name=name,
        mechanism=number,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def make_nodes(
    source: Source, destination: str, brokers: int, hosts: Sequence[str], new_uuid: Callable[[], uuid.UUID]
) -> list[Node]:
    """The nodes of a cluster; a single one is the source's own, its directory the destination itself.

    ``hosts`` has one for each, or one for all. Raises ExportError for another number.
    """
    if len(hosts) not in (1, brokers):
        raise ExportError(f"{brokers} brokers need as many hosts, or one for all: {len(hosts)} are given by --host")
    if brokers == 1:
        directory_id = source.directory_id if is_id(source.directory_id) else new_id(new_uuid())
        return [Node(source.node_id, destination, directory_id, hosts[0], PORT)]
    found: list[Node] = []
    for node_id in range(1, brokers + 1):
        host = hosts[0] if len(hosts) == 1 else hosts[node_id - 1]
        port = PORT + 2 * sum(node.host == host for node in found)
        found.append(Node(node_id, f"{destination}/broker-{node_id}", new_id(new_uuid()), host, port))
    return found
