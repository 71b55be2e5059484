"""From what was typed to what is done: defaults that depend on each other, and what cannot be meant."""

from typing import Any

import pytest

from seglog.cli import main
from seglog.cli.dispatch import parse
from seglog.cli.load import _plan
from seglog.load.plan import COUNT_MAX, COUNT_SECONDS_MAX, DURATION_SECONDS, Plan
from tests.support import each_case


def typed(*arguments: str) -> Plan:
    return _plan(parse(["load", *arguments]))


@each_case(
    ("arguments", "bounds"),
    [
        ((), (DURATION_SECONDS, COUNT_MAX)),
        (("--duration", "60"), (60.0, None)),
        (("--count", "5"), (COUNT_SECONDS_MAX, 5)),
        (("--count", "5", "--duration", "2"), (2.0, 5)),
    ],
)
def test_every_run_is_bounded(arguments: tuple[str, ...], bounds: tuple[float, int | None]) -> None:
    plan = typed("produce", *arguments)
    assert (plan.duration, plan.count) == bounds


def test_at_a_rate_a_batch_is_what_falls_due_in_5_ms_unless_it_is_given() -> None:
    assert typed("produce", "--rate", "100").batch_records == 1
    assert typed("produce", "--rate", "20000").batch_records == 100
    assert typed("produce", "--rate", "20000", "--batch-records", "7").batch_records == 7
    by_bytes = typed("produce", "--rate", "20000", "--batch-bytes", "5000")
    assert (by_bytes.batch_records, by_bytes.batch_bytes) == (None, 5000)


def test_a_round_trip_has_a_rate_of_its_own_and_0_is_none() -> None:
    assert typed("roundtrip").rate == 1000
    assert typed("roundtrip", "--rate", "0").rate is None
    assert typed("produce").rate is None


def test_reading_fills_a_topic_of_its_own_with_what_it_will_count() -> None:
    assert typed("consume").fill == 1_000_000
    assert typed("consume", "--count", "50").fill == 50
    assert typed("consume", "t").pipeline == 1


@each_case(
    ("command", "said"),
    [
        ("roundtrip --record-size 15", "must be 16 bytes or more"),
        ("consume --follow", "name the topic"),
        ("produce --rate -1", "--rate: must be"),
        ("produce --duration 0", "--duration: must be"),
        ("produce --record-size 0", "--record-size: must be"),
        ("roundtrip --ack none", "--ack"),
        ("consume --rate 5", "--rate"),
        ("", "seglog load"),
        ("produce --server a:b", "'b' is not a port"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", *command.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_without_an_end_is_none() -> None:
    bounds: dict[str, Any] = {"duration": None, "count": None}
    with pytest.raises(ValueError, match="needs a count or a duration"):
        Plan(verb="produce", **bounds)
