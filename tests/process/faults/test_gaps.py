"""Offsets without a record, with real clients and a real daemon: truncated under a reader, lost, compacted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import seglog
import seglog.trio
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from tests.interop.golden import load_case, unpack
from tests.logs import flip_bit
from tests.processes import Daemon, daemon
from tests.processes import seglog as run_seglog

SMALL_SEGMENTS = {"segment.bytes": "1024"}


def fill(running: Daemon, count: int) -> None:
    """Records "0", "1", ... of topic t, each in a batch of its own, some fourteen in a segment."""
    with seglog.connect(running.address) as client:
        client.create_topic("t", 1, SMALL_SEGMENTS)
        with client.producer("t") as producer:
            for number in range(count):
                producer.send(b"%d" % number)
                producer.flush()


def segments(running: Daemon) -> list[Path]:
    """The logs, in offset order."""
    return sorted((running.directory / "t-0").glob("*.log"))


def read(running: Daemon, **options: object) -> tuple[list[int], list[tuple[int, int, str]]]:
    """The values and the gaps that a consumer gets."""
    told: list[seglog.ConsumerGap] = []
    with (
        seglog.connect(running.address) as client,
        client.consumer("t", on_gap=told.append, **options) as consumer,  # type: ignore[call-overload]
    ):
        values = [int(record.value or b"") for record in consumer]
    return values, [(gap.start, gap.end, gap.reason) for gap in told]


def test_a_reader_that_truncation_overtakes_gets_the_gap(tmp_path: Path) -> None:
    with daemon(tmp_path / "data") as running:
        fill(running, 20)
        with (
            seglog.connect(running.address) as client,
            client.consumer("t", start=0, follow=True, on_out_of_range="earliest", partition_bytes=1) as consumer,
            client.consumer("t", start=0, follow=True, partition_bytes=1) as strict,
        ):
            values = [int(next(iter(consumer)).value or b"")]
            next(iter(strict))
            client.truncate_topic("t", {0: 15})
            for record in consumer:
                values.append(int(record.value or b""))
                if values[-1] == 19:
                    break
            [gap] = consumer.gaps
            assert (gap.end, gap.reason) == (15, "truncated")
            assert values == [*range(gap.start), *range(15, 20)], "what was on its way already has come"
            with pytest.raises(OffsetOutOfRangeError, match="the records before 15 were deleted") as caught:
                list(strict)
            assert (caught.value.reason, caught.value.earliest) == ("truncated", 15)
        done = run_seglog(running.address, "consume", "t", "--from", "3", "--on-out-of-range", "earliest")
        assert done.stdout.split() == [b"%d" % number for number in range(15, 20)]
        assert done.stderr == b"seglog: warning: offsets 3 to 14 of t-0 hold no record (truncated)\n"
        refused = run_seglog(running.address, "consume", "t", "--from", "3")
        assert (refused.returncode, refused.stdout) == (4, b"")
        assert b"were deleted" in refused.stderr


def test_a_lost_segment_is_a_gap_and_damage_is_an_error(tmp_path: Path) -> None:
    """The error says at which offset to go on."""
    with daemon(tmp_path / "data") as running:
        fill(running, 60)
        running.kill()
        logs = segments(running)
        bases = [int(path.stem) for path in logs]
        for suffix in (".log", ".index", ".timeindex"):
            logs[1].with_suffix(suffix).unlink()
        flip_bit(PosixFileSystem(), str(logs[2]), logs[2].stat().st_size // 2)
        running.start()
        with pytest.raises(CorruptRecordError) as caught:
            read(running)
        damaged, behind = caught.value.start_offset, caught.value.next_offset
        assert bases[2] <= damaged < behind <= bases[3]
        missing = (bases[1], bases[2], "missing")
        assert read(running, until=damaged) == ([*range(bases[1]), *range(bases[2], damaged)], [missing])
        assert read(running, start=behind) == (list(range(behind, 60)), [])
        done = run_seglog(running.address, "consume", "t", "--until", str(damaged))
        assert done.stdout.split() == [b"%d" % number for number in (*range(bases[1]), *range(bases[2], damaged))]
        warning = f"seglog: warning: offsets {bases[1]} to {bases[2] - 1} of t-0 hold no record (missing)\n"
        assert done.stderr.decode() == warning


def held_by_kafka(facts: Mapping[str, Any]) -> set[int]:
    """Offsets of control batches, which are not gaps, as listed by Kafka's own tool."""
    columns = facts["disk"]["batch_columns"]
    batches = [dict(zip(columns, row, strict=True)) for row in facts["disk"]["batches"]]
    return {n for b in batches if b["isControl"] for n in range(b["baseOffset"], b["lastOffset"] + 1)}


@pytest.mark.soak
@pytest.mark.parametrize("stopped", ["in order", "killed"])
def test_what_kafka_compacted_is_named_compacted_to_the_last_offset(stopped: str, tmp_path: Path) -> None:
    case = load_case("compacted")
    unpack(case, tmp_path / "data")
    if stopped == "killed":
        (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    topics = {name.rpartition("-")[0]: facts for name, facts in case.partitions.items() if not name.startswith("__")}
    with daemon(tmp_path / "data") as running, seglog.connect(running.address) as client:
        for topic, facts in topics.items():
            with client.consumer(topic) as consumer:
                held = {record.offset for record in consumer} | held_by_kafka(facts)
                gaps = list(consumer.gaps)
                [end] = consumer.positions().values()
            told = [offset for gap in gaps for offset in range(gap.start, gap.end)]
            assert told == [offset for offset in range(end) if offset not in held], topic
            assert {gap.reason for gap in gaps} == {"compacted"}, topic
            done = run_seglog(running.address, "consume", topic)
            assert done.stderr.decode() == f"seglog: note: {len(told)} offsets without a record (compacted)\n"
