"""Facts as text: aligned, with readable sizes and times, and safe for a terminal."""

import json
from collections.abc import Iterator

import pytest

from seglog_broker.config import load_config
from seglog_broker.inspect.dump.kinds import plain_path
from seglog_broker.inspect.facts import Batch, Damage, Fact, FileFound, Note, PartitionFound, RecordFound, json_lines
from seglog_broker.inspect.readable import readable
from seglog_protocol.tables import ROWS_BEFORE_WIDTHS
from tests.logs import LogOnDisk
from tests.support import each_case
from tests.unit.broker.inspect.dump.support import LOG, facts


def test_records_are_indented_below_their_batch() -> None:
    disk = LogOnDisk()
    disk.append(b'{"a": "b"}', b"\xff\0", timestamp=1000, key="gr\u00fcn".encode())
    lines = list(readable(facts(disk.fs, LOG, records=True)))
    assert lines[3:5] == [
        "            0  1970-01-01T00:00:01.000Z  'gr\u00fcn'  '{\"a\": \"b\"}'",
        "            1  1970-01-01T00:00:01.000Z  'gr\u00fcn'  base64:/wA=",
    ]


def test_no_content_of_a_file_can_move_the_cursor() -> None:
    evil = "\x1b[2J\r\u202e"
    found: list[Fact] = [
        FileFound(evil, "segment log", 0),
        Note(evil, evil),
        Damage(evil + evil, 0, 1, evil),
        RecordFound(0, 0, evil.encode(), evil.encode() + b"\xff", ((evil, evil.encode()),)),
    ]
    for line in readable(found):
        assert line.isprintable()


def test_every_fact_is_one_json_object_with_its_kind() -> None:
    disk = LogOnDisk()
    disk.append(b"text", b"\xff", timestamp=1000)
    lines = [json.loads(line) for line in json_lines(facts(disk.fs, LOG, records=True))]
    assert [line["kind"] for line in lines] == ["file", "batch", "record", "record", "log_totals"]
    assert lines[2] == {
        "kind": "record", "offset": 0, "timestamp": 1000, "key": None, "value": "text", "headers": []
    }  # fmt: skip
    assert lines[3]["value_base64"] == "/w=="


def test_names_that_are_no_utf8_stay_json() -> None:
    (line,) = json_lines([FileFound("/d/\udcff", "segment log", 0)])
    assert json.loads(line.encode(errors="backslashreplace"))["path"] == "/d/\udcff"


@pytest.mark.parametrize("render", [json_lines, readable])
def test_lines_come_while_facts_come(render: object) -> None:
    """A log of any size is shown in bounded memory: the first line comes after a bounded number of batches."""
    asked = 0

    def endless() -> Iterator[Fact]:
        nonlocal asked
        while True:
            asked += 1
            yield Batch(*(0, 100, 0, 0, 1, 0, "none", "CreateTime", 0, 0, -1, -1, -1, -1, False, False, None, 0, True))

    assert callable(render)
    lines = render(endless())
    for _ in range(10):
        next(lines)
    assert asked <= ROWS_BEFORE_WIDTHS + 10


def test_headings_are_parted_by_a_blank_line() -> None:
    partitions = [PartitionFound(f"/d/t-{n}", "t", n, "", None, 0, 0) for n in range(2)]
    assert list(readable(partitions)) == ["t-0: 0 segments, 0 B", "", "t-1: 0 segments, 0 B"]


@each_case("path", ["/data/t-0", "data/t-0", "t-0", "/t-0"])
def test_a_path_keeps_its_slash_also_before_the_first_heading(path: str) -> None:
    [line] = readable(iter([Damage(f"{path}/{0:020d}.log", None, None, "it cannot be read: EIO")]))
    assert line == f"DAMAGED: {path}/{0:020d}.log: it cannot be read: EIO"


@each_case(
    ("typed", "printed"),
    [
        ("data", "data"),
        ("data/", "data"),
        ("data//", "data"),
        ("/srv/data/", "/srv/data"),
        ("//srv//data", "/srv/data"),
        ("./data/", "./data"),
        (".", "."),
        ("./", "."),
        ("/", "/."),
    ],
)
def test_a_path_is_printed_with_single_slashes_however_it_was_typed(typed: str, printed: str) -> None:
    assert plain_path(typed) == printed
    config, _ = load_config(None, "", {}, [f"log.dir={typed}"])
    assert config.log_dir == ("/" if typed == "/" else printed)
