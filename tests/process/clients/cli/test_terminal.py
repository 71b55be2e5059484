"""What others wrote is escaped on a terminal and whole in a pipe; colours are for a terminal alone."""

import json
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from seglog.cli import complain
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.messages import CreateTopicRequest, HelloReply, HelloRequest
from seglog_protocol.texts import disarmed, disarmed_json
from tests.processes import on_terminal, seglog, seglog_command
from tests.unit.clients.fake_broker import FakeBroker

EVIL = "\x1b]0;owned\x07\x9b31m\x7f\u202e"
SHOWN = r"\x1b]0;owned\x07\x9b31m\x7f\u202e"


def _typed(broker: FakeBroker, *arguments: str) -> tuple[int, str]:
    return on_terminal(seglog_command(broker.address, *arguments), NO_COLOR="1")


def _keep(
    broker: FakeBroker, *records: tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
) -> None:
    with broker.changed:
        broker.logs["t"][0].append(encode_batch([(0, key, value, headers) for key, value, headers in records]))


# --- Records ----------------------------------------------------------------------------------------------------------


def test_a_record_is_a_line_of_text_on_a_terminal(broker: FakeBroker) -> None:
    _keep(
        broker,
        (EVIL.encode(), f"{EVIL}\ttab\nline\xa0ä\u200d".encode(), ((EVIL, b"\xff\x1b"), ("n", None))),
        (None, None, ()),
    )
    code, shown = _typed(broker, "consume", "t", "--keys", "--headers")
    assert code == 0
    assert shown == (
        f"{SHOWN}=\\xff\\x1b,n=null\t{SHOWN}\t{SHOWN}\\ttab\\nline\xa0ä\u200d\n"  # blanks and joiners are text
        "\tnull\tnull\n"
    )


def test_json_on_a_terminal_says_the_same(broker: FakeBroker) -> None:
    _keep(broker, (EVIL.encode(), EVIL.encode(), ((EVIL, EVIL.encode()),)))
    code, shown = _typed(broker, "consume", "t", "--format", "json")
    assert code == 0
    assert shown.rstrip("\n").isprintable()
    assert json.loads(shown) == json.loads(seglog(broker.address, "consume", "t", "--format", "json").stdout)


def test_in_a_pipe_every_byte_is_there(broker: FakeBroker) -> None:
    value = f"{EVIL}\t\r\n".encode() + bytes(range(256))
    _keep(broker, (EVIL.encode(), value, ((EVIL, b"\x1b"),)))
    assert seglog(broker.address, "consume", "t", "--format", "raw").stdout == value
    whole = EVIL.encode() + b"=\x1b\t" + EVIL.encode() + b"\t" + value + b"\n"
    assert seglog(broker.address, "consume", "t", "--keys", "--headers").stdout == whole


# --- The broker -------------------------------------------------------------------------------------------------------


def test_what_a_broker_says_of_itself_is_escaped(broker: FakeBroker) -> None:
    hello = HelloReply(
        "seglog", EVIL, {}, {"frame_bytes_max": 1 << 20}, cluster_id=EVIL, log_dir=f"{EVIL}\n", problems=[EVIL]
    )
    broker.script = lambda request, _: hello if isinstance(request, HelloRequest) else None
    code, shown = _typed(broker, "ping")
    assert code == 1
    assert shown.replace("\n", "").isprintable()
    assert shown.count(SHOWN) == 4
    assert shown.count("\n") == 3
    code, shown = _typed(broker, "ping", "--json")
    assert shown.rstrip("\n").isprintable()
    assert json.loads(shown)["cluster_id"] == EVIL
    assert EVIL.encode() in seglog(broker.address, "ping").stdout


def test_names_and_errors_of_a_broker_are_escaped(broker: FakeBroker) -> None:
    broker.logs[EVIL] = broker.logs["t"]
    broker.script = lambda request, _: InvalidConfigError(EVIL) if isinstance(request, CreateTopicRequest) else None
    for arguments in (("topic", "list"), ("topic", "create", "x"), ("topic", "describe", EVIL)):
        _, shown = _typed(broker, *arguments)
        assert SHOWN in shown, arguments
        assert shown.replace("\n", "").isprintable(), arguments


# --- Files ------------------------------------------------------------------------------------------------------------


