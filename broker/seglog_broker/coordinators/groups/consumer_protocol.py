"""The subscriptions and assignments that consumers of the classic protocol exchange through their group, as bytes.

Each is a message of Kafka's ConsumerProtocol with its version before it. Every version begins with the fields of
version 0, so that is how it is read where later fields do not matter.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Any, Final, NamedTuple

from seglog_protocol.kafka import messages, write_message, write_message_in_pieces
from seglog_protocol.kafka.compiler import message_reader
from seglog_protocol.kafka.errors import Malformed
from seglog_protocol.steps import Pace, Steps, finished, steps_of

_VERSION: Final = Layout(">h")
_NEWEST_SUBSCRIPTION: Final = 3


def _read(name: str, newest: int, data: bytes) -> Steps[Any]:
    """A message of one of the versions up to ``newest``, or read as that one; None if it is malformed."""
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            return None
        read = message_reader(name, min(version, newest), in_pieces=True)
        return (yield from steps_of(read(memoryview(data), _VERSION.size)))[0]
    except (StructError, Malformed):
        return None


def assigned_partitions(assignment: bytes) -> dict[str, list[int]] | None:
    """As ``read_assignment``, at once."""
    return finished(read_assignment(assignment))


def read_assignment(assignment: bytes) -> Steps[dict[str, list[int]] | None]:
    """The partitions of an assignment by topic; None if it is malformed. Empty bytes assign nothing."""
    if not assignment:
        return {}
    message = yield from _read("ConsumerProtocolAssignment", 0, assignment)
    if message is None:
        return None
    found: dict[str, list[int]] = {}
    pace = Pace()
    for assigned in message.assigned_partitions:
        found[assigned.topic] = sorted(assigned.partitions)
        if pace.is_due():
            yield
    return found


def encode_assignment(partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    """As ``write_assignment``, at once."""
    return finished(write_assignment(partitions))


def write_assignment(partitions: Iterable[tuple[str, Iterable[int]]]) -> Steps[bytes]:
    """An assignment in version 0."""
    assigned = []
    pace = Pace()
    for topic, numbers in partitions:
        assigned.append(messages.ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=sorted(numbers)))
        if pace.is_due():
            yield
    message = messages.ConsumerProtocolAssignment(assigned_partitions=assigned)
    return _VERSION.pack(0) + (yield from steps_of(write_message_in_pieces(message, 0)))


class ClassicSubscription(NamedTuple):
    """The subscription of a consumer: topics by name, partitions by topic."""

    topics: frozenset[str]
    owned: Mapping[str, Sequence[int]]
    """Partitions that it keeps while it joins: none with assignors that revoke all partitions before."""
    rack_id: str | None


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions; None if one is malformed."""
    read = message_reader("ConsumerProtocolSubscription", 0)
    topics: set[str] = set()
    for subscription in set(subscriptions):  # those of one application are equal
        try:
            if _VERSION.unpack_from(subscription)[0] < 0:
                return None
            message, _ = read(memoryview(subscription), _VERSION.size)
        except (StructError, Malformed):
            return None
        topics.update(message.topics)
    return frozenset(topics)


def read_subscription(subscription: bytes) -> Steps[ClassicSubscription | None]:
    """A subscription; None if it is malformed. One of an unknown version is read as the newest that is known."""
    message = yield from _read("ConsumerProtocolSubscription", _NEWEST_SUBSCRIPTION, subscription)
    if message is None:
        return None
    owned = {partitions.topic: partitions.partitions for partitions in message.owned_partitions}
    return ClassicSubscription(frozenset(message.topics), owned, message.rack_id)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """A subscription in version 0."""
    return _VERSION.pack(0) + write_message(messages.ConsumerProtocolSubscription(topics=sorted(topics)), 0)
