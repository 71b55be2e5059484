"""Retention in a real daemon with short times: removed files, gaps for readers, and kills meanwhile.

Nothing here depends on speed: waits are for a visible event, and whether a record may be deleted is computed from its
own timestamp.
"""

from pathlib import Path

import pytest

import seglog
from seglog_protocol.errors import OffsetOutOfRangeError
from tests.processes import Daemon, daemon, wait_until
from tests.support import numbers_of

_SHORT = (
    *("--set", "log.initial.task.delay.ms=0", "--set", "log.retention.check.interval.ms=20"),
    *("--set", "log.flush.offset.checkpoint.interval.ms=50", "--set", "log.segment.delete.delay.ms=50"),
)


def files(running: Daemon) -> list[str]:
    """Names of the segments' files, those set aside included; no producer snapshots."""
    names = [path.name for path in (running.directory / "t-0").iterdir()]
    return sorted(name for name in names if name[0] == "0" and ".snapshot" not in name)


def fill(client: seglog.Client, count: int, topic: str = "t") -> None:
    """Produce records, each in its own batch, about fourteen in a segment of 1024 bytes."""
    with client.producer(topic) as producer:
        for number in range(count):
            producer.send(b"%d" % number)
            producer.flush()


def test_expired_segments_leave_the_log_then_the_disk(tmp_path: Path) -> None:
    """First the log, then their names, then the disk; readers are given the gap."""
    with daemon(tmp_path / "data", *_SHORT) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, config={"segment.bytes": 1024, "retention.ms": -1, "file.delete.delay.ms": 1500})
        fill(client, 50)
        before = files(running)
        assert len(before) >= 3 * 3
        with client.consumer("t", start=0, follow=True, partition_bytes=1) as consumer:
            assert next(iter(consumer)).offset == 0
            client.alter_topic("t", config={"retention.bytes": 1024})
            wait_until(lambda: client.offsets("t")[0].earliest != 0, "the log start to move")
            start = client.offsets("t")[0].earliest
            aside = {name for name in files(running) if name.endswith(".deleted")}
            wait_until(lambda: before[0] not in files(running), "names to change")
            assert aside <= {f"{name}.deleted" for name in before}
            with pytest.raises(OffsetOutOfRangeError) as caught:
                list(consumer)
            assert (caught.value.reason, caught.value.earliest, caught.value.latest) == ("expired", start, 50)
        wait_until(lambda: not any(name.endswith(".deleted") for name in files(running)), "the files to go")
        left = files(running)
        assert left == before[-len(left) :]
        assert int(left[0][:20]) == start
        numbers = numbers_of(client)
        gone = [name for name in before if name.endswith(".log") and name not in left]
        assert numbers["segments_expired_total"] == len(gone)
        assert numbers["expired_bytes_total"] > 0


def test_an_idle_log_ends_as_one_empty_segment(tmp_path: Path) -> None:
    """And a deleted topic as nothing."""
    with daemon(tmp_path / "data", *_SHORT) as running, seglog.connect(running.address) as client:
        short = {"segment.ms": 100, "retention.ms": 200, "file.delete.delay.ms": 50}
        client.create_topic("t", 1, config=short)
        fill(client, 5)
        suffixes = ("index", "log", "timeindex")
        wait_until(lambda: files(running) == [f"{5:020d}.{suffix}" for suffix in suffixes], "everything to expire")
        assert client.offsets("t")[0].earliest == 5
        with client.producer("t") as producer:
            assert producer.send(b"more").result(timeout=60).offset == 5
        client.delete_topic("t")
        client.create_topic("t", 1)
        fill(client, 2)
        wait_until(lambda: not list(running.directory.glob("*-delete")), "the deleted topic's directory to go")
        with client.consumer("t") as consumer:
            assert [record.value for record in consumer] == [b"0", b"1"]
