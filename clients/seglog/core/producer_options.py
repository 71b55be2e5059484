"""The options of a producer, how it begins, and what a program may pass as a record's value, key and headers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Final, SupportsIndex

from seglog.core.accumulator import BatchLimits, ProducerEpoch
from seglog.core.conversations import Conversation, ask, patiently, when_recovered
from seglog.core.topics import describe_for_producing
from seglog_protocol.compression import LEVELS, Codec
from seglog_protocol.errors import DiskFullError
from seglog_protocol.messages import Ack, InitProducerReply, InitProducerRequest, TopicDescription
from seglog_protocol.record_batch import INT64_MAX
from seglog_protocol.records import Headers

Content = bytes | bytearray | memoryview | str | None
HeaderInput = Mapping[str, Content] | Iterable[tuple[str, Content]]

_CODECS: Final = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The options of ``Client.producer``; sizes in bytes."""

    ack: Ack = "disk"
    linger_ms: float = 5
    batch_bytes: int = 64 * 1024
    compression: str = "none"
    compression_level: int | None = None
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout: float = 120.0
    idempotent: bool = True
    stop_at_failure: bool = False
    """Whether to send nothing more after a failure; only for ``write_arrow``."""
    may_create: bool = True
    """Whether to create a missing topic if the broker allows that; only ``write_arrow`` sets it."""
    transactional: bool = False
    """Whether batches belong to transactions; only for ``Client.transaction``, which has the producer id."""

    def __post_init__(self) -> None:
        if self.ack not in {"none", "os", "disk"}:
            raise ValueError(f"ack is 'none', 'os' or 'disk' (acks of Kafka: 0, 1 and all), not {self.ack!r}")
        if self.compression not in _CODECS:
            raise ValueError(f"compression is one of {', '.join(_CODECS)}, not {self.compression!r}")
        level: object = self.compression_level
        if level is not None and (not isinstance(level, SupportsIndex) or level not in LEVELS.get(self.codec, ())):
            raise ValueError(f"{self.compression} has no level {level!r}")
        for name in ("batch_bytes", "buffer_bytes", "delivery_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)!r}")
        if not self.linger_ms >= 0:
            raise ValueError(f"linger_ms must be 0 or more, not {self.linger_ms!r}")

    def begin(self, topic: str, *, may_create: bool) -> Conversation[tuple[TopicDescription, ProducerEpoch | None]]:
        """The topic, made if it is missing and both sides allow that; and a producer id, if batches need one.

        Batches of ack "none" need none, because nothing is retried.
        """
        description = yield from describe_for_producing(topic, may_create=self.may_create and may_create)
        needs_id = self.idempotent and self.ack != "none" and not self.transactional
        epoch = (yield from new_producer(self.delivery_timeout)) if needs_id else None
        return description, epoch

    @property
    def codec(self) -> Codec:
        """The codec named by ``compression``."""
        return _CODECS[self.compression]

    @property
    def level(self) -> int | None:
        """The compression level as a plain number."""
        return None if self.compression_level is None else index(self.compression_level)

    def limits(self, message_bytes_max: int) -> BatchLimits:
        """Plain numbers, whatever kind the program has, for a topic with batches of at most ``message_bytes_max``."""
        return BatchLimits(
            batch_bytes=int(min(self.batch_bytes, message_bytes_max)),
            buffer_bytes=int(min(self.buffer_bytes, INT64_MAX)),
            linger_seconds=float(self.linger_ms) / 1000,
            delivery_seconds=float(self.delivery_timeout),
        )


def new_producer(patience_seconds: float) -> Conversation[ProducerEpoch]:
    """A new id for an idempotent producer; if the request is repeated, the first id stays unused.

    On a full disk it retries, as for records; raises DiskFullError after ``patience_seconds``.
    """

    def asked(pause: float) -> Conversation[tuple[InitProducerReply, memoryview]]:
        return ask(InitProducerRequest(), InitProducerReply, is_repeatable=True, after_seconds=pause)

    reply, _ = yield from patiently(
        lambda pause: when_recovered(lambda more: asked(max(pause, more))),
        lambda error: isinstance(error, DiskFullError),
        patience_seconds,
    )
    return ProducerEpoch(reply.producer_id, reply.producer_epoch)


def to_bytes(content: Content, what: str) -> bytes | None:
    """``content`` as it is sent, text as UTF-8. Raises TypeError, for ``what`` of a record."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}")


def to_headers(headers: HeaderInput) -> Headers:
    """Headers as they are sent. Raises TypeError."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable):
        raise _no_pair(pairs)
    return tuple([_to_header(pair) for pair in pairs])


def _to_header(pair: tuple[str, Content]) -> tuple[str, bytes | None]:
    try:
        name, content = pair
    except (TypeError, ValueError):
        raise _no_pair(pair) from None
    if not isinstance(name, str):
        raise TypeError(f"the name of a record's header is str, not {type(name).__name__}")
    return name, to_bytes(content, "header value")


def _no_pair(given: object) -> TypeError:
    return TypeError(f"a record's headers are a mapping, or pairs of a name and a value, not {given!r}")
