"""Directories that Kafka wrote, read without a broker: the same rows, ends and times as from our storage engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog.directory.topics import LogDirectory
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.records import decode_records
from tests.interop.golden import CASES, Case, Read, adopted, load_case, log_of, offset_for_time, read_everything
from tests.interop.golden import row_of, unpack

PIECE_BYTES = 16 * 1024


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


@pytest.fixture
def directory(case: Case, tmp_path: Path) -> Path:
    unpack(case, tmp_path)
    return tmp_path


def read_files(path: Path, topic: str, partition: int) -> Read:
    """What a consumer that goes on behind every damaged range gets."""
    read = Read()
    start = None
    while True:
        with LogDirectory(path).consumer(
            topic, partitions=[partition], start=start, partition_bytes=PIECE_BYTES
        ) as consumer:
            try:
                for batch in consumer.batches():
                    first, end = batch.start_offset, batch.end_offset
                    records = decode_records(batch.header, batch.data)
                    read.rows += [row_of(record, batch.header) for record in records if first <= record.offset < end]
            except CorruptRecordError as error:
                assert error.next_offset > error.start_offset, "an error that leads nowhere"
                read.damaged.append((error.start_offset, error.next_offset))
                start = {partition: error.next_offset}
                continue
            return read


def places(case: Case) -> Iterator[tuple[str, str, int]]:
    for name in case.partitions:
        topic, _, partition = name.rpartition("-")
        yield name, topic, int(partition)


def test_topics_and_partitions_are_those_that_were_packed(case: Case, directory: Path) -> None:
    there = LogDirectory(directory).topics()
    assert {f"{topic}-{number}" for topic, numbers in there.items() for number in numbers} == set(case.partitions)


def test_rows_ends_and_times_are_those_of_our_storage_engine(case: Case, directory: Path) -> None:
    logs = LogDirectory(directory)
    files = {name: logs.partition(topic, partition) for name, topic, partition in places(case)}
    read = {name: read_files(directory, topic, partition) for name, topic, partition in places(case)}
    ends = {name: found.ends() for name, found in files.items()}
    asked = {name: [time for time, *_ in answers["offsets_for_times"]] for name, answers in case.answered.items()}
    found = {name: [files[name].find_time(time, ends[name]) for time in times] for name, times in asked.items()}
    with adopted(directory) as engine:
        for name in files:
            log = log_of(engine, name)
            theirs = read_everything(log)
            print(case.name, name, ends[name], log.log_start_offset, log.log_end_offset, theirs.damaged, read[name].damaged)
            assert read[name].rows == theirs.rows, name
            assert ends[name][:2] == (log.log_start_offset, log.log_end_offset), name
        for name, times in asked.items():
            for time, offset in zip(times, found[name], strict=True):
                assert (-1 if offset is None else offset) == offset_for_time(log_of(engine, name), time)[1], (name, time)
