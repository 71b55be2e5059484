"""Each version of a client does on seglog what it does on Apache Kafka."""

from collections.abc import Iterator

import pytest

from tests.foreign_programs import AbsentError
from tests.interop.client_versions import PAGE, ROWS, Proxy, Row, brokers, outcome_of

pytestmark = [pytest.mark.timeout(1800)]

ROWS_MIN = 35
"""Rows that have to run for the run to count; the others could not be installed."""

ran: list[str] = []


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Proxy]]:
    with brokers(tmp_path_factory.mktemp("versions")) as running:
        yield running


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_works_on_kafka_works_here(row: Row, proxies: dict[str, Proxy]) -> None:
    try:
        ours, theirs = outcome_of(row, proxies["seglog"]), outcome_of(row, proxies["kafka"])
    except AbsentError as error:
        pytest.skip(f"{row.name}: {error}")
    ran.append(row.name)
    assert theirs.served <= ours.served, (ours.steps, theirs.steps)


def test_enough_of_them_ran() -> None:
    assert len(ran) >= ROWS_MIN, ran


def test_the_page_has_every_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for row in ROWS:
        assert f"| {row.library} | {row.version} | " in page
