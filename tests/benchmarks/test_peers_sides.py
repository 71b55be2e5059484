"""What a measurement becomes: rates in the unit of the case, processor time, and refusal of what does not add up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import MB, BenchmarkError
from benchmarks.peers import sides
from benchmarks.peers.cases import APPENDS, FETCHES
from benchmarks.peers.compaction import Ours, Records
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import iter_records

SMALL = next(case for case in APPENDS if not case.batch_bytes)
LARGE = next(case for case in APPENDS if case.batch_bytes)
FOUND: dict[str, Any] = {"answered": 3000, "seconds": 1.5, "client_cpu_seconds": 0.3}


def test_small_appends_are_counted_and_large_ones_are_megabytes() -> None:
    small = sides.appended(SMALL, {**FOUND, "server_cpu_seconds": 0.6}, 170)
    assert small.value == 2000
    assert small.client_busy == pytest.approx(0.2)
    assert small.server_cpu_us == pytest.approx(200)
    large = sides.appended(LARGE, {**FOUND, "p50": 0.001, "p99": 0.002}, 16_000)
    assert large.value == pytest.approx(2000 * 16_000 / MB)
    assert large.server_cpu_us is None
    assert (large.p50_us, large.p99_us) == (1000, 2000)


def test_fetches_are_worth_the_whole_batches_of_each_reply() -> None:
    # Two rounds through three requests, and the first request once more.
    found = {**FOUND, "answered": 7, "seconds": 2.0, "received": 22 * MB + 7 * 50}
    worths = [4 * MB, 4 * MB, 1 * MB]
    assert sides._exchanged(found, worths).value == pytest.approx((9 + 9 + 4) / 2)
    with pytest.raises(BenchmarkError, match="7 fetches gave 21999999 bytes instead of 22000000"):
        sides._exchanged({**found, "received": 22 * MB - 1}, worths)


def test_a_server_that_has_other_records_than_it_acknowledged_is_refused() -> None:
    sides._answered_as_stored("Kafka", 10, 148, 1480)
    for stored in (1332, 1481):
        with pytest.raises(BenchmarkError, match=f"Kafka answered 10 appends of 148 records, its log has {stored}"):
            sides._answered_as_stored("Kafka", 10, 148, stored)


class Finder:
    def __init__(self, offset: int) -> None:
        self.offset = offset

    def found(self, timestamps: Sequence[int]) -> list[int]:
        return [self.offset + at for at in timestamps]


def test_servers_that_find_different_offsets_for_a_time_are_refused() -> None:
    times = list(range(100))
    sides.agree({"seglog": Finder(0), "Kafka": Finder(0)}, times)
    with pytest.raises(BenchmarkError, match=r"seglog finds .*, Kafka"):
        sides.agree({"seglog": Finder(0), "Kafka": Finder(1)}, times)


def test_the_cases_are_those_that_stand_in_the_table() -> None:
    assert [(case.connections, case.depth, case.batch_bytes, case.ack) for case in APPENDS] == [
        (1, 1, 0, "os"),
        (1, 64, 0, "os"),
        (16, 1, 0, "os"),
        (16, 16, 0, "os"),
        (1, 1, 16_384, "os"),
        (1, 64, 16_384, "os"),
        (1, 5, 262_144, "os"),
        (1, 5, 1_048_576, "os"),
        (1, 1, 0, "disk"),
        (1, 64, 0, "disk"),
        (16, 1, 0, "disk"),
    ]
    assert [case.partition_bytes for case in FETCHES] == [1_048_576, 8_388_608]
    assert len({case.name for case in (*APPENDS, *FETCHES)}) == len(APPENDS) + len(FETCHES)


def test_both_cleaners_get_the_same_records_each_in_its_own_form(tmp_path: Path) -> None:
    records = Records(64 * 1024)
    log = records.write(tmp_path)
    assert len(log.bases) == 4
    # For Kafka's producer protocol each batch begins at 0; in our files it has its place. Nothing else differs.
    position, written = 0, b"".join((tmp_path / f"{base:020}.log").read_bytes() for base in log.bases)
    keys, offset = set(), 0
    for batch in records.batches[:-1]:
        ours = written[position : position + len(batch)]
        assert ours[8:] == batch[8:]
        assert batch[:8] == bytes(8)
        header = parse_header(ours)
        assert verify_crc(ours, 0, header)
        assert header.base_offset == offset
        assert len(ours) <= 16 * 1024
        keys |= {record.key for record in iter_records(header, ours)}
        offset += header.record_count
        position += len(batch)
    assert position == len(written) == log.size
    assert offset == log.end == records.end
    assert 0.9 < len(keys) / (offset * 0.1) <= 1
    assert all(size <= records.segment_bytes for size in records.sizes)
    # The batch behind the closed segments is what closes the last of them.
    assert records.sizes[-1] + len(records.batches[-1]) > records.segment_bytes
    assert Ours(log).clean().value > 0
