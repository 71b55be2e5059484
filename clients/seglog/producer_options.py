"""The options of a producer."""

from dataclasses import dataclass
from operator import index
from typing import Final, SupportsIndex

from seglog.batching import BatchLimits
from seglog_protocol.compression import LEVELS, Codec
from seglog_protocol.messages import Ack
from seglog_protocol.record_batch import INT64_MAX

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

    def __post_init__(self) -> None:
        if self.ack not in {"none", "os", "disk"}:
            raise ValueError(f"ack is 'none', 'os' or 'disk', not {self.ack!r}")
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

    @property
    def needs_producer_id(self) -> bool:
        """Whether a producer id is needed; not at ack "none", where nothing is retried."""
        return self.idempotent and self.ack != "none"

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
