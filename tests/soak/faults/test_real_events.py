"""The quick start on real events: 101,229 commits of 2011 to 2024, through processes, as a user would do it.

The replies of the broker are compared with an independent computation from the input file: partitions by a murmur2 of
its own, offsets by counting, the first record of a time by a plain scan.
"""

import gzip
import itertools
import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import seglog
from tests.processes import Daemon, daemon, seglog_json
from tests.processes import seglog as run_seglog
from tests.support import shared_data

_PARTITIONS = 3
_CREATE = (
    *("topic", "create", "commits", "--partitions", str(_PARTITIONS), "--config", "segment.bytes=262144"),
    *("--config", "segment.ms=9223372036854775807", "--config", "retention.ms=-1"),
)
_PRODUCE = ("produce", "commits", "--format", "json", "--key-field", "path", "--timestamp-field", "ts")


class Event(NamedTuple):
    timestamp: int
    key: str
    value: bytes


class Loaded(NamedTuple):
    daemon: Daemon
    lines: bytes
    expected: list[list[Event]]  # by partition, in order: the offset is the place in the list


def _murmur2(data: bytes) -> int:
    """Kafka's partitioner hash, implemented again from its definition."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """The events, produced once through the command line into a daemon that stays for the whole module."""
    lines = gzip.decompress(shared_data("commit-events.jsonl.gz").read_bytes())
    expected: list[list[Event]] = [[] for _ in range(_PARTITIONS)]
    for line in lines.splitlines():
        event = json.loads(line)
        expected[_murmur2(event["path"].encode()) % _PARTITIONS].append(Event(event["ts"], event["path"], line))
    with daemon(tmp_path_factory.mktemp("events") / "data") as running:
        assert run_seglog(running.address, *_CREATE).returncode == 0
        produced = run_seglog(running.address, *_PRODUCE, stdin=lines)
        assert produced.returncode == 0, produced.stderr.decode()
        assert b"101,229 records" in produced.stderr
        yield Loaded(running, lines, expected)


def _check_everything(loaded: Loaded) -> None:
    offsets = seglog_json(loaded.daemon.address, "offsets", "commits")
    assert [(o["earliest"], o["latest"], o["durable"]) for o in offsets] == [
        (0, len(events), len(events)) for events in loaded.expected
    ]
    with seglog.connect(loaded.daemon.address) as client, client.consumer("commits", start="earliest") as consumer:
        found: list[list[Event]] = [[] for _ in range(_PARTITIONS)]
        for record in consumer:
            assert record.offset == len(found[record.partition])
            assert record.key is not None
            assert record.value is not None
            found[record.partition].append(Event(record.timestamp, record.key.decode(), record.value))
    assert found == loaded.expected


def test_two_hundred_moments_lead_to_the_offsets_of_a_plain_scan(loaded: Loaded) -> None:
    times = sorted({event.timestamp for events in loaded.expected for event in events})
    out_of_order = [
        earlier.timestamp
        for events in loaded.expected
        for earlier, later in itertools.pairwise(events)
        if later.timestamp < earlier.timestamp
    ]
    assert len(out_of_order) > 50, "commits that were not made in the order in which they were merged"
    asked = [times[0] - 1, *times[:: len(times) // 100], times[-1] + 1, *out_of_order[:100]]
    with seglog.connect(loaded.daemon.address) as client:
        for moment in asked:
            for found in client.offsets("commits", at=f"@{moment}"):
                events = loaded.expected[found.partition]
                wanted = next((offset for offset, event in enumerate(events) if event.timestamp >= moment), None)
                assert found.offset == wanted


def test_all_events_are_in_with_their_own_bytes_also_after_a_stop_and_a_start(loaded: Loaded) -> None:
    assert sum(map(len, loaded.expected)) == 101_229
    _check_everything(loaded)
    assert loaded.daemon.stop() == 0
    assert (loaded.daemon.directory / ".kafka_cleanshutdown").exists()
    loaded.daemon.start()
    assert not (loaded.daemon.directory / ".kafka_cleanshutdown").exists()
    _check_everything(loaded)
