"""What ``seglog explain segments`` prints, at the widths of terminals."""

from datetime import UTC

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.segment_table import lines_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import format_time
from seglog_protocol.messages import (
    ConfigEntry,
    ExplainedSegment,
    ExplainSegmentsReply,
    PartitionCompaction,
    SegmentCompaction,
)

NOW = 1_700_000_000_000
MINUTE = 60_000

SEGMENTS = [
    ExplainedSegment(
        *(0, 16, 16_384, "deleted", "the time rule took it out of the log; its files wait for file.delete.delay.ms"),
        rule="time",
        gone_from_ms=NOW + 40_000,
        gone_by_ms=NOW + 40_000,
    ),
    ExplainedSegment(
        *(16, 32, 16_384, "closed"),
        "its newest record is 8 min 20 s old and retention.ms = 600000 (10 min) keeps it",
        first_timestamp=NOW - 15 * MINUTE,
        largest_timestamp=NOW - 8 * MINUTE,
        rolled="size",
        rolled_ms=NOW - 8 * MINUTE,
        kept="age",
        leaves_from_ms=NOW + 2 * MINUTE,
        leaves_by_ms=NOW + 7 * MINUTE,
        gone_from_ms=NOW + 3 * MINUTE,
        gone_by_ms=NOW + 8 * MINUTE,
        bytes_to_come=1200,
        compaction=SegmentCompaction(3, 500),
    ),
    ExplainedSegment(
        *(32, 48, 16_384, "closed", "retention.ms = -1 sets no limit to its age"),
        largest_timestamp=NOW - MINUTE,
        bytes_to_come=20_000,
        warnings=["its largest timestamp, 9, lies in the future: it ages from its modification time"],
    ),
    ExplainedSegment(
        *(48, 51, 3_072, "active", "its newest record is 22 s old; appends put that off"),
        first_timestamp=NOW - MINUTE,
        largest_timestamp=NOW - 22_000,
        leaves_from_ms=NOW,
        leaves_by_ms=NOW + 5 * MINUTE,
        gone_from_ms=NOW + MINUTE,
        gone_by_ms=NOW + 6 * MINUTE,
        idle_roll_ms=NOW + 7 * 24 * 60 * MINUTE,
    ),
]
PARTITION = ExplainSegmentsReply(
    *("commits", 0, NOW, 16, 51, 3, 35_840, 1, 16_384, 5 * MINUTE, NOW + 2 * MINUTE),
    earliest_reason="expired",
    config={"retention.ms": ConfigEntry("600000", "topic"), "retention.bytes": ConfigEntry("-1", "default")},
    doubts=["the clock was set forward by 1 h: nothing expires by age at the next check"],
    problems=["commits-0: retention is held up: the disk is full"],
    compaction=PartitionCompaction(0.5, 16, 48, NOW - MINUTE, 1000, 200, "no room", "it is paused"),
)

AT_80 = """\
commits-0: offsets 16 to 50, 3 segments, 35,840 bytes, next offset 51
  on disk  also 1 segment, 16,384 bytes that left the log
  begins   at 16, the records before it have expired
  settings retention.ms=600000 (topic), retention.bytes=-1 (default)
  now      2023-11-14T22:13:20.000Z
  check    in 2 min, at 2023-11-14T22:15:20.000Z; every 5 min
  cleaner  dirty ratio 0.50; dirty from offset 16, cleanable up to 48; last run
           1 min ago, at 2023-11-14T22:12:20.000Z; 1,000 bytes before and 200
           after it; last error: no room; it is paused
  doubt    the clock was set forward by 1 h: nothing expires by age at the next
           check
  problem  commits-0: retention is held up: the disk is full

SEGMENT  NEXT  BYTES   STATE    LEAVES THE LOG      LEAVES THE DISK
      0    16  16,384  deleted  has left            in 40 s
    why      the time rule took it out of the log; its files wait for
             file.delete.delay.ms
    leaves   the disk 2023-11-14T22:14:00.000Z
     16    32  16,384  closed   in 2 min to 7 min   in 3 min to 8 min
    records  2023-11-14T21:58:20.000Z to 2023-11-14T22:05:20.000Z
    rolled   size, 8 min ago, at 2023-11-14T22:05:20.000Z
    why      its newest record is 8 min 20 s old and retention.ms = 600000 (10
             min) keeps it
    leaves   the log 2023-11-14T22:15:20.000Z to 2023-11-14T22:20:20.000Z
             the disk 2023-11-14T22:16:20.000Z to 2023-11-14T22:21:20.000Z
    or       by the check after 1,200 more bytes
    cleaner  would drop 3 records, 500 bytes
     32    48  16,384  closed   after 20,000 bytes  -
    records  2023-11-14T22:12:20.000Z
    rolled   for a reason that was not recorded
    why      retention.ms = -1 sets no limit to its age
    leaves   by the check after 20,000 more bytes
    warning  its largest timestamp, 9, lies in the future: it ages from its
             modification time
     48    51   3,072  active   within 5 min        in 1 min to 6 min
    records  2023-11-14T22:12:20.000Z to 2023-11-14T22:12:58.000Z
    rolls    in 7 d, at 2023-11-21T22:13:20.000Z, by the idle timer, if nothing
             closes it before
    why      its newest record is 22 s old; appends put that off
    leaves   the log 2023-11-14T22:13:20.000Z to 2023-11-14T22:18:20.000Z
             the disk 2023-11-14T22:14:20.000Z to 2023-11-14T22:19:20.000Z
"""


