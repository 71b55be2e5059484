"""Every golden directory at both isolation levels, by clients of Kafka and by our own: what Kafka's consumer got."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation
from tests.interop.client_programs import PROGRAMS, Program, client
from tests.interop.golden import Case, load_case, unpack, unpack_open_transactions
from tests.processes import Daemon, daemon
from tests.unit.kafka.test_kafka_golden import STOPPED

pytestmark = [pytest.mark.timeout(300)]

IN_PYTHON: Final = tuple(
    program for program in PROGRAMS if program.name in {"kafka-python", "confluent-kafka", "aiokafka"}
)
ISOLATIONS: Final[tuple[Isolation, ...]] = (READ_UNCOMMITTED, READ_COMMITTED)

Simple = tuple[int, bytes | None, bytes | None, int]
"""Offset, key, value and timestamp of a record."""


@pytest.fixture(scope="module", params=STOPPED)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Case, Daemon]]:
    case = load_case(request.param)
    directory: Path = tmp_path_factory.mktemp(case.name) / "data"
    directory.mkdir()
    if case.name == "transactions":
        unpack_open_transactions(directory)
    else:
        unpack(case, directory)
    with daemon(directory, "--set", "listeners=PLAINTEXT://127.0.0.1:0") as running:
        yield case, running
        assert "Traceback" not in running.log_text()


def asked(case: Case) -> Iterator[tuple[str, int, Isolation, int, int, dict[int, Simple]]]:
    """Topic, partition, isolation, Kafka's latest offset, how many records Kafka's consumer got, and those listed."""
    for name, kafka in case.answered.items():
        topic, _, number = name.rpartition("-")
        for isolation in ISOLATIONS:
            is_other = isolation == READ_COMMITTED and "read_committed" in kafka
            told: dict[str, Any] = kafka["read_committed"]["records"] if is_other else kafka["records"]
            end = kafka["last_stable_offset"] if isolation == READ_COMMITTED else kafka["high_watermark"]
            rows = {
                row[0]: (row[0], bytes_of(row[3]), bytes_of(row[4]), row[1])
                for kind in ("all", "sample", "first", "last")
                for row in told.get(kind, ())
            }
            yield topic, int(number), isolation, end, told["count"], rows


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@pytest.mark.parametrize("program", IN_PYTHON, ids=lambda program: program.name)
def test_a_client_of_kafka_reads_what_kafkas_consumer_read(served: tuple[Case, Daemon], program: Program) -> None:
    case, running = served
    (ready,) = [event for event in running.logged if event["event"] == "broker_ready"]
    with client(program, ready["kafka"]) as foreign:
        for topic, number, isolation, end, count, rows in asked(case):
            earliest, latest = foreign.ends(topic, number, isolation=isolation)
            assert latest == end, (topic, number, isolation)
            found = foreign.consume(topic, number, earliest, count, isolation=isolation) if count else []
            assert len(found) == count, (topic, number, isolation)
            got = {offset: (offset, key, value, timestamp) for offset, key, value, _, timestamp in found}
            assert {offset: got[offset] for offset in rows} == rows, (topic, number, isolation)
