"""Log directories for tests: started on the forgetful double, and as Kafka leaves them."""

from typing import Any

from seglog_broker.config import load_config
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.filenames import encode_partition_metadata
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import ManualClock, batch


def opened(fs: FileSystem, *flags: str, path: str = "/data", **how: Any) -> LogDirectory:
    """What a start with these settings makes of the directory. Raises LogDirectoryError."""
    config, _ = load_config(None, "", {}, [f"log.dir={path}", *flags])
    return open_log_directory(fs, ManualClock(), config, path, **how)


def put(fs: ForgetfulFileSystem, path: str, content: bytes) -> None:
    """Make a file anew behind the broker's back; a power cut does not take it away."""
    if fs.exists(path):
        fs.unlink(path)
        fs.sync_directory(path.rpartition("/")[0])
    fs.load({path: content})


def kafka_partition(topic_id: str) -> dict[str, bytes]:
    """The files that Kafka makes of a new partition with one record."""
    value = bytearray(batch(b"of Kafka"))
    rewrite_offset_and_epoch(value, 0, 0, 0)
    return {
        "00000000000000000000.log": bytes(value),
        "00000000000000000000.index": b"",
        "00000000000000000000.timeindex": b"",
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
        "partition.metadata": encode_partition_metadata(topic_id),
    }
