"""docs/REFERENCE.md shows what `seglogd dump` and `seglogd check` really print, and names all that they can say."""

import argparse
import json
import re
import shlex
import uuid
from pathlib import Path

import pytest

from seglog_broker import __main__ as daemon
from seglog_broker.config import load_config
from seglog_broker.inspect import facts
from seglog_broker.inspect.commands import check_parser, dump_parser
from seglog_broker.inspect.findings import Code
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.batch_builder import encode_batch
from tests.logs import ManualClock, append_one, flip_bit
from tests.pages import reference
from tests.unit.broker.inspect.check import support
from tests.unit.broker.storage.steps import create_topic

PAGE = reference("Looking inside a directory", "Checking a directory")
CHECKING = reference("Checking a directory")
_PATHS = ("README.md", "core/src/Log.scala", "docs/design.html", "clients/producer.py")


def write_example(folder: Path) -> None:
    """The directory of the page: 40 commits, five a batch, two partitions, and a flipped bit in one file."""
    config, _ = load_config(None, "", {}, [f"log.dir={folder}", "log.index.interval.bytes=512"])
    ids = iter(range(1, 10))
    clock = ManualClock(1_763_726_400_000)
    logs = open_log_directory(
        PosixFileSystem(), clock, config, str(folder), new_uuid=lambda: uuid.uuid5(uuid.NAMESPACE_URL, str(next(ids)))
    )
    create_topic(logs, "commits", 2, {"segment.bytes": "2048", "retention.ms": "-1"})
    for number in range(0, 40, 5):
        records = []
        for commit in range(number, number + 5):
            path = _PATHS[commit % len(_PATHS)]
            value = json.dumps({"commit": f"{commit:04x}", "path": path, "added": 3 * commit % 17})
            records.append((1_546_300_800_000 + 61_000 * commit, path.encode(), value.encode(), ()))
        append_one(logs.logs["commits", number // 25], encode_batch(records))
        clock.now += 1000
    logs.close()
    flip_bit(PosixFileSystem(), str(folder / "commits-1" / "00000000000000000000.log"), 700)


def test_the_page_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_example(Path("data"))
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        command, _, shown = block.partition("\n")
        program, *arguments = shlex.split(command.removeprefix("$ "))
        if program != "seglogd":
            continue  # another section's, which has a test of its own
        daemon.main(arguments)
        assert capsys.readouterr().out == shown, command


@pytest.mark.parametrize("parser", [dump_parser(), check_parser()], ids=lambda parser: parser.prog)
def test_the_page_names_every_option(parser: argparse.ArgumentParser) -> None:
    section = PAGE if parser.prog == "seglogd dump" else CHECKING
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in section


def test_the_page_names_every_kind_of_fact() -> None:
    for kind in (
        found.__struct_config__.tag for found in facts.Fact.__subclasses__() if found.__module__ == facts.__name__
    ):
        assert f"`{kind}`" in PAGE


def test_the_page_names_every_code_and_no_other() -> None:
    found = CHECKING[CHECKING.index("### What is found") :].partition("### JSON lines")[0]
    rows = [line for line in found.splitlines() if line.startswith("| `") and line.count("|") == 4]
    named = [cell.strip(" `") for row in rows for cell in row.split("|")[1].split(",")]
    assert sorted(named) == sorted(map(str, Code))


def test_the_page_names_every_kind_of_line_and_every_field_of_a_finding() -> None:
    fs = support.written()
    flip_bit(fs, "/data/commits-0/00000000000000000000.log", 915)
    lines = [json.loads(line) for line in facts.json_lines(support.check(fs, repair=True))]
    assert {line["kind"] for line in lines} == {"finding", "repaired", "left", "partition", "totals"}
    for line in lines:
        assert f"`{line['kind']}`" in CHECKING
    for field in next(line for line in lines if line["kind"] == "finding"):
        assert f"`{field}`" in CHECKING, field
