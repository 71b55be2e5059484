"""Headers of dead letters: where the record came from that a share group gave up, and why (KIP-1191).

In this order, each value a text, numbers in decimal digits:

    __dlq.errors.topic            the topic of the record
    __dlq.errors.partition        its partition
    __dlq.errors.offset           its offset
    __dlq.errors.group            the share group
    __dlq.errors.delivery.count   how often it was delivered
    __dlq.errors.message          why it was given up: REJECTED or COUNT_EXCEEDED

A dead letter has no other headers, not those of the record. Its key and value are the record's where the group asks for
a copy (``errors.deadletterqueue.copy.record.enable``), else none; its timestamp is the moment when it was made. Source:
ShareGroupDLQStateManager of Apache Kafka 4.4.0, which writes each of these bytes.
"""

from typing import Final, NamedTuple

from seglog_protocol.records import Headers

REJECTED: Final = "Offset rejected by client."
COUNT_EXCEEDED: Final = "Offset delivery count exceeded the threshold."

_NAMES: Final = tuple(
    f"__dlq.errors.{name}" for name in ("topic", "partition", "offset", "group", "delivery.count", "message")
)


class DeadLetterOrigin(NamedTuple):
    """The headers of a dead letter."""

    topic: str
    partition: int
    offset: int
    group: str
    delivery_count: int
    message: str

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """They as a record has them."""
        return [(name, str(value).encode()) for name, value in zip(_NAMES, self, strict=True)]


def read_origin(headers: Headers) -> DeadLetterOrigin | None:
    """The origin of a dead letter; None of a record that is none."""
    found = dict(headers)
    try:
        topic, partition, offset, group, count, message = [(found[name] or b"").decode() for name in _NAMES]
        return DeadLetterOrigin(topic, int(partition), int(offset), group, int(count), message)
    except (KeyError, ValueError):
        return None
