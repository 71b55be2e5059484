"""The page of ``seglog top``: captures of it in 80 and 160 columns, in any other width, and with hostile names."""

from pathlib import Path

import pytest

from seglog.cli.overview.page import View, lines_of
from tests.support import each_case
from tests.unit.clients.cli.overview.brokers import family, healthy, sick

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


@each_case("columns", [30, 40, 50, 60, 70, 80, 160])
@each_case("view", VIEWS.values(), ids=list(VIEWS))
def test_names_and_whole_numbers_stay_in_a_narrow_terminal(view: View, columns: int) -> None:
    shown = "\n".join(lines_of(view, columns, None, colours=False))
    for title in ("TOPIC (3)", "clicks", "orders", "metrics.raw", "GROUP (2)", "billing", "LAG"):
        assert title in shown
    assert "\u2026" not in shown


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


def test_tables_have_as_many_rows_as_there_is_room_for() -> None:
    now = healthy(10)
    ends = family("seglog_partition_log_end_offset", ("topic", "partition"), {(f"t{n}", "0"): 1.0 for n in range(100)})
    members = family("seglog_group_members", ("group",), {(f"g{n}",): 1 for n in range(100)})
    left = family("seglog_topics_left_out", (), {(): 900})
    view = View("b", now._replace(families={**now.families, ends.name: ends, members.name: members, left.name: left}))
    for columns in (80, 160):
        for height in (24, 60):
            lines = lines_of(view, columns, height, colours=False)
            assert len(lines) == height
            assert any("TOPIC (1,000)" in line for line in lines)
            assert any("GROUP (100)" in line for line in lines)
            assert sum("t1" in line for line in lines) > 0
            assert sum("g1" in line for line in lines) > 0


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
