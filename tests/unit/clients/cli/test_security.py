"""Who types, and to which broker: options before environment before profile; accounts by `seglog user`."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from seglog import connect as seglog_connect
from seglog.cli import main
from seglog.cli.arguments import Options
from seglog.cli.dispatch import ROOT, parse
from seglog.cli.exits import UsageError
from seglog.core.security import Secret, Tls
from seglog_protocol.errors import AuthenticationError, AuthenticationRequiredError
from tests.unit.clients.secure_broker import Authority, SecureBroker, secure_broker

PASSWORD = "kept-to-itself"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the configuration, of a user who has none yet."""
    for name in list(os.environ):
        if name.startswith("SEGLOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "seglog"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return str(file)


@pytest.fixture
def broker() -> Iterator[SecureBroker]:
    with secure_broker(passwords={"admin": PASSWORD}) as running:
        yield running


def profiles(home: Path, text: str, mode: int = 0o600) -> Path:
    file = home / "config.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def parsed(*arguments: str) -> Options:
    return parse([*arguments, "topic", "list"])


# --- Where it comes from ----------------------------------------------------------------------------------------------


def test_nothing_is_sent_that_nobody_asked_for() -> None:
    options = parsed()
    assert (options.server, options.security) == ("localhost:9192", {})


def test_options_come_before_the_environment_and_that_before_a_profile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles(
        home,
        """
        default = "prod"
        [profiles.prod]
        server = "seglogs://prod.example:9192"
        user = "alice"
        password_file = "alice.password"
        ca = "/ca.pem"
        certificate = "~/a.pem"
        key = "a.key"
        mechanism = "SCRAM-SHA-256"
        """,
    )
    monkeypatch.setenv("HOME", "/home/alice")
    options = parsed()
    assert options.server == "seglogs://prod.example:9192"
    assert options.security == {
        "user": "alice",
        "password_file": str(home / "alice.password"),
        "mechanism": "SCRAM-SHA-256",
        "tls": Tls("/ca.pem", "/home/alice/a.pem", str(home / "a.key")),
    }
    for name, value in (("USER", "bob"), ("PASSWORD_FILE", "/bob"), ("CA", "/other.pem")):
        monkeypatch.setenv(f"SEGLOG_{name}", value)
    security = parsed().security
    assert (security["user"], security["password_file"]) == ("bob", "/bob")
    assert security["tls"].ca == "/other.pem"
    security = parsed("--user", "carol", "--password-file", "/carol", "--ca", "/third.pem").security
    assert (security["user"], security["password_file"], security["tls"].ca) == ("carol", "/carol", "/third.pem")


def test_a_server_that_is_named_is_not_shown_the_account_of_the_default_profile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles(
        home,
        'default = "prod"\n[profiles.prod]\nserver = "prod.example"\nuser = "alice"\npassword_file = "p"\ntls = true\n',
    )
    assert parsed("--server", "localhost:1").security == {}
    assert parsed("--server", "seglogs://prod.example:9192").security["user"] == "alice"
    assert parsed("--profile", "prod", "--server", "localhost:1").security["user"] == "alice"
    monkeypatch.setenv("SEGLOG_SERVER", "localhost:1")
    assert parsed().security == {}
    monkeypatch.setenv("SEGLOG_PROFILE", "prod")
    assert parsed().security["tls"] is True


def test_a_user_without_a_home_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is for a uid without an account
    assert parsed().security == {}
    with pytest.raises(UsageError, match="there is no profile prod: /nonexistent/"):
        parsed("--profile", "prod")


def test_a_user_who_has_the_home_of_another_has_no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refuse)
    assert parsed().security == {}


def test_another_user_is_not_given_the_password_of_a_profile(home: Path) -> None:
    profiles(home, '[profiles.a]\nuser = "alice"\npassword_file = "p"\n')
    assert parsed("--profile", "a", "--user", "bob").security == {"user": "bob"}
    assert "password_file" in parsed("--profile", "a", "--user", "alice").security


