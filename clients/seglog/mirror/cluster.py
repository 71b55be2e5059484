"""One side of a mirror, asked by confluent-kafka: its topics, offsets and groups, and the clients that copy."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, OffsetSpec, ResourceType

from seglog.core.dialing import Address
from seglog.core.security import Target
from seglog.mirror.errors import AWAY, LOGIN, MirrorError, code_of, translated
from seglog.mirror.places import Place, settings_for
from seglog.mirror.positions import Partition
from seglog_protocol.messages import DescribedListener

ANSWER_SECONDS: Final = 30.0
"""How long a side may be away before a question to it fails."""
_TRIES_SECONDS: Final = 0.5
_CREATION_SECONDS: Final = 30
"""How long a side may take to create a topic."""
_LOST_SECONDS: Final = 12.0
"""After so much longer a request is given up for lost: librdkafka loses some while a broker goes away."""
_OF_A_STALE_CLIENT: Final = {KafkaError._NOENT, KafkaError._TIMED_OUT}  # noqa: SLF001 - their names
"""A client that does not know a leader that there is since, or has lost a request, would go on so."""

_ResultT = TypeVar("_ResultT")

QUIET: Final = logging.getLogger("seglog.mirror.librdkafka")
"""Where librdkafka's log goes: what matters of it comes as errors, which the mirror tells in its own words."""
QUIET.propagate = False
QUIET.addHandler(logging.NullHandler())


class Topic(NamedTuple):
    """A topic as a side describes it."""

    topic_id: str
    partitions: int


class Member(NamedTuple):
    """A member of a group, by what it calls itself, and the topics that it reads."""

    client_id: str
    host: str
    topics: frozenset[str]


class Committed(NamedTuple):
    """A group's committed offset, and what it wrote beside it."""

    offset: int
    metadata: str


