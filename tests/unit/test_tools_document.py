"""docs/REFERENCE.md, looking at a broker: its commands can be typed, and its tables are those of the code."""

import json
import re
import shlex

import click
import pytest

from seglog.cli import main
from seglog.cli.dispatch import ROOT, parse
from seglog.testing import Broker
from tests.pages import reference
from tests.support import REPOSITORY, each_case

PAGE = reference("Looking at a broker")
COMMANDS = re.findall(r"^(seglog .*)$", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)), re.MULTILINE)


@each_case("command", COMMANDS)
def test_commands_can_be_typed(command: str) -> None:
    assert parse(shlex.split(command)[1:]).run is not None


def test_every_command_of_the_table_has_a_section_and_exists() -> None:
    named = re.findall(r"^\| `seglog ([\w-]+)", PAGE, re.MULTILINE)
    assert set(named) <= set(ROOT.list_commands(click.Context(ROOT)))
    assert {f"seglog {name}" for name in named if name != "ping"} == set(
        re.findall(r"^### (seglog .*)$", PAGE, re.MULTILINE)
    )


def test_the_page_of_top_is_one_that_a_test_draws() -> None:
    capture = REPOSITORY / "tests" / "unit" / "clients" / "cli" / "overview" / "captures" / "healthy-80.txt"
    assert f"```text\n{capture.read_text(encoding='utf-8')}```" in PAGE


def test_the_table_of_checks_has_those_that_the_doctor_makes(capfd: pytest.CaptureFixture[str]) -> None:
    table = PAGE.partition("| check |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| ([\w ]+) \|", table, re.MULTILINE)
    with Broker() as broker:
        main(["--server", broker.address, "--json", "doctor"])
    made = [check["name"] for check in json.loads(capfd.readouterr().out)["checks"]]
    assert [name for name in listed if name not in {"recovery", "http", "queues"}] == list(dict.fromkeys(made))
