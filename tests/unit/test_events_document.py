"""docs/EVENTS.md: every event that the broker can log, with its levels and facts, and what it means."""

import re

from scripts import event_tables
from seglog_broker.runtime.logs import LOST_EVENT, SUMMED

EVENTS = event_tables.events_of_code()
MEANINGS = {name: meaning for table in event_tables.meanings_by_table().values() for name, meaning in table.items()}


def test_every_event_of_the_code_stands_on_the_page_once_with_its_levels_and_facts() -> None:
    assert MEANINGS.keys() == EVENTS.keys(), "give it a meaning in scripts/events.toml"
    rows = [line for line in event_tables.page().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(MEANINGS)
    [ready] = [row for row in rows if row.startswith("| `broker_ready` |")]
    assert ready.startswith("| `broker_ready` | info | `listen`, `kafka`, `http`, `topics`,")


def test_every_event_has_a_meaning() -> None:
    assert [name for name, meaning in MEANINGS.items() if not meaning.endswith((".", ")", "no"))] == []


def test_events_that_end_others_exist_and_are_no_louder_than_a_warning() -> None:
    ends = {name: re.findall(r"`(\w+)`", told) for name, told in _ends()}
    assert len(ends) > 15
    for name, followers in ends.items():
        for follower in followers:
            assert {"info", "warning"} & set(EVENTS[follower].levels), f"{name} ends with {follower}"
        assert "info" not in EVENTS[name].levels, f"{name} is a problem"


def _ends() -> list[tuple[str, str]]:
    return [
        (name, found[1]) for name, meaning in MEANINGS.items() if (found := re.search(r"Ends with ([^.]+)", meaning))
    ]


def test_events_that_are_counted_exist() -> None:
    assert SUMMED.keys() <= EVENTS.keys()
    assert LOST_EVENT in EVENTS
