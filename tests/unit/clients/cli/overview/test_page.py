"""The page of ``seglog top`` and its figures, of a healthy broker and a sick one, each read at two moments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seglog.cli.overview.page import View, lines_of
from seglog.cli.overview.readings import Numbers, Reading, group_rows, quantile_of, topic_rows
from seglog_protocol.messages import API_VERSIONS, HelloReply, MetricBuckets, MetricFamily, MetricSample
from tests.support import each_case

BOUNDS = [0.001, 0.002, 0.005, 0.01, 0.1]


def family(name: str, labels: Sequence[str], samples: Mapping[tuple[str, ...], Any]) -> MetricFamily:
    kind = "counter" if name.endswith("_total") else "histogram" if name.endswith("duration_seconds") else "gauge"
    values = [MetricSample(list(found), value) for found, value in samples.items()]
    return MetricFamily(name, kind, "What it means.", list(labels), values)


def buckets(*counts: int) -> MetricBuckets:
    return MetricBuckets(BOUNDS, [*counts], sum=0.002 * sum(counts))


def reading(at: float, problems: Sequence[str], families: Sequence[MetricFamily]) -> Reading:
    hello = HelloReply("seglog", "seglogd/0.3.0", dict(API_VERSIONS), {}, problems=list(problems), partitions=5)
    return Reading(at, 1_700_273_600 + at, hello, {found.name: found for found in families})


def _plain(values: Mapping[str, float]) -> list[MetricFamily]:
    return [family(f"seglog_{name}", (), {(): value}) for name, value in values.items()]


def _partitions(name: str, values: Mapping[str, Sequence[float]]) -> MetricFamily:
    samples: dict[tuple[str, ...], float] = {
        (topic, str(n)): value for topic, found in values.items() for n, value in enumerate(found)
    }
    return family(f"seglog_partition_{name}", ("topic", "partition"), samples)


def _groups(name: str, values: Mapping[tuple[str, ...], float]) -> MetricFamily:
    return family(f"seglog_group_{name}", ("group", "topic", "partition"), values)


def healthy(seconds: float = 0.0) -> Reading:
    """So many seconds after the first: 1,000 records a second in clicks, none in the other topics."""
    grown = 1000 * seconds
    families = _plain(
        {
            "start_time_seconds": 1_700_000_000.0,
            "uptime_seconds": 273_600 + seconds,
            "problems": 0,
            "append_bytes_total": 5e9 + 120 * grown,
            "fetch_bytes_total": 9e9 + 240 * grown,
            "fetches_waiting": 4,
            "not_durable_bytes": 12_000,
            "not_durable_seconds": 0.004,
            "loop_busy_seconds_total": 900 + 0.12 * seconds,
            "loop_longest_turn_seconds": 0.0071,
            "connections_limit": 10_000,
            "request_memory_bytes": 0,
            "request_memory_limit_bytes": 268_435_456,
            "open_files": 41,
            "open_files_limit": 2_048,
            "topics": 3,
            "recovery_ratio": 1,
            "disk_size_bytes": 500e9,
            "disk_free_bytes": 321e9,
            "disk_full": 0,
            "disk_full_in_seconds": float("inf"),
            "retention_next_loss_seconds": 93_600,
            "damaged_ranges": 0,
            "topics_left_out": 0,
            "groups_left_out": 0,
        }
    )
    families += [
        family("seglog_connections", ("listener",), {("native",): 7, ("PLAINTEXT",): 12}),
        family("seglog_requests_total", ("listener", "api"), {("native", "append"): 4000 + grown / 10}),
        family("seglog_request_errors_total", ("listener", "api", "code"), {("native", "fetch", "CORRUPT_MESSAGE"): 3}),
        family("seglog_append_batches_total", ("ack",), {("disk",): 80_000 + grown / 10, ("os",): 5}),
        family(
            "seglog_request_duration_seconds",
            ("listener", "api"),
            {
                ("native", "append"): buckets(1000, 500 + int(90 * seconds), int(10 * seconds), 0, 0, 0),
                ("PLAINTEXT", "Fetch"): buckets(1000 + int(100 * seconds), 0, 0, 0, 0, 0),
            },
        ),
        family("seglog_fsync_duration_seconds", (), {(): buckets(10, 20 + int(50 * seconds), 0, 0, 0, 0)}),
        family("seglog_partitions", ("state",), {("serving",): 5, ("recovering",): 0, ("offline",): 0}),
        _partitions("size_bytes", {"clicks": [2e9, 1e9], "orders": [7e9], "metrics.raw": [5e6, 6e6]}),
        _partitions("log_end_offset", {"clicks": [grown, 50_000.0], "orders": [9e6], "metrics.raw": [100.0, 200.0]}),
        _partitions("durable_offset", {"clicks": [grown, 49_950.0], "orders": [9e6], "metrics.raw": [100.0, 200.0]}),
        family("seglog_group_members", ("group",), {("billing",): 2, ("search",): 1}),
        family("seglog_group_state", ("group", "state"), {("billing", "Stable"): 1, ("search", "Stable"): 1}),
        _groups("lag", {("billing", "orders", "0"): 0, ("search", "clicks", "0"): 40, ("search", "clicks", "1"): 2}),
        _groups("lag_seconds", {("billing", "orders", "0"): 0, ("search", "clicks", "0"): 0.8}),
        _groups("time_to_loss_seconds", {("billing", "orders", "0"): float("inf"), ("search", "clicks", "0"): 90_000}),
    ]
    return reading(100 + seconds, [], families)


PROBLEMS = (
    "clicks-0 is offline: Input/output error",
    "the disk is full: 1.2 GB of 500.0 GB are free, appends are refused until there are 25.0 GB",
)


def sick(seconds: float = 0.0) -> Reading:
    """The disk is full, a partition is offline, a group is dead and loses records soon."""
    well = healthy(seconds)
    changed = _plain(
        {
            "problems": len(PROBLEMS),
            "disk_free_bytes": 1.2e9,
            "disk_full": 1,
            "disk_full_in_seconds": 0,
            "not_durable_bytes": 48e6,
            "not_durable_seconds": 34,
            "loop_longest_turn_seconds": 0.31,
            "damaged_ranges": 2,
            "open_files": 2_040,
            "recovery_ratio": 0.25,
        }
    )
    changed += [
        family("seglog_request_errors_total", ("listener", "api", "code"), {("native", "append", "FULL"): 5 * seconds}),
        family("seglog_partitions", ("state",), {("serving",): 3, ("recovering",): 1, ("offline",): 1}),
        family("seglog_group_members", ("group",), {("billing",): 2, ("audit",): 0}),
        family("seglog_group_state", ("group", "state"), {("billing", "Stable"): 1, ("audit", "Empty"): 1}),
        _groups("lag", {("billing", "orders", "0"): 0, ("audit", "orders", "0"): 8_400_000}),
        _groups("lag_seconds", {("billing", "orders", "0"): 0, ("audit", "orders", "0"): 400_000}),
        _groups("time_to_loss_seconds", {("billing", "orders", "0"): float("inf"), ("audit", "orders", "0"): 1500}),
    ]
    families = dict(well.families) | {found.name: found for found in changed}
    return reading(well.at, PROBLEMS, list(families.values()))


# --- The page of ``seglog top``, in any width and with hostile names, and what two readings say -----------------------


CAPTURES = Path(__file__).parent / "captures"
EVIL = "[red]\x1b]0;owned\x07\u202e" + "x" * 300
WELL = View("localhost:9192", healthy(10), healthy(0))
SICK = View("localhost:9192", sick(10), sick(0))
AWAY = SICK._replace(trouble="no broker answers at localhost:9192: Connection refused (tried for 2 s)", age=12.3)
VIEWS = {"healthy": WELL, "sick": SICK, "away": AWAY}


@each_case("columns", [40, 80, 160])
@each_case("name", list(VIEWS))
def test_the_page_is_as_it_was_looked_at(name: str, columns: int) -> None:
    """``captures`` has what was judged by eye; a changed page is to be looked at again."""
    shown = "\n".join(lines_of(VIEWS[name], columns, 24, colours=False)) + "\n"
    assert shown == (CAPTURES / f"{name}-{columns}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_no_line_is_wider_and_no_page_higher_than_the_terminal(view: View) -> None:
    for columns in (20, 40, 60, 79, 81, 120, 149, 150, 151, 200, 400):
        for height in (1, 5, 24, 50):
            lines = lines_of(view, columns, height, colours=False)
            assert len(lines) <= height
            assert max(map(len, lines)) <= columns, (columns, height)


def test_a_long_name_is_shortened_and_takes_no_room_from_numbers() -> None:
    ends = family("seglog_partition_log_end_offset", ("topic", "partition"), {("x" * 200, "0"): 123_456.0})
    view = View("b", WELL.now._replace(families={**WELL.now.families, ends.name: ends}))
    for columns in (40, 60, 80, 160):
        (line,) = [line for line in lines_of(view, columns, None, colours=False) if "xxx" in line]
        assert "..." in line, columns
        assert "\u2026" not in line
        assert len(line.split()[0]) >= 16


def test_figures_of_a_broker_that_is_away_are_said_to_be_old_and_dimmed() -> None:
    lines = lines_of(AWAY, 80, None, colours=False)
    assert lines[0] == "seglogd/0.3.0 at localhost:9192, away"
    assert "what follows is of 02:15:10Z, 12.3 s old" in lines
    coloured = lines_of(AWAY, 80, None, colours=True)
    assert all("\x1b[2" in line for line in coloured if "clicks   " in line or "open files" in line)
    assert not any("\x1b[2m" in line for line in lines_of(SICK, 80, None, colours=True) if "clicks   " in line)


def test_colours_mark_what_is_wrong_and_nothing_else_is_coloured_red() -> None:
    assert "\x1b[1;31m" in "\n".join(lines_of(SICK, 80, 24, colours=True))
    assert "31m" not in "\n".join(lines_of(WELL, 80, 24, colours=True))
    assert "\x1b" not in "\n".join(lines_of(SICK, 80, 24, colours=False))


@pytest.mark.parametrize("columns", [80, 160])
def test_names_of_others_are_shown_and_not_obeyed(columns: int) -> None:
    now = healthy(10)
    ends = family("seglog_partition_log_end_offset", ("topic", "partition"), {(EVIL, "0"): 7.0})
    members = family("seglog_group_members", ("group",), {(EVIL,): 1})
    states = family("seglog_group_state", ("group", "state"), {(EVIL, EVIL): 1})
    families = {**now.families, ends.name: ends, members.name: members, states.name: states}
    hello = SICK.now.hello
    view = View(EVIL, now._replace(families=families, hello=hello), trouble=EVIL)
    shown = "\n".join(lines_of(view, columns, 40, colours=False))
    assert shown.replace("\n", "").isprintable()
    assert "[red]" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ({"transactions_open": 0}, None),
        ({"transactions_open": 3, "transaction_oldest_seconds": 42}, "transactions 3 open, oldest 42 s"),
        ({"transactions_open": 3, "transactions_held_up": 1, "transactions_hanging": 2}, "2 hanging, 1 held up"),
    ],
)
def test_transactions_are_shown_while_some_are_open_and_those_that_do_not_end_before_others(
    numbers: dict[str, float], shown: str | None
) -> None:
    families = [family(f"seglog_{name}", (), {(): value}) for name, value in numbers.items()]
    now = WELL.now._replace(families={**WELL.now.families, **{found.name: found for found in families}})
    lines = lines_of(View("b", now), 80, 24, colours=False)
    assert any(shown in line if shown else "transactions" in line for line in lines) == (shown is not None)


def test_metrics_that_a_broker_does_not_have_are_shown_as_unknown() -> None:
    lines = lines_of(View("b", WELL.now._replace(families={})), 80, 24, colours=False)
    assert any(line.startswith("not on disk  -, -") for line in lines)


# --- What two readings say: rates, quantiles, and nothing where the broker began anew in between ----------------------


def restarted(at: float) -> Reading:
    """As if the broker had been started again just before."""
    now = healthy(at)
    begun = family("seglog_start_time_seconds", (), {(): 1_700_000_500.0})
    return now._replace(families={**now.families, begun.name: begun})


def test_one_reading_alone_has_values_and_no_rates() -> None:
    numbers = Numbers(healthy(10))
    assert numbers.rate("seglog_append_bytes_total") is None
    assert numbers.quantile("seglog_fsync_duration_seconds", 0.99) is None
    assert numbers.value("seglog_open_files") == 41
    assert numbers.total("seglog_connections") == 19


def test_a_broker_that_was_started_again_has_no_rates_from_before() -> None:
    numbers = Numbers(restarted(10), healthy(20))
    assert numbers.rate("seglog_append_bytes_total") is None
    assert all(row.rate is None for row in topic_rows(numbers))
    assert Numbers(healthy(0), healthy(10)).seconds == 0, "time does not run backwards"


def test_a_quantile_is_linear_within_its_bucket_and_none_without_values() -> None:
    assert quantile_of([1.0, 2.0], [0, 0, 0], 0.5) is None
    assert quantile_of([1.0, 2.0], [4, 0, 0], 0.5) == 0.5
    assert quantile_of([1.0, 2.0], [0, 2, 2], 0.25) == 1.5
    assert quantile_of([1.0, 2.0], [0, 0, 5], 0.5) == 2.0, "above all bounds it is not known better"


def test_busy_topics_come_first_then_large_ones() -> None:
    rows = topic_rows(Numbers(healthy(10), healthy(0)))
    assert [row.name for row in rows] == ["clicks", "orders", "metrics.raw"]
    assert rows[0] == ("clicks", 2, 3e9, 60_000, 1000.0, 50)
    assert [row.name for row in topic_rows(Numbers(healthy(10)))] == ["orders", "clicks", "metrics.raw"]


def test_a_topic_that_was_made_in_between_has_the_rate_of_all_its_records() -> None:
    before, now = healthy(0), healthy(10)
    ends = family("seglog_partition_log_end_offset", ("topic", "partition"), {("new", "0"): 500.0})
    (row,) = topic_rows(Numbers(now._replace(families={**now.families, ends.name: ends}), before))
    assert row.rate == 50


def test_share_groups_have_a_rate_and_what_is_in_flight_beside_what_waits() -> None:
    labels = ("group", "topic", "partition")

    def read(at: float, accepted: float) -> Reading:
        of_share: dict[str, float] = {
            "records_waiting": 40,
            "records_in_flight": 7,
            "oldest_seconds": 3,
            "time_to_loss_seconds": 9_000,
        }
        of_share["accepted_total"] = accepted
        families = [
            family(f"seglog_share_{name}", labels, {("workers", "jobs", "0"): value, ("workers", "jobs", "1"): 0})
            for name, value in of_share.items()
        ]
        members: dict[tuple[str, ...], float] = {("workers",): 3, ("billing",): 1}
        return reading(at, [], [*families, family("seglog_group_members", ("group",), members)])

    now, before = read(10, 500), read(0, 300)
    assert group_rows(Numbers(now, before))[0] == ("workers", "", 3, 40, 3, 0, 20, 7)
    shown = "\n".join(lines_of(View("b", now, before), 100, 40, colours=False))
    assert "DONE/S  IN FLIGHT" in shown
    assert "DONE/S" not in "\n".join(lines_of(WELL, 100, 40, colours=False))


def test_a_group_that_has_committed_nothing_has_no_lag() -> None:
    members = family("seglog_group_members", ("group",), {("new",): 1})
    (row,) = group_rows(Numbers(reading(0, [], [members])))
    assert row == ("new", "", 1, None, None, None, None, None)