def test_a_dump_is_escaped_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    log = tmp_path / "t-0" / "00000000000000000000.log"
    log.write_bytes(encode_batch([(0, EVIL.encode(), f"{EVIL}\n".encode(), ((EVIL, EVIL.encode()),))]))
    command = [sys.executable, "-m", "seglog_broker", "dump", "--records", str(log)]
    code, shown = on_terminal(command)
    assert code == 0
    assert shown.count(SHOWN) == 4
    assert shown.replace("\n", "").isprintable()
    _, shown = on_terminal([*command, "--json"])
    assert shown.replace("\n", "").isprintable()
    records = [fact for fact in map(json.loads, shown.splitlines()) if fact["kind"] == "record"]
    assert [(fact["key"], fact["value"]) for fact in records] == [(EVIL, f"{EVIL}\n")]


def test_only_controls_are_escaped_and_json_stays_the_same() -> None:
    assert (
        disarmed("Grüße, 世界\u3000\xa0\U0001f469\u200d\U0001f680 \\x1b")
        == "Grüße, 世界\u3000\xa0\U0001f469\u200d\U0001f680 \\x1b"
    )
    every = "".join(map(chr, range(0xD7FF)))
    line = json.dumps(every, ensure_ascii=False)
    assert json.loads(disarmed_json(line)) == every
    assert not any(chr(control) in disarmed_json(line) for control in (*range(0x20), *range(0x7F, 0xA0)))


# --- Colours ----------------------------------------------------------------------------------------------------------


def test_colours_are_for_a_terminal_whose_user_wants_them(broker: FakeBroker) -> None:
    list_topics = seglog_command(broker.address, "topic", "list")
    _, coloured = on_terminal(list_topics)
    assert coloured.startswith("\x1b[1mTOPIC")
    assert "\x1b" not in coloured.partition("\n")[2]
    assert "\x1b" not in on_terminal(list_topics, NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(list_topics, TERM="dumb")[1]
    assert b"\x1b" not in seglog(broker.address, "topic", "list").stdout
    refused = seglog_command(broker.address, "topic", "delete", "x", "--yes")
    assert on_terminal(refused)[1].startswith("\x1b[31mseglog:\x1b[0m there is no topic x")
    assert b"\x1b" not in seglog(broker.address, "topic", "delete", "x").stderr
    silent = seglog_command(broker.address, "consume", "t")
    assert "seglog: \x1b[36mnote:\x1b[0m t has no record" in on_terminal(silent)[1]


# --- Width ------------------------------------------------------------------------------------------------------------


def test_tables_fit_the_terminal_and_are_whole_in_a_pipe(broker: FakeBroker) -> None:
    _keep(broker, (b"k", b"v", ()))
    command = seglog_command(broker.address, "offsets", "t", "--at", "@0")
    whole = seglog(broker.address, "offsets", "t", "--at", "@0").stdout.decode().splitlines()
    assert len(whole) == 2
    for columns in (40, 80):
        code, shown = on_terminal(command, columns=columns, NO_COLOR="1")
        assert code == 0
        assert max(map(len, shown.splitlines())) <= columns
        assert "1970-01-01T00:00:00.000Z" in shown
    assert on_terminal(command, columns=160, NO_COLOR="1")[1].splitlines() == whole, "where there is room"


def test_a_dump_fits_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(encode_batch([(1_700_000_000_000, b"k", b"v", ())]))
    command = [sys.executable, "-m", "seglog_broker", "dump", "t-0"]
    _, shown = on_terminal(["sh", "-c", f"cd {tmp_path} && exec {' '.join(command)}"], columns=60)
    assert max(map(len, shown.splitlines())) <= 60
    assert "largest timestamp 2023-11-14T22:13:20.000Z" in shown
    assert "timestamp" in shown


def test_a_warning_leaves_the_progress_bar_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with tqdm(total=10, file=sys.stderr, desc="clicks", ascii=True, mininterval=0) as bar:
        bar.update(5)
        complain("warning: seconds?")
        bar.update(5)
    told = capsys.readouterr().err
    lines = [line.rpartition("\r")[2] for line in told.split("\n")]
    assert "seglog: warning: seconds?" in lines, "a line of its own"
    assert " 50%|" in told.partition("warning")[2], "and the bar again below it"
