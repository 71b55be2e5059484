"""Compaction of real events by a daemon and its cleaner process: which records stay, and that others are removed.

The expected result is a dict over the input file: of each of the 10,101 paths the last event stays, at its offset.
"""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import seglog
from tests.processes import Daemon, daemon, seglog_json, wait_until
from tests.processes import seglog as run_seglog
from tests.support import shared_data

_TOPIC = (
    *("topic", "create", "files", "--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0"),
    *("--config", "segment.ms=2000", "--config", "retention.ms=-1", "--config", "delete.retention.ms=5000"),
    *("--config", "file.delete.delay.ms=0"),
)
_DAEMON = ("--set", "log.initial.task.delay.ms=0", "--set", "log.cleaner.backoff.ms=100")
_PRODUCE = ("produce", "files", "--format", "json", "--key-field", "path", "--timestamp-field", "ts")

Latest = dict[bytes, tuple[int, bytes]]
"""By key: the offset and the value of its last write."""


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return gzip.decompress(shared_data("commit-events.jsonl.gz").read_bytes()).splitlines()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "data", *_DAEMON) as started:
        yield started


def _found(running: Daemon) -> tuple[Latest, list[tuple[int, int, str]], int]:
    """All that a consumer gets: records by key, gaps, and the number of records."""
    found: Latest = {}
    count = 0
    with seglog.connect(running.address) as client, client.consumer("files", start=0) as consumer:
        for record in consumer:
            assert record.key is not None
            count += 1
            found[record.key] = record.offset, record.value or b""
        gaps = [(gap.start, gap.end, gap.reason) for gap in consumer.gaps]
        if consumer.gaps.total <= len(gaps):
            assert consumer.gaps.offsets_total == sum(end - start for start, end, _ in gaps)
    return found, gaps, count


def _files(running: Daemon) -> dict[str, bytes]:
    folder = running.directory / "files-0"
    content = {}
    for path in folder.iterdir():
        try:
            content[path.name] = path.read_bytes()
        except FileNotFoundError:
            continue  # it went meanwhile
    return content


def test_compaction_keeps_the_last_event_of_each_key(running: Daemon, lines: list[bytes]) -> None:
    """It stays at its offset; deleted keys leave the files."""
    latest: Latest = {json.loads(line)["path"].encode(): (offset, line) for offset, line in enumerate(lines)}
    assert len(latest) == 10_101
    assert run_seglog(running.address, *_TOPIC).returncode == 0
    produced = run_seglog(running.address, *_PRODUCE, stdin=b"\n".join(lines))
    assert produced.returncode == 0, produced.stderr.decode()
    wait_until(lambda: _found(running)[2] == len(latest), "compaction")

    found, gaps, count = _found(running)
    assert found == latest
    assert count == len(latest)
    assert {reason for _, _, reason in gaps} == {"compacted"}
    (offsets,) = seglog_json(running.address, "offsets", "files")
    assert (offsets["earliest"], offsets["latest"]) == (0, len(lines))

    # Keys that appear nowhere but in their own records, so that a search for their bytes means something.
    text = b"\n".join(value for _, value in latest.values())
    doomed = [key for key in latest if len(re.findall(re.escape(key), text)) == 1][:100]
    assert len(doomed) == 100
    with seglog.connect(running.address) as client, client.producer("files") as producer:
        for key in doomed:
            producer.send(None, key=key)
    found, _, count = _found(running)
    assert [found[key][1] for key in doomed] == [b""] * 100, "a tombstone is seen before its time is over"
    wait_until(lambda: _found(running)[2] == len(latest) - 100, "the tombstones to go")
    assert _found(running)[0] == {key: latest[key] for key in latest.keys() - set(doomed)}
    wait_until(lambda: not [n for n in _files(running) if n.endswith((".deleted", ".cleaned", ".swap"))], "old files")
    everything = b"".join(_files(running).values())
    assert [key for key in doomed if key in everything] == []
    assert all(key in everything for key in latest.keys() - set(doomed))

    assert running.stop() == 0
    running.start()
    assert _found(running)[0] == {key: latest[key] for key in latest.keys() - set(doomed)}
