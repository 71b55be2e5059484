"""Offsets without a record, with real clients and a real daemon: truncated under a reader, lost, compacted."""

from pathlib import Path

import pytest

import seglog
import seglog.trio
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from tests.logs import flip_bit
from tests.processes import Daemon, daemon

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