def test_a_password_in_a_profile_is_for_its_owner_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f'[profiles.a]\nuser = "alice"\npassword = "{PASSWORD}"\n'
    profiles(home, text)
    password = parsed("--profile", "a").security["password"]
    assert isinstance(password, Secret)
    assert password.reveal() == PASSWORD
    assert PASSWORD not in repr(parsed("--profile", "a"))
    for mode in (0o640, 0o604, 0o644):
        file = profiles(home, text, mode)
        assert main(["--profile", "a", "topic", "list"]) == 2
        shown = capsys.readouterr().err
        assert f"{file} holds a password and others can read it: chmod 600 {file}" in shown
        assert PASSWORD not in shown
    profiles(home, '[profiles.a]\nuser = "alice"\npassword_file = "p"\n', 0o644)
    assert parsed("--profile", "a").security["user"] == "alice"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[profiles.a]\npassword = "{PASSWORD}', "is no TOML (at "),
        ('default = "b"\n[profiles.a]\n', "there is no profile b; there is a"),
        ("[profiles.a]\n", "there is no profile prod; there is a"),
        ("profiles = 3\n", "there is no profile prod; there is none"),
        ('defualt = "a"\n', "defualt is not known"),
        ('[profiles.prod]\nusers = "a"\n', "has users, which is not known; did you mean user?"),
        ("[profiles.prod]\nuser = 3\n", "user of profile prod must be text"),
        ('[profiles.prod]\ntls = "yes"\n', "tls of profile prod must be true or false"),
        ('[profiles.prod]\npassword = "a"\npassword_file = "b"\n', "exclude each other"),
        ('[profiles.prod]\nkey = "a"\n', "a key is for a certificate"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    profiles(home, text)
    assert main(["topic", "list", *([] if text.startswith("def") else ["--profile", "prod"])]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert PASSWORD not in shown


def test_names_of_profiles_are_completed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def completed(incomplete: str) -> list[str]:
        context = click.Context(ROOT)
        option = next(param for param in ROOT.params if param.name == "profile")
        return [item.value for item in option.shell_complete(context, incomplete)]

    assert completed("") == []
    assert main(["--profile", "prod", "topic", "list"]) == 2
    assert f"there is no profile prod: {home / 'config.toml'} does not exist" in capsys.readouterr().err
    profiles(home, "[profiles.prod]\n[profiles.proof]\n[profiles.test]\n")
    assert completed("pro") == ["prod", "proof"]
    profiles(home, "nonsense")
    assert completed("") == []


def test_what_does_not_talk_to_a_broker_reads_no_profile(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles(home, "nonsense")
    assert main(["completion", "fish"]) == 0
    assert "nonsense" not in capsys.readouterr().out


def test_tls_by_options_and_by_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed("--tls").security == {"tls": True}
    assert parsed("--no-tls").security == {"tls": False}
    assert parsed("--ca", "ca.pem").security == {"tls": Tls("ca.pem")}
    assert parse(["--tls", "topic", "list", "--no-tls"]).security == {"tls": False}
    monkeypatch.setenv("SEGLOG_CA", "ca.pem")
    assert parsed("--server", "a:1").security == {"tls": Tls("ca.pem")}
    assert parsed("--server", "seglog://a:1").security == {}
    assert parsed("--no-tls").security == {"tls": False}


def test_the_server_is_the_one_that_is_configured_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def server(listen: str, *arguments: str) -> str:
        monkeypatch.setenv("SEGLOG_LISTEN", listen)
        return parsed(*arguments).server

    assert server("0.0.0.0:9999") == server("[::]:9999") == "localhost:9999"
    assert server("10.0.0.5:9999") == "10.0.0.5:9999"
    assert server("127.0.0.1:0") == server("") == server("nonsense") == server(":9999") == "localhost:9192"
    assert server("0.0.0.0:9999", "--server", "there:1") == "there:1"
    assert server("SASL_SSL://0.0.0.0:9192") == "seglogs://localhost:9192"
    assert server("SSL://[::]:7") == "seglogs://localhost:7"
    assert server("PLAINTEXT://10.0.0.1:7") == "10.0.0.1:7"
    assert server("SASL_PLAINTEXT://:7") == "localhost:9192"


# --- To a broker ------------------------------------------------------------------------------------------------------


def test_a_program_without_an_address_connects_as_commands_do(
    home: Path, password_file: str, broker: SecureBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles(home, f'[profiles.mine]\nserver = "{broker.address}"\nuser = "admin"\npassword = "{PASSWORD}"\n')
    monkeypatch.setenv("SEGLOG_PROFILE", "mine")
    with seglog_connect() as client:
        assert client.principal == "User:admin"
    monkeypatch.setenv("SEGLOG_PROFILE", "yours")
    with pytest.raises(ValueError, match="there is no profile yours"):
        seglog_connect()
    with pytest.raises(AuthenticationRequiredError):
        seglog_connect(broker.address)
    monkeypatch.delenv("SEGLOG_PROFILE")
    for name, value in (("SERVER", broker.address), ("USER", "admin"), ("PASSWORD_FILE", password_file)):
        monkeypatch.setenv(f"SEGLOG_{name}", value)
    with seglog_connect() as client:
        assert client.principal == "User:admin"
    with pytest.raises(AuthenticationError):
        seglog_connect(password="wrong")


def test_ping_says_who_one_is_and_whether_there_is_tls(
    tmp_path: Path, password_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    login = ["--user", "admin", "--password-file", password_file]
    with secure_broker(passwords={"admin": PASSWORD}, context=authority.context()) as broker:
        command = ["--server", broker.address, "--ca", authority.file, *login, "ping"]
        assert main(command) == 0
        assert "as User:admin, TLSv1.3" in capsys.readouterr().out
        assert main([*command, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["principal"], said["tls"]) == ("User:admin", "TLSv1.3")
        assert main(["--server", broker.address, "--tls", "ping"]) == 3
        assert "--ca" in capsys.readouterr().err
    with secure_broker() as broker:
        assert main(["--server", broker.address, "ping", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["principal"], said["tls"]) == (None, None)


def test_a_refused_login_ends_with_its_own_code(broker: SecureBroker, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    login = ["--server", broker.address, "--user", "admin"]
    assert main([*login, "--password-file", str(wrong), "topic", "list"]) == 4
    assert main(["--server", broker.address, "topic", "list"]) == 4


def test_an_account_in_the_address_is_refused_and_not_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"seglogs://alice:{PASSWORD}@localhost:1"
    assert main(["--server", address, "topic", "list"]) == 2
    profiles(home, f'[profiles.a]\nserver = "{address}"\n')
    assert main(["--profile", "a", "ping"]) == 2
    monkeypatch.setenv("SEGLOG_SERVER", address)
    assert main(["consume", "t"]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("an account does not belong in the address") == 3
    assert PASSWORD not in shown.err + shown.out


@pytest.mark.parametrize(
    "name",
    [
        *("--user", "--password-file", "--ca", "--profile", "--server"),
        *("SEGLOG_USER", "SEGLOG_PASSWORD_FILE", "SEGLOG_CA"),
    ],
)
def test_what_is_empty_is_not_what_stands_behind_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Typed it is not what the environment says, and a variable not what a profile says."""
    profiles(home, 'default = "a"\n[profiles.a]\nuser = "admin"\npassword_file = "p"\n')
    given = [name, ""] if name.startswith("-") else []
    monkeypatch.setenv("SEGLOG_USER" if given else name, "bob" if given else "")
    assert main([*given, "topic", "list"]) == 2
    assert f"{name} is empty" in capsys.readouterr().err


def test_without_a_terminal_no_password_is_asked_for(broker: SecureBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server", broker.address, "--user", "admin", "topic", "list"]) == 2
    assert "give --password-file, or SEGLOG_PASSWORD_FILE" in capsys.readouterr().err


def test_accounts_are_added_changed_listed_and_deleted(
    broker: SecureBroker, tmp_path: Path, password_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    new.write_text("of alice\n")
    seglog = ["--server", broker.address, "--user", "admin", "--password-file", password_file, "user"]
    assert main([*seglog, "add", "alice", "--password-file", str(new)]) == 0
    assert capsys.readouterr().out == "alice: added\n"
    assert main(["--server", broker.address, "--user", "alice", "--password-file", str(new), "topic", "list"]) == 0
    assert main([*seglog, "add", "alice", "--password-file", str(new)]) == 1
    assert "there is an account 'alice' already" in capsys.readouterr().err
    assert main([*seglog, "passwd", "alice", "--password-file", str(new), "--iterations", "4096"]) == 0
    capsys.readouterr()
    assert main([*seglog, "list", "--json"]) == 0
    assert [user["name"] for user in json.loads(capsys.readouterr().out)] == ["alice"]
    assert main([*seglog, "list"]) == 0
    assert "SCRAM-SHA-256 (4096), SCRAM-SHA-512 (4096)" in capsys.readouterr().out
    assert main([*seglog, "delete", "alice", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"user": "alice"}
    assert main([*seglog, "passwd", "alice", "--password-file", str(new)]) == 4
    assert main([*seglog, "delete", "alice"]) == 4


def test_an_account_is_added_unless_it_is_there_with_a_password_of_standard_input(
    broker: SecureBroker, password_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seglog = ["--server", broker.address, "--user", "admin", "--password-file", password_file, "user"]
    add = [*seglog, "add", "alice", "--password-file", "-"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"of alice\n")))
    assert main([*add, "--if-absent"]) == 0
    assert capsys.readouterr().out == "alice: added\n"
    before = dict(broker.credentials)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"another\n")))
    assert main([*add, "--if-absent"]) == 0
    assert capsys.readouterr().out == "alice: was there already, and is not changed\n"
    assert broker.credentials == before
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert main([*seglog, "passwd", "alice", "--password-file", "-"]) == 2
    assert "standard input has several lines" in capsys.readouterr().err
    with seglog_connect(broker.address, user="alice", password="of alice"):
        pass


def test_a_password_of_ones_own_that_is_given_behind_the_command_belongs_in_front(
    broker: SecureBroker, password_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--server", broker.address, "user", "add", "i", "--user", "admin", "--password-file", password_file]
    assert main(command) == 2
    assert "that of user 'admin' belongs in front: seglog --password-file FILE user" in capsys.readouterr().err


def test_a_password_that_cannot_be_is_a_mistake_of_usage_and_not_shown(
    broker: SecureBroker, tmp_path: Path, password_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    seglog = ["--server", broker.address, "--user", "admin", "--password-file", password_file, "user", "add"]
    for text in (f"{PASSWORD}\u2168", f"{PASSWORD}\n{PASSWORD}\n"):
        new.write_text(text)
        assert main([*seglog, "alice", "--password-file", str(new)]) == 2
        shown = capsys.readouterr().err
        assert "password" in shown
        assert PASSWORD not in shown
    assert main([*seglog, "alice", "--password-file", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main([*seglog, "alice"]) == 2
    assert "without a terminal" in capsys.readouterr().err
