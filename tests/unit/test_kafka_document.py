"""docs/KAFKA.md: its table of versions is that of the listener. docs/KAFKA-CLIENTS.md names tests that there are."""

import re

from seglog_broker.listeners.kafka.apis import APIS
from tests.support import REPOSITORY

CLIENTS = (REPOSITORY / "docs" / "KAFKA-CLIENTS.md").read_text(encoding="utf-8")
PAGE = (REPOSITORY / "docs" / "KAFKA.md").read_text(encoding="utf-8")


def test_the_table_of_versions_is_that_of_the_listener() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?: to (\d+))? \|$", PAGE, re.MULTILINE)
    assert {int(key): (name, range(int(first), int(last or first) + 1)) for key, name, first, last in rows} == {
        key: (api.name, api.versions) for key, api in APIS.items()
    }


def test_each_row_about_clients_has_a_test_that_exists_or_says_that_there_is_none() -> None:
    shown = [row.split(" | ")[2] for row in re.findall(r"^\| (?!What it does).+(?= \|$)", CLIENTS, re.MULTILINE)]
    tests = [found.groups() for cell in shown if (found := re.search(r"`pytest .*?(tests/\S+)(?: -k (.+?))?`", cell))]
    assert len(shown) == len(tests) + sum("not in a test" in cell for cell in shown)
    for path, words in tests:
        source = (REPOSITORY / path).read_text(encoding="utf-8").casefold()
        assert all(word in source for word in words.strip('"').split(" and ") if word != "kafka-python"), (path, words)
