"""The partitions in assignments of members of the protocol type ``consumer``."""

from collections.abc import Iterable
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Final

from seglog_broker.coordinators.groups.steps import Pace, steps_of
from seglog_protocol.kafka import messages, write_message_in_pieces
from seglog_protocol.kafka.compiler import message_reader_in_pieces
from seglog_protocol.kafka.errors import Malformed
from seglog_protocol.steps import Steps, finished

_VERSION: Final = Layout(">h")


def assigned_partitions(assignment: bytes) -> dict[str, list[int]] | None:
    """As ``read_assignment``, at once."""
    return finished(read_assignment(assignment))


def read_assignment(assignment: bytes) -> Steps[dict[str, list[int]] | None]:
    """Topics and partitions of a ``ConsumerProtocolAssignment`` with its version before it; None if malformed.

    Empty bytes assign nothing. Every version begins with the fields of version 0, so that is how it is read.
    """
    if not assignment:
        return {}
    try:
        if _VERSION.unpack_from(assignment)[0] < 0:
            return None
        read = message_reader_in_pieces("ConsumerProtocolAssignment", 0)
        message, _ = yield from steps_of(read(memoryview(assignment), _VERSION.size))
    except (StructError, Malformed):
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
    """A ``ConsumerProtocolAssignment`` in version 0, with this version before it."""
    assigned = []
    pace = Pace()
    for topic, numbers in partitions:
        assigned.append(messages.ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=sorted(numbers)))
        if pace.is_due():
            yield
    message = messages.ConsumerProtocolAssignment(assigned_partitions=assigned)
    return _VERSION.pack(0) + (yield from steps_of(write_message_in_pieces(message, 0)))
