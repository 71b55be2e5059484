"""The topics that members of the protocol type ``consumer`` name in their metadata."""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.steps import steps_of
from seglog_protocol.kafka import messages, write_message
from seglog_protocol.kafka.compiler import message_reader, message_reader_in_pieces
from seglog_protocol.kafka.errors import Malformed
from seglog_protocol.steps import Steps

_VERSION: Final = Layout(">h")
_NEWEST: Final = 3


class ClassicSubscription(NamedTuple):
    """What a consumer says in its metadata: topics by name, partitions by topic."""

    topics: frozenset[str]
    owned: Mapping[str, Sequence[int]]
    """What it has. Assignors that have a member give up everything before it joins have it say nothing here."""
    rack_id: str | None


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics in ``ConsumerProtocolSubscription``s with their versions before them; None if one is malformed.

    Every version begins with the fields of version 0, so that is how they are read.
    """
    read = message_reader("ConsumerProtocolSubscription", 0)
    topics: set[str] = set()
    for subscription in set(metadata):  # members of one application say the same
        try:
            if _VERSION.unpack_from(subscription)[0] < 0:
                return None
            message, _ = read(memoryview(subscription), _VERSION.size)
        except (StructError, Malformed):
            return None
        topics.update(message.topics)
    return frozenset(topics)


def read_subscription(metadata: bytes) -> Steps[ClassicSubscription | None]:
    """A ``ConsumerProtocolSubscription`` with its version before it; None if malformed.

    One of a version that is not known is read as the newest that is.
    """
    try:
        (version,) = _VERSION.unpack_from(metadata)
        if version < 0:
            return None
        read = message_reader_in_pieces("ConsumerProtocolSubscription", min(version, _NEWEST))
        message, _ = yield from steps_of(read(memoryview(metadata), _VERSION.size))
    except (StructError, Malformed):
        return None
    owned = {partitions.topic: partitions.partitions for partitions in message.owned_partitions}
    return ClassicSubscription(frozenset(message.topics), owned, message.rack_id)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """A ``ConsumerProtocolSubscription`` in version 0, with this version before it."""
    return _VERSION.pack(0) + write_message(messages.ConsumerProtocolSubscription(topics=sorted(topics)), 0)
