"""The partitions in assignments of members of the protocol type ``consumer``."""

from collections.abc import Iterable
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Final

from seglog_protocol.kafka import messages, read_message, write_message
from seglog_protocol.kafka.errors import Malformed

_VERSION: Final = Layout(">h")


def assigned_partitions(assignment: bytes) -> dict[str, list[int]] | None:
    """Topics and partitions of a ``ConsumerProtocolAssignment`` with its version before it; None if malformed.

    Empty bytes assign nothing. Every version begins with the fields of version 0, so that is how it is read.
    """
    if not assignment:
        return {}
    try:
        if _VERSION.unpack_from(assignment)[0] < 0:
            return None
        read = read_message(messages.ConsumerProtocolAssignment, 0, memoryview(assignment)[_VERSION.size :])
    except (StructError, Malformed):
        return None
    return {assigned.topic: sorted(assigned.partitions) for assigned in read.assigned_partitions}


def encode_assignment(partitions: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    """A ``ConsumerProtocolAssignment`` in version 0, with this version before it."""
    assigned = [
        messages.ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=sorted(numbers))
        for topic, numbers in partitions
    ]
    return _VERSION.pack(0) + write_message(messages.ConsumerProtocolAssignment(assigned_partitions=assigned), 0)
