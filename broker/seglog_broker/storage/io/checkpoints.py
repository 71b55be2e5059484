"""Kafka's checkpoint files, read through ``FileSystem``. ``seglog_protocol.checkpoint_files`` has their text format."""

from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol.checkpoint_files import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    MalformedCheckpointError,
    TopicPartition,
    decode_checkpoint,
    decode_offsets,
    encode_checkpoint,
    encode_offsets,
    encoding_offsets,
)

__all__ = [
    "CLEANER_CHECKPOINT",
    "HIGH_WATERMARK_CHECKPOINT",
    "LEADER_EPOCH_CHECKPOINT",
    "LOG_START_CHECKPOINT",
    "RECOVERY_POINT_CHECKPOINT",
    "MalformedCheckpointError",
    "TopicPartition",
    "decode_checkpoint",
    "decode_offsets",
    "encode_checkpoint",
    "encode_offsets",
    "encoding_offsets",
    "read_offsets",
]


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The offsets in an offset checkpoint; empty when there is no file. Raises MalformedCheckpointError, OSError."""
    return decode_offsets(read_file(fs, path)) if fs.exists(path) else {}
