"""A group that reads slower than retention deletes: when it loses records is as `seglog group describe` told.

Told and observed moments are the daemon's: its answers, and the times in its log. Nothing may come before the time
told, and half a minute is spared for a busy machine, as in test_explained_retention.
"""

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import seglog
from seglog.client import Client
from seglog.groups import commit_offsets
from tests.processes import Daemon, daemon
from tests.processes import seglog as run

_CHECK_MS: Final = 2_000
_FLAGS: Final = ("--set", f"log.retention.check.interval.ms={_CHECK_MS}", "--set", "log.initial.task.delay.ms=1000")
_RETENTION_MS: Final = 20_000
_TOPIC: Final = {"retention.ms": _RETENTION_MS, "segment.bytes": 16_384}
_RECORDS_A_SEGMENT: Final = 16
_SEGMENTS: Final = 3
_ROUNDING_MS: Final = 50  # the loop's clock and the wall clock, each read once
_BUSY_MS: Final = 30_000


class Told(NamedTuple):
    """What was said of a committed offset: how many records are lost, and when the next one will be (epoch ms)."""

    offset: int
    lost: int
    from_ms: int
    by_ms: int


def fill(client: Client) -> None:
    """Closed segments that expire three seconds after each other, the first one in three seconds."""
    now_ms = time.time_ns() // 1_000_000
    with client.producer("t", linger_ms=0, ack="os") as producer:
        for number in range(_RECORDS_A_SEGMENT * _SEGMENTS + 1):
            expires_ms = now_ms + 3_000 * (1 + number // _RECORDS_A_SEGMENT)
            producer.send(b"." * 950, timestamp=expires_ms - _RETENTION_MS).result(60)


def describe(running: Daemon) -> tuple[Told, int]:
    """What the command says of the one partition, and its exit code."""
    done = run(running.address, "group", "describe", "slow", "--json")
    described: dict[str, Any] = json.loads(done.stdout)
    (found,) = described["offsets"]
    lag = found["lag"]
    assert described["lag"] == lag["records"] == lag["latest"] - max(found["offset"], lag["earliest"])
    return Told(found["offset"], lag["lost"], lag["loss_from_ms"], lag["loss_by_ms"]), done.returncode


def expired(running: Daemon) -> Iterator[tuple[int, float]]:
    """The base offsets of segments that left the log, and when."""
    whole_lines, _, _ = running.log_text().rpartition("\n")
    for line in whole_lines.splitlines():
        event = json.loads(line)
        if event["event"] == "segment_expired" and event["topic"] == "t":
            yield event["base_offset"], datetime.fromisoformat(event["timestamp"]).timestamp() * 1000


def test_a_slow_group_is_overtaken_when_it_was_told(tmp_path: Path) -> None:
    told: list[Told] = []
    with daemon(tmp_path / "data", *_FLAGS) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, _TOPIC)
        fill(client)
        offset, code = 0, 0
        while not code:  # it reads a record a turn, then hangs in the second segment; bounded by the test's timeout
            client.converse(commit_offsets("slow", {("t", 0): offset}))
            said, code = describe(running)
            told.append(said)
            offset = min(offset + 1, _RECORDS_A_SEGMENT + 8)
        described = run(running.address, "group", "describe", "slow")
        left = dict(expired(running))
    *before, last = told
    assert last.lost > 0
    assert all(said.lost == 0 for said in before)
    assert b"t-0: committed offset" in described.stderr
    assert b"cannot be read any more (expired)" in described.stderr
    assert b"LOST" in described.stdout

    for said in before:
        at_ms = left[max(base for base in left if base <= said.offset)]
        assert said.by_ms - said.from_ms <= _CHECK_MS, "told to within one check"
        assert said.from_ms - _ROUNDING_MS <= at_ms <= said.by_ms + _BUSY_MS
