"""Directories that Kafka wrote, read without a broker: the same rows, ends and times as from our storage engine."""

from pathlib import Path

from seglog.directory.consumer import LogDirectory
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.records import decode_records
from tests.interop.golden import (
    MOST_CASES,
    Read,
    adopted,
    load_case,
    log_of,
    offset_for_time,
    read_everything,
    row_of,
    unpack,
)

PIECE_BYTES = 16 * 1024


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
                assert error.next_offset > error.start_offset, "an error that leads nowhere"  # noqa: PT017
                read.damaged.append((error.start_offset, error.next_offset))
                start = {partition: error.next_offset}
                continue
            return read


@MOST_CASES
def test_topics_rows_ends_and_times_are_those_of_our_storage_engine(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    unpack(case, tmp_path)
    logs = LogDirectory(tmp_path)
    places = {f"{topic}-{number}": (topic, number) for topic, numbers in logs.topics().items() for number in numbers}
    assert set(places) == set(case.partitions)
    read = {directory: read_files(tmp_path, *place) for directory, place in places.items()}
    ends = {directory: logs.partition(*place).ends() for directory, place in places.items()}
    stable = {directory: logs.partition(*places[directory]).stable_end(end) for directory, end in ends.items()}
    times: list[tuple[str, int, int]] = []
    for directory, answers in case.answered.items():
        if read[directory].damaged:
            continue  # a damaged batch has no times here; the engine takes them as they are where it looked no closer
        files = logs.partition(*places[directory])
        for time, *_ in answers["offsets_for_times"]:
            found = files.find_time(time)
            times.append((directory, time, -1 if found is None else found))
    with adopted(tmp_path) as engine:
        for directory in places:
            log = log_of(engine, directory)
            assert read[directory].rows == read_everything(log).rows, directory
            # The engine gives no offset again that the files' marks speak of; here a log ends where its batches do.
            missing = [d for d in log.state.damaged if d.end_offset == log.log_end_offset]
            end = missing[0].start_offset if missing else log.log_end_offset
            # It also keeps the start where segments are missing, of which these files of Kafka's record nothing yet.
            lost = [
                d.end_offset for d in log.state.damaged if d.start_offset == log.log_start_offset and d not in missing
            ]
            start = lost[0] if lost else log.log_start_offset
            assert ends[directory][:2] == (start, end), directory
            assert stable[directory] == min(log.last_stable_offset, end), directory
        for directory, time, offset in times:
            assert offset == offset_for_time(log_of(engine, directory), time)[1], (directory, time)
