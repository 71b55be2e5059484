"""``seglogd user`` and ``seglogd init``: accounts while no broker runs, which the next start has."""

import io
import stat
import sys
from pathlib import Path

import pytest

from seglog_broker.__main__ import main
from seglog_broker.accounts.commands import make_init_parser, make_user_parser
from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.offload import InlineOffload
from tests.logs import ManualClock
from tests.pages import reference
from tests.unit.broker.security.exchanges import log_in_scram


def opened(folder: Path) -> Broker:
    config, _ = load_config(None, "", {}, [f"log.dir={folder}"])
    return Broker.open(config, PosixFileSystem(), ManualClock(1), InlineOffload())


async def can_log_in(folder: Path, name: str, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    broker = opened(folder)
    exchange = broker.authenticator.begin(mechanism, is_private=False)
    try:
        await log_in_scram(exchange, name, password)
    except Exception:  # noqa: BLE001 - the broker's refusal
        return False
    finally:
        assert broker.close() == []
    return exchange.identity is not None


@pytest.fixture
def word(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text("pässword\n")
    return file


async def test_an_account_is_made_changed_and_deleted(
    tmp_path: Path, word: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "deep" / "data"
    data.mkdir(parents=True)
    where = ("--data", str(data), "--password-file", str(word))
    assert main(["user", "add", "alice", *where, "--iterations", "4096"]) == 0
    assert stat.S_IMODE((data / "seglog-accounts.json").stat().st_mode) == 0o600
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert await can_log_in(data, "alice", "pässword", mechanism)
    assert main(["user", "add", "alice", *where]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["user", "add", "alice", *where, "--if-absent"]) == 0
    word.write_text("other")  # noqa: ASYNC240 - a moment
    assert main(["user", "passwd", "alice", *where, "--mechanism", "SCRAM-SHA-512"]) == 0
    assert not await can_log_in(data, "alice", "pässword")
    assert not await can_log_in(data, "alice", "other"), "the former credential went with the former password"
    assert await can_log_in(data, "alice", "other", "SCRAM-SHA-512")
    capsys.readouterr()
    assert main(["user", "list", "--data", str(data)]) == 0
    assert capsys.readouterr().out == "alice\tSCRAM-SHA-512 (8192 iterations)\n"
    assert main(["user", "delete", "alice", "--data", str(data)]) == 0
    assert main(["user", "delete", "alice", "--data", str(data)]) == 1
    assert not await can_log_in(data, "alice", "other", "SCRAM-SHA-512")


async def test_init_makes_an_administrator_with_a_password_that_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert main(["init", "--data", str(data), "--admin", "root"]) == 0
    told = capsys.readouterr().out
    [password] = [line.strip() for line in told.splitlines() if line.startswith("    ") and "=" not in line]
    assert "super.users=User:root" in told
    assert sorted(path.name for path in data.iterdir()) == [".lock", "seglog-accounts.json"]
    assert password not in (data / "seglog-accounts.json").read_text()
    assert await can_log_in(data, "root", password)
    assert main(["init", "--data", str(data), "--admin", "root"]) == 1
    again = capsys.readouterr()
    assert "already" in again.err
    assert not again.out
    assert main(["init", "--data", str(data), "--admin", "root", "--if-absent"]) == 0
    assert password not in capsys.readouterr().out


async def test_a_password_may_come_from_standard_input_and_is_then_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe\n")))
    assert main(["init", "--data", str(tmp_path / "data"), "--password-file", "-"]) == 0
    assert "from a pipe" not in capsys.readouterr().out
    assert await can_log_in(tmp_path / "data", "admin", "from a pipe")


def test_while_a_broker_uses_the_directory_it_is_named_and_nothing_changes(
    tmp_path: Path, word: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = opened(tmp_path / "data")
    where = ["--data", str(tmp_path / "data")]
    for arguments in (["user", "add", "a", "--password-file", str(word)], ["user", "delete", "a"], ["init"]):
        assert main([*arguments, *where]) == 1
        assert "`seglog user`" in capsys.readouterr().err
    assert main(["user", "list", *where]) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "data" / "seglog-accounts.json").exists()
    broker.close()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("alice", b"", "it is empty"),
        ("alice", b"\n", "it is empty"),
        ("alice", b"\xff", "not UTF-8"),
        ("alice", b"x" * 1025, "more than 1,024 bytes"),
        ("alice", b"x" * 9000, "more than 1,024 bytes"),
        ("alice", b"two\nlines", "SASLprep forbids it"),
        ("alice", "pa\u0308ss".encode(), "SASLprep changes it"),
        ("", b"word", "cannot name an account: it is empty"),
        ("a" * 256, b"word", "256 characters"),
        ("ANONYMOUS", b"word", "the name of those who come without an account"),
        ("a\u00adb", b"word", "SASLprep changes it"),
    ],
)
def test_a_name_or_password_that_clients_would_send_in_several_ways_is_refused(
    tmp_path: Path, word: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, why: str
) -> None:
    word.write_bytes(content)
    (tmp_path / "d").mkdir()
    assert main(["user", "add", name, "--data", str(tmp_path / "d"), "--password-file", str(word)]) == 1
    told = capsys.readouterr().err
    assert why in told
    assert len(told) < 400
    assert not (tmp_path / "d" / "seglog-accounts.json").exists()


def test_without_a_terminal_a_password_file_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (tmp_path / "d").mkdir()
    assert main(["user", "add", "a", "--data", str(tmp_path / "d")]) == 1
    assert "--password-file" in capsys.readouterr().err
    assert main(["user", "add", "a", "--data", str(tmp_path / "d"), "--password-file", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["user"],
        ["user", "add"],
        ["user", "add", "a", "--iterations", "4095"],
        ["user", "add", "a", "--iterations", "16385"],
        ["user", "add", "a", "--mechanism", "PLAIN"],
        ["init", "a"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_accounts_that_are_not_understood_stay_as_they_are(
    tmp_path: Path, word: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "seglog-accounts.json"
    file.write_text("{}")
    assert main(["user", "add", "a", "--data", str(tmp_path), "--password-file", str(word)]) == 1
    assert "cannot be understood" in capsys.readouterr().err
    assert file.read_text() == "{}"
    file.unlink()
    (tmp_path / "seglog-format").write_text("9\n")
    assert main(["user", "add", "a", "--data", str(tmp_path), "--password-file", str(word)]) == 1
    assert "newer" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["add", "passwd", "delete", "list"])
def test_a_directory_that_is_no_log_directory_gets_no_account(
    tmp_path: Path, word: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Neither one that is not there, as ./data of whoever names none, nor one with something else in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    arguments = ["user", command, *([] if command == "list" else ["a"])]
    password = ["--password-file", str(word)] if command in {"add", "passwd"} else []
    for where in ([], ["--data", str(tmp_path / "typo")], ["--data", str(tmp_path / "other")]):
        assert main([*arguments, *where, *password]) == 1
        told = capsys.readouterr().err
        assert "is no log directory" in told
        assert "seglogd init" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", word.name]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]


def test_every_option_is_in_the_document() -> None:
    page = reference("TLS and accounts")
    for parser in (make_user_parser(), make_init_parser()):
        shown = parser.format_help()
        assert parser.prog in page
        assert "Exit codes" in shown
    for option in ("--data", "--config", "--password-file", "--iterations", "--mechanism", "--if-absent", "--admin"):
        assert f"`{option}" in page, option