class Cluster:
    """A side that answers. Every question raises a SeglogError that names it: see ``translated``."""

    def __init__(self, place: Place, *, client_id: str, patience: float = ANSWER_SECONDS) -> None:
        """Asks who it is, for at most ``patience`` seconds. Raises NotReachableError, AuthenticationError."""
        self.name = place.name
        self.client_id = client_id
        self._settings = place.settings
        self._patience = patience
        self.trouble = ""
        """What its connections reported last; "" once it has answered again."""
        self._login: Any = None
        try:
            self._admin = self._new_admin()
        except (KafkaException, ValueError, TypeError) as error:  # a setting of the file
            first = error.args[0] if error.args else error
            text = first.str() if isinstance(first, KafkaError) else first
            raise MirrorError(f"{self.name}: {text}; see --kafka-config") from error
        self.cluster_id = str(self._ask(lambda: _awaited(self._admin.describe_cluster(request_timeout=5))).cluster_id)

    # --- Topics -------------------------------------------------------------------------------------------------------

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Those of ``names`` that are there."""
        wanted = TopicCollection(sorted(names))
        found: dict[str, Topic] = {}
        for name, told in self._futures(lambda: self._admin.describe_topics(wanted), KafkaError.UNKNOWN_TOPIC_OR_PART):
            if told is not None:
                found[name] = Topic(str(told.topic_id), len(told.partitions))
        return found

    def topic_names(self) -> list[str]:
        """The names of all topics that are not internal."""
        found = self._ask(lambda: self._admin.list_topics(timeout=5)).topics
        return sorted(name for name in found if not name.startswith("__"))

    def settings_of(self, name: str, *, own: bool) -> dict[str, str]:
        """The configuration of a topic: all of it, or its ``own``, which was set on it and has no secret."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        ((_, found),) = self._futures(lambda: self._admin.describe_configs([resource]))
        assert found is not None
        return {
            key: str(entry.value)
            for key, entry in found.items()
            if not entry.is_sensitive
            and (not own or ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG)
            and entry.value is not None
        }

    def create_topic(
        self, name: str, partitions: int, replication: int, settings: Mapping[str, str], *, is_trial: bool = False
    ) -> str:
        """Create a topic, or only try to: "", else why the cluster refuses its configuration. Raises MirrorError."""
        new = NewTopic(name, partitions, replication, config=dict(settings))
        try:
            made = self._admin.create_topics([new], validate_only=is_trial, request_timeout=_CREATION_SECONDS)
            for future in made.values():
                _awaited(future, _CREATION_SECONDS)
        except KafkaException as error:
            if code_of(error) in {KafkaError.INVALID_CONFIG, KafkaError.INVALID_REQUEST}:
                return str(error.args[0].str())
            if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return ""
            failure = translated(error.args[0], self.name, self.trouble)
            raise type(failure)(f"topic {name} cannot be created: {failure.message}") from error
        return ""

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def end_offsets(self, partitions: Iterable[Partition], *, committed: bool = False) -> dict[Partition, int]:
        """Where each log ends; ``committed``: where its first open transaction begins."""
        return self._offsets(partitions, OffsetSpec.latest(), committed=committed)

    def start_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Where each log begins."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def delete_records(self, before: Mapping[Partition, int]) -> None:
        """Have each log begin at an offset."""
        asked = [TopicPartition(*partition, offset) for partition, offset in before.items()]
        list(self._futures(lambda: self._admin.delete_records(asked)))

    def _offsets(self, partitions: Iterable[Partition], spec: Any, *, committed: bool = False) -> dict[Partition, int]:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*partition): spec for partition in partitions}
        told = self._futures(lambda: self._admin.list_offsets(asked, isolation_level=level))
        return {Partition(place.topic, place.partition): int(found.offset) for place, found in told}

    # --- Groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The ids of all groups."""
        return sorted(
            str(each.group_id) for each in self._ask(lambda: _awaited(self._admin.list_consumer_groups())).valid
        )

    def members_of(self, group: str) -> list[Member]:
        """Who is in a group now; none where there is no such group."""
        absent = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID)
        ((_, told),) = self._futures(lambda: self._admin.describe_consumer_groups([group]), *absent)
        if told is None or told.state is ConsumerGroupState.DEAD:
            return []
        return [
            Member(each.client_id, each.host, frozenset(place.topic for place in each.assignment.topic_partitions))
            for each in told.members
            if each.assignment is not None
        ]

    def committed(self, group: str) -> dict[Partition, Committed]:
        """All committed offsets of a group."""
        asked = [ConsumerGroupTopicPartitions(group)]
        ((_, told),) = self._futures(
            lambda: self._admin.list_consumer_group_offsets(asked), KafkaError.GROUP_ID_NOT_FOUND
        )
        return {
            Partition(each.topic, each.partition): Committed(int(each.offset), each.metadata or "")
            for each in (told.topic_partitions if told is not None else ())
            if each.offset >= 0
        }

    def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> str:
        """Set committed offsets of a group without members: "", else why it could not be done."""
        places = [TopicPartition(*where, what.offset, what.metadata) for where, what in offsets.items()]
        asked = [ConsumerGroupTopicPartitions(group, places)]
        try:
            (future,) = self._admin.alter_consumer_group_offsets(asked).values()
            refused = [each.error for each in _awaited(future).topic_partitions if each.error is not None]
        except KafkaException as error:
            refused = [error.args[0]]
        if not refused:
            return ""
        if refused[0].code() in {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP}:
            return "it has members there"
        failure = translated(refused[0], self.name, self.trouble)
        if refused[0].code() in AWAY:
            raise failure
        return failure.message

    # --- Clients that copy --------------------------------------------------------------------------------------------

    def consumer(self, group: str, **settings: Any) -> Any:
        """A consumer of confluent-kafka that commits nothing by itself, and has no place to begin but a given one."""
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 250,
        }
        return Consumer({**self._shared(), **own, **settings}, logger=QUIET)

    def producer(self, **settings: Any) -> Any:
        """A producer of confluent-kafka whose records arrive in order, once each, or not from some record on."""
        own = {
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
            "delivery.report.only.error": True,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
        return Producer({**self._shared(), **own, **settings}, logger=QUIET)

    # --- Asking -------------------------------------------------------------------------------------------------------

    def _shared(self) -> dict[str, Any]:
        own = {"client.id": self.client_id, "error_cb": self._note, "reconnect.backoff.max.ms": 1000, "log_level": 0}
        return {**self._settings, **own}

    def _new_admin(self) -> AdminClient:
        return AdminClient({**self._shared(), "socket.connection.setup.timeout.ms": 5000}, logger=QUIET)

    def _note(self, error: Any) -> None:
        """As librdkafka reports it, from whichever call serves its events."""
        if error.code() in LOGIN:
            self._login = error
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - it says less than the one before
            self.trouble = str(error.str())

    def raise_refused(self) -> None:
        """Raises AuthenticationError where an account was refused."""
        if self._login is not None:
            raise translated(self._login, self.name)

    def _futures(self, ask: Callable[[], Mapping[Any, "Future[Any]"]], *absent: int) -> Sequence[tuple[Any, Any]]:
        """What each is told, None where the error is one of ``absent``."""

        def told(future: "Future[Any]") -> Any:
            try:
                return _awaited(future)
            except KafkaException as error:
                if code_of(error) in absent:
                    return None
                raise

        return self._ask(lambda: [(key, told(future)) for key, future in ask().items()])

    def _ask(self, question: Callable[[], _ResultT]) -> _ResultT:
        """Ask until there is an answer, or ``patience`` is at its end; what the cluster refuses is raised at once."""
        give_up = time.monotonic() + self._patience
        while True:
            try:
                answer = question()
            except KafkaException as error:
                self._admin.poll(0)
                self.raise_refused()
                if code_of(error) not in AWAY:
                    raise translated(error.args[0], self.name, self.trouble) from error
                if code_of(error) in _OF_A_STALE_CLIENT:
                    self._admin = self._new_admin()
                if time.monotonic() > give_up:
                    raise translated(error.args[0], self.name, self.trouble) from error
            else:
                self.trouble = ""
                return answer
            time.sleep(_TRIES_SECONDS)


def _awaited(future: "Future[Any]", seconds: float = 0.0) -> Any:
    """The outcome of a request that may take ``seconds``."""
    try:
        return future.result(seconds + _LOST_SECONDS)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001 - its name


# --- For others than a mirror ----------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a listener answers."""

    cluster_id: str
    brokers: list[Address]


def ask_metadata(listener: DescribedListener, address: Address, target: Target, seconds: float) -> Answer:
    """Ask a socket what a Kafka client asks first, by the protocol of a listener and the account of ``target``.

    Raises ValueError where an account is missing, OSError with a sentence where nothing answers as Kafka's do, or the
    login is refused.
    """
    trouble: list[str] = []
    settings: dict[str, Any] = {**settings_for(listener, str(address), target), "client.id": "seglog-doctor"}
    try:
        asking = AdminClient({**settings, "error_cb": lambda error: trouble.append(error.str())}, logger=QUIET)
        found = asking.list_topics(timeout=seconds)
    except KafkaException as error:
        raise OSError(trouble[0] if trouble else f"it does not answer as Kafka's do ({error.args[0].str()})") from error
    return Answer(found.cluster_id or "", [Address(each.host, each.port) for each in found.brokers.values()])
