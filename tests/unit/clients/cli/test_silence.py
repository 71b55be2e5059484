"""``seglog consume`` that prints nothing says what there is; a slip in a topic's name makes no topic."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from seglog.cli.dispatch import parse
from seglog.cli.nothing import PARTITIONS_SHOWN_MAX, lines_of
from seglog.core.moments import AtOffset, AtTime, Edge, Moment
from seglog.core.offsets import PartitionLag
from seglog.testing import Broker
from tests.unit.clients.cli.conftest import Typed

DAY_MS = 86_400_000


@pytest.fixture
def days(group_broker: Broker, typed: Typed) -> Broker:
    """A broker with three records in a topic, a day apart."""
    assert typed("--server", group_broker.address, "topic", "create", "days", "--config", "retention.ms=-1")[0] == 0
    lines = b"".join(b'{"ts":%d}\n' % (1_700_000_000_000 + n * DAY_MS) for n in range(3))
    sent = ("produce", "days", "--format", "json", "--timestamp-field", "ts")
    assert typed("--server", group_broker.address, *sent, stdin=lines)[0] == 0
    return group_broker


# --- consume ----------------------------------------------------------------------------------------------------------


def test_a_start_beyond_the_data_is_told_with_what_there_is(days: Broker, typed: Typed) -> None:
    assert typed("--server", days.address, "consume", "days", "--from", "2024-01-01") == (
        0,
        "",
        (
            "seglog: note: days has no record at or after 2024-01-01 (2024-01-01T00:00:00.000Z)\n"
            "seglog: note: days-0 has offsets 0 to 2, of 2023-11-14T22:13:20.000Z to 2023-11-16T22:13:20.000Z\n"
            "seglog: note: try --from earliest, or --from 2023-11-16, or --follow, which waits for new records\n"
        ),
    )
    code, out, told = typed("--server", days.address, "consume", "days", "--from", "2023-11-16")
    assert (code, out.count("\n"), told) == (0, 1, ""), "where a record is printed nothing is told"
    assert typed("--server", days.address, "consume", "days", "--count", "0") == (0, "", ""), "none is wanted"
    assert typed("--server", days.address, "consume", "days", "--from", "latest", "--json")[1] == "", (
        "it is for records"
    )


def _lines(lags: Sequence[PartitionLag], begin: Moment | None, end: Moment | None, *typed: str) -> list[str]:
    return list(lines_of(lags, parse(["consume", "t", *typed]), begin, end))


def test_what_has_expired_is_told_with_where_to_look() -> None:
    gone = PartitionLag("t", 0, 1_000, 1_000, 1_000, 0, earliest_reason="expired")
    part = PartitionLag("t", 1, 10, 10, 30, 0, 1_700_000_000_000, 1_700_000_001_000, earliest_reason="expired")
    assert _lines([gone], None, None) == [
        "t has no record",
        "t-0 is empty: the next offset is 1,000, and 1,000 offsets before it have expired",
        "try --follow, which waits for new records; seglog explain config t shows how long it keeps them",
    ]
    assert _lines([gone, part], Edge.LATEST, None, "--from", "latest")[2:] == [
        (
            "t-1 has offsets 10 to 29, of 2023-11-14T22:13:20.000Z to 2023-11-14T22:13:21.000Z; "
            "those before them have expired"
        ),
        "try --from earliest, or --follow, which waits for new records",
    ]


def test_records_without_times_and_very_many_partitions() -> None:
    lags = [PartitionLag("t", number, 0, 0, 5, 0) for number in range(PARTITIONS_SHOWN_MAX + 2)]
    told = _lines(lags, AtOffset(5), AtTime(DAY_MS), "--from", "5", "--until", "@86400000")
    assert told[:2] == [
        "t has no record at or after offset 5 and before @86400000 (1970-01-02T00:00:00.000Z)",
        "t-0 has offsets 0 to 4",
    ]
    assert told[-2:] == ["seglog offsets t shows 2 more", "try --from earliest, or another --until"]
    assert len(told) == PARTITIONS_SHOWN_MAX + 3


# --- produce ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def commits(group_broker: Broker) -> Broker:
    """A broker whose only topic is ``commits``."""
    group_broker.client.create_topic("commits")
    return group_broker


def _topics(broker: Broker) -> list[str]:
    return [topic.name for topic in broker.client.topics()]


def test_in_a_pipe_a_name_like_an_existing_one_is_refused(commits: Broker, typed: Typed) -> None:
    code, out, told = typed("--server", commits.address, "produce", "comits2", stdin=b"x\n")
    assert (code, out) == (4, "")
    sentence = "there is no topic comits2; did you mean commits? To make a new topic of that name, add --create"
    assert told == f"seglog: {sentence}\n"
    assert _topics(commits) == ["commits"]


def test_a_name_like_no_other_or_create_makes_the_topic(commits: Broker, typed: Typed) -> None:
    of_no_other = (("clicks", ()), ("commits2", ()), ("commits.v3", ()))
    for name, more in (*of_no_other, ("comits2", ("--create",)), ("commits", ("--create",))):
        assert typed("--server", commits.address, "produce", name, *more, stdin=b"x\n")[0] == 0
    assert _topics(commits) == ["clicks", "comits2", "commits", "commits.v3", "commits2"]


def test_create_does_not_wait_for_the_broker_to_allow_it(typed: Typed) -> None:
    with Broker(memory=True, auto_create_topics_enable=False) as broker:
        assert typed("--server", broker.address, "produce", "clicks", stdin=b"x\n")[0] == 4
        assert typed("--server", broker.address, "produce", "clicks", "--create", stdin=b"x\n")[0] == 0


@pytest.mark.parametrize(("answer", "code", "made"), [("y\n", 0, True), ("\n", 1, False), ("", 1, False)])
def test_on_a_terminal_it_is_asked(
    commits: Broker, typed: Typed, answer: str, code: int, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"x\n")
    monkeypatch.setenv("NO_COLOR", "1")
    command = ("--server", commits.address, "produce", "comits2", str(tmp_path / "lines"), "--json")
    found, _, told = typed(*command, answer=answer)
    assert found == code
    assert "There is no topic comits2. Did you mean commits? Create a new topic comits2? [y/N] " in told
    assert ("seglog: topic comits2 is not created, and nothing is sent\n" in told) != made
    assert ("comits2" in _topics(commits)) == made
