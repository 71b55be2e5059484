"""Recompression: a batch gets the codec of its topic (``compression.type``) before it is appended.

The records are opened and compressed again as they are, none is read. Of the header only codec, length and checksum
change: offsets, timestamps, sequences and record count stay. A batch that has the codec already stays as it is,
whatever its level. Kafka does the same, except that it writes every record anew. (``inPlaceAssignment`` in its
LogValidator.validateMessagesAndAssignOffsetsCompressed.) Compaction keeps the codec of a batch, as Kafka's does.

A small batch is recompressed on the loop, others in a worker process (``recompressor``).
"""

from typing import Final, NamedTuple

from seglog_broker.config import TopicConfig
from seglog_protocol import errors
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec, compress, decompress
from seglog_protocol.record_batch import CODEC_MASK, HEADER_SIZE, BatchHeader, seal_batch

_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
"""By the values of ``compression.type``."""


def _level(codec: Codec, config: TopicConfig) -> int | None:
    """The level of a codec; None of one that has none."""
    level: int | None = getattr(config, f"compression_{codec.name.lower()}_level", None)
    return level


_DEFAULTS: Final = TopicConfig()

IN_LINE_BYTES_MAX: Final = 16 * 1024
"""The most bytes of records that are recompressed on the loop with a default level, which takes 0.2 ms at worst."""

_GZIP_IN_LINE_BYTES_MAX: Final = 4 * 1024
"""The same for gzip, which takes 0.4 ms at worst."""

_LEVEL_IN_LINE_BYTES_MAX: Final = 1024
"""The same with a level of the topic's own: the highest ones take up to a hundred times as long, here 0.4 ms."""


class Recompression(NamedTuple):
    """What a topic wants of a batch that it stores: a codec, and at most ``batch_bytes_max`` bytes.

    ``level`` is that of the codec, None where it has none.
    """

    codec: Codec
    level: int | None
    batch_bytes_max: int

    @property
    def in_line_bytes_max(self) -> int:
        """The most bytes of records that are recompressed on the loop."""
        if self.level != _level(self.codec, _DEFAULTS):
            return _LEVEL_IN_LINE_BYTES_MAX
        return _GZIP_IN_LINE_BYTES_MAX if self.codec is Codec.GZIP else IN_LINE_BYTES_MAX


def recompression(config: TopicConfig) -> Recompression | None:
    """What a topic wants of the batches that it stores; None if they stay as they were sent."""
    if config.compression_type == "producer":
        return None
    codec = _CODECS[config.compression_type]
    return Recompression(codec, _level(codec, config), config.max_message_bytes)


def recompress_small(header: BatchHeader, batch: memoryview, wanted: Recompression) -> bytearray | None:
    """As ``recompress`` if that is quick; None if it would take long."""
    limit = wanted.in_line_bytes_max
    if header.size > HEADER_SIZE + limit:
        return None
    try:
        return recompress(header, batch, wanted, limit)
    except errors.InvalidRecordError as error:
        if isinstance(error.__cause__, errors.DecompressedTooLargeError):
            return None
        raise


def recompress(
    header: BatchHeader, batch: memoryview, wanted: Recompression, size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> bytearray:
    """The checked ``batch``, the whole of it, with the codec that is wanted.

    Raises InvalidRecordError if the records cannot be opened, or decompress to more than ``size_limit`` bytes, and
    MessageTooLargeError if they are more than that without compression, or if the new batch is too large.
    """
    stored = batch[HEADER_SIZE : header.size]
    if header.codec_id == Codec.NONE and len(stored) > size_limit:  # nobody would open them again
        raise errors.MessageTooLargeError(
            f"the records have {len(stored)} bytes, to be compressed they may have {size_limit}: send less at once",
            size=len(stored),
            limit=size_limit,
        )
    try:
        records = decompress(header.codec, stored, size_limit)
    except errors.CorruptRecordError as error:
        raise errors.InvalidRecordError(f"the batch's records cannot be read: {error.message}") from error
    attributes = header.attributes & ~CODEC_MASK | wanted.codec
    packed = compress(wanted.codec, records, wanted.level)
    # Kafka compares the size with max.message.bytes twice: as the batch was sent, and as LogValidator made it
    # (UnifiedLog.append, messageSizeMaybeChanged).
    size = HEADER_SIZE + len(packed)
    if size > wanted.batch_bytes_max:
        raise errors.MessageTooLargeError(
            f"with the topic's compression.type the batch has {size} bytes, more than max.message.bytes = "
            f"{wanted.batch_bytes_max}: send less at once",
            size=size,
            limit=wanted.batch_bytes_max,
        )
    return bytearray(seal_batch(header._replace(attributes=attributes), packed))
