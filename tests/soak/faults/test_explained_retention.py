"""The example of tests/unit/simulation/test_explained_retention.py with the real daemon, at a sixtieth of its times.

No limit here is about speed: no event may come before its prediction, and the logged times are compared with the
predictions with half a minute to spare for a busy machine.
"""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import seglog
from seglog_protocol.messages import ExplainedSegment
from tests.processes import Daemon, daemon, seglog_json

_FLAGS: Final = ("--set", "log.retention.check.interval.ms=5000", "--set", "log.initial.task.delay.ms=1000")
_TOPIC: Final = {"retention.ms": 10_000, "segment.bytes": 16_384, "file.delete.delay.ms": 1000}
_RECORDS: Final = 40
_SECONDS_A_SEGMENT: Final = 7.0
_RECORDS_A_SEGMENT: Final = 16
_ROUNDING_MS: Final = 50  # the loop's clock and the wall clock, each read once
_BUSY_MS: Final = 30_000


class Happened(NamedTuple):
    """Base offset -> when the segment left the log, and when the disk (ms of the daemon's clock)."""

    left: dict[int, float]
    gone: dict[int, float]


def what_was_logged(running: Daemon) -> Happened:
    happened = Happened({}, {})
    waiting: list[int] = []
    whole_lines, _, _ = running.log_text().rpartition("\n")
    for line in whole_lines.splitlines():
        event = json.loads(line)
        at_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
        if event["event"] == "segment_expired":
            happened.left[event["base_offset"]] = at_ms
            waiting.append(event["base_offset"])
        elif event["event"] == "files_removed":  # in the order in which they left the log
            count = int(event["what"].split()[0])
            happened.gone.update(dict.fromkeys(waiting[:count], at_ms))
            del waiting[:count]
    return happened


def check_told(segment: ExplainedSegment, happened: Happened) -> None:
    left, gone = happened.left[segment.base_offset], happened.gone[segment.base_offset]
    assert segment.gone_from_ms is not None
    assert segment.gone_by_ms is not None
    assert gone >= segment.gone_from_ms - _ROUNDING_MS
    if segment.state != "active":  # appends put off the active one
        assert gone <= segment.gone_by_ms + _BUSY_MS
    if segment.state == "deleted":
        return
    assert segment.leaves_from_ms is not None
    assert segment.leaves_by_ms is not None
    assert left >= segment.leaves_from_ms - _ROUNDING_MS
    if segment.state == "closed":
        assert left <= segment.leaves_by_ms + _BUSY_MS


def test_the_real_daemon_deletes_as_it_predicted(tmp_path: Path) -> None:
    told: list[ExplainedSegment] = []
    with daemon(tmp_path / "data", *_FLAGS) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, _TOPIC)
        with client.producer("t", linger_ms=0, ack="os") as producer:
            for _ in range(_RECORDS):
                producer.send(b"." * 950).result(60)
                told += client.explain.segments("t", 0).segments
                time.sleep(_SECONDS_A_SEGMENT / _RECORDS_A_SEGMENT)
        expected = {segment.base_offset for segment in told}
        assert len(expected) >= 3
        while set(what_was_logged(running).gone) < expected:  # bounded by the timeout of every test
            told += client.explain.segments("t", 0).segments
            time.sleep(0.25)
        (document,) = seglog_json(running.address, "explain", "segments", "t")
        happened = what_was_logged(running)
        assert running.stop() == 0
    for segment in told:
        if segment.size:
            check_told(segment, happened)
    assert {segment.state for segment in told} == {"active", "closed", "deleted"}
    assert {segment.rolled for segment in told if segment.state == "closed"} == {"size"}
    (left,) = document["segments"]
    assert (left["state"], left["size"], left["kept"]) == ("active", 0, "empty active segment")
    assert document["earliest"] == document["latest"] == _RECORDS