def test_a_partition_with_a_segment_in_every_state_at_80_columns() -> None:
    assert list(lines_of(PartitionExplanation(PARTITION, SEGMENTS), UTC, 80)) == AT_80.splitlines()


def test_the_check_that_does_it_is_named_to_the_second() -> None:
    sure = msgspec.structs.replace(PARTITION, doubts=[], problems=[])
    shown = [" ".join(line.split()) for line in lines_of(PartitionExplanation(sure, SEGMENTS), UTC, 160)]
    assert "16 32 16,384 closed in 2 min in 3 min" in shown
    assert "48 51 3,072 active in 2 min in 3 min" in shown
    assert "leaves the log 2023-11-14T22:15:20.000Z" in shown
    assert "leaves the log 2023-11-14T22:15:20.000Z, at the check after 2023-11-14T22:13:20.000Z" in shown
    while_it_runs = msgspec.structs.replace(sure, next_check_ms=NOW)
    shown = [" ".join(line.split()) for line in lines_of(PartitionExplanation(while_it_runs, SEGMENTS), UTC, 160)]
    assert "48 51 3,072 active within 5 min in 1 min to 6 min" in shown


@given(due=st.integers(0, 30 * MINUTE), first=st.integers(1, 5 * MINUTE), delay=st.integers(0, 10 * MINUTE))
def test_the_check_named_is_the_first_one_after_a_segment_is_due(due: int, first: int, delay: int) -> None:
    checks = range(NOW + first, NOW + 60 * MINUTE, 5 * MINUTE)
    does_it = next(check for check in checks if check >= NOW + due)
    from_ms = max(NOW + due, NOW + first)
    segment = msgspec.structs.replace(
        SEGMENTS[-1],
        leaves_from_ms=from_ms,
        leaves_by_ms=from_ms + 5 * MINUTE,
        gone_from_ms=from_ms + delay,
        gone_by_ms=from_ms + delay + 5 * MINUTE,
    )
    sure = msgspec.structs.replace(PARTITION, doubts=[], problems=[], next_check_ms=NOW + first)
    shown = "\n".join(lines_of(PartitionExplanation(sure, [segment]), UTC, 250))
    assert f"leaves   the log {format_time(does_it)}" in shown
    assert f"the disk {format_time(does_it + delay)}" in shown


def test_where_the_row_is_too_wide_the_disk_is_told_below_it_only() -> None:
    narrow = "\n".join(lines_of(PartitionExplanation(PARTITION, SEGMENTS), UTC, 65))
    assert "LEAVES THE LOG" in narrow
    assert "LEAVES THE DISK" not in narrow
    assert narrow.count("the disk 2023") == 3


@given(st.integers(75, 250))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines_of(PartitionExplanation(PARTITION, SEGMENTS), UTC, width))) <= width


def test_a_machines_own_zone_is_shown_with_its_times() -> None:
    for line in lines_of(PartitionExplanation(PARTITION, SEGMENTS), None, 120):
        assert "Z" not in line
