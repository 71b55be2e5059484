"""Reading at read_committed the directories that Kafka 4.3.1 wrote: what Kafka answered, at the storage engine."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.record_batch import iter_batches
from tests.broker.storage.log.transactions import fetch_committed, read_committed
from tests.interop.golden import CASES, adopted, digest, load_case, log_of, row_of, unpack
from tests.interop.golden_differences import DIFFERENCES

ANSWERED: Final = tuple(name for name in CASES if name != "unclean")


@pytest.fixture(scope="module", params=ANSWERED)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[str, PartitionLog, Any]]]:
    """(partition, its log, what Kafka said) of those where nothing is meant to differ; not to be changed."""
    case = load_case(request.param)
    directory: Path = tmp_path_factory.mktemp(case.name)
    unpack(case, directory)
    with ExitStack() as stack:
        logs = stack.enter_context(adopted(directory))
        differing = DIFFERENCES.get(case.name, {})
        yield [(name, log_of(logs, name), told) for name, told in case.answered.items() if name not in differing]


def test_the_last_stable_offset_is_kafkas(opened: list[tuple[str, PartitionLog, Any]]) -> None:
    for name, log, kafka in opened:
        assert log.last_stable_offset == kafka["last_stable_offset"], name
        if "read_committed" in kafka:
            assert log.last_stable_offset == kafka["read_committed"]["list_latest"][2], name


def test_a_fetch_names_the_aborted_transactions_that_kafka_names(opened: list[tuple[str, PartitionLog, Any]]) -> None:
    """Kafka takes the end of what it sends from its sparse index, and so names some that begin behind it; we do not."""
    for name, log, kafka in opened:
        for told in kafka.get("fetches", ()):
            if told["error"]:
                continue
            fetched = fetch_committed(log, told["offset"], told["partition_max_bytes"])
            assert bool(fetched.data) == bool(told["bytes"]), (name, told)
            end = max((header.next_offset for header, _ in iter_batches(fetched.data)), default=0)
            assert fetched.aborted == [each for each in told["aborted"] if each[1] < end], (name, told)


@pytest.mark.parametrize("bytes_max", [1, 1000, 1 << 20])
def test_the_committed_records_are_those_of_kafkas_consumer(
    opened: list[tuple[str, PartitionLog, Any]], bytes_max: int
) -> None:
    for name, log, kafka in opened:
        told = kafka["read_committed"]["records"] if "read_committed" in kafka else kafka["records"]
        rows = [row_of(record, header) for record, header in read_committed(log, bytes_max)]
        assert (len(rows), digest(rows)) == (told["count"], told["sha256"]), name
