"""Who types, and to which broker: options before environment before profile; accounts by `seglog user`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from seglog import connect as seglog_connect
from seglog.cli.arguments import Options
from seglog.cli.dispatch import ROOT, parse
from seglog.cli.exits import UsageError
from seglog.core.security import Secret, Tls
from seglog.testing import Broker
from seglog_protocol.errors import AuthenticationError, AuthenticationRequiredError
from tests.unit.clients.cli.conftest import Said
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


def test_another_user_is_not_given_the_password_of_a_profile(home: Path) -> None:
    profiles(home, '[profiles.a]\nuser = "alice"\npassword_file = "p"\n')
    assert parsed("--profile", "a", "--user", "bob").security == {"user": "bob"}
    assert "password_file" in parsed("--profile", "a", "--user", "alice").security


def test_a_password_in_a_profile_is_for_its_owner_alone(home: Path, said: Said) -> None:
    text = f'[profiles.a]\nuser = "alice"\npassword = "{PASSWORD}"\n'
    profiles(home, text)
    password = parsed("--profile", "a").security["password"]
    assert isinstance(password, Secret)
    assert password.reveal() == PASSWORD
    assert PASSWORD not in repr(parsed("--profile", "a"))
    for mode in (0o640, 0o604, 0o644):
        file = profiles(home, text, mode)
        shown = said(2, "--profile", "a", "topic", "list")
        assert f"{file} holds a password and others can read it: chmod 600 {file}" in shown
        assert PASSWORD not in shown
    profiles(home, '[profiles.a]\nuser = "alice"\npassword_file = "p"\n', 0o644)
    assert parsed("--profile", "a").security["user"] == "alice"


@pytest.mark.parametrize(
    ("text", "sentence"),
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
def test_a_file_that_is_wrong_is_refused_with_its_place(home: Path, said: Said, text: str, sentence: str) -> None:
    profiles(home, text)
    shown = said(2, "topic", "list", *([] if text.startswith("def") else ["--profile", "prod"]))
    assert sentence in shown
    assert PASSWORD not in shown


def test_names_of_profiles_are_completed(home: Path, said: Said) -> None:
    def completed(incomplete: str) -> list[str]:
        context = click.Context(ROOT)
        option = next(param for param in ROOT.params if param.name == "profile")
        return [item.value for item in option.shell_complete(context, incomplete)]

    assert completed("") == []
    absent = f"there is no profile prod: {home / 'config.toml'} does not exist"
    assert absent in said(2, "--profile", "prod", "topic", "list")
    profiles(home, "[profiles.prod]\n[profiles.proof]\n[profiles.test]\n")
    assert completed("pro") == ["prod", "proof"]
    profiles(home, "nonsense")
    assert completed("") == []


def test_what_does_not_talk_to_a_broker_reads_no_profile(home: Path, said: Said) -> None:
    profiles(home, "nonsense")
    assert "nonsense" not in said(0, "completion", "fish")


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


def test_ping_says_who_one_is_and_whether_there_is_tls(tmp_path: Path, password_file: str, said: Said) -> None:
    authority = Authority(tmp_path)
    login = ["--user", "admin", "--password-file", password_file]
    with secure_broker(passwords={"admin": PASSWORD}, context=authority.context()) as broker:
        command = ["--server", broker.address, "--ca", authority.file, *login, "ping"]
        assert "as User:admin, TLSv1.3" in said(0, *command)
        told = json.loads(said(0, *command, "--json"))
        assert (told["principal"], told["tls"]) == ("User:admin", "TLSv1.3")
        assert "--ca" in said(3, "--server", broker.address, "--tls", "ping")
    with secure_broker() as broker:
        told = json.loads(said(0, "--server", broker.address, "ping", "--json"))
        assert (told["principal"], told["tls"]) == (None, None)


@pytest.mark.parametrize(
    "name",
    [
        *("--user", "--password-file", "--ca", "--profile", "--server"),
        *("SEGLOG_USER", "SEGLOG_PASSWORD_FILE", "SEGLOG_CA"),
    ],
)
def test_what_is_empty_is_not_what_stands_behind_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str
) -> None:
    """Typed it is not what the environment says, and a variable not what a profile says."""
    profiles(home, 'default = "a"\n[profiles.a]\nuser = "admin"\npassword_file = "p"\n')
    given = [name, ""] if name.startswith("-") else []
    monkeypatch.setenv("SEGLOG_USER" if given else name, "bob" if given else "")
    assert f"{name} is empty" in said(2, *given, "topic", "list")


@pytest.fixture(scope="module")
def administered() -> Iterator[Broker]:
    with Broker(memory=True, users={"admin": PASSWORD}, admins=["admin"]) as running:
        yield running


@pytest.fixture
def seglog(administered: Broker, password_file: str, said: Said) -> Said:
    """``seglog user``, by the administrator."""
    login = ("--server", administered.server, "--user", "admin", "--password-file", password_file, "user")

    def run(code: int, *arguments: str, stdin: bytes = b"") -> str:
        return said(code, *login, *arguments, stdin=stdin)

    return run


def test_without_a_terminal_no_password_is_asked_for(broker: SecureBroker, said: Said) -> None:
    shown = said(2, "--server", broker.address, "--user", "admin", "topic", "list")
    assert "give --password-file, or SEGLOG_PASSWORD_FILE" in shown


def test_accounts_are_added_changed_listed_and_deleted(
    administered: Broker, tmp_path: Path, said: Said, seglog: Said
) -> None:
    (tmp_path / "new").write_text("of alice\n")
    new = ("alice", "--password-file", str(tmp_path / "new"))
    assert seglog(0, "add", *new) == "alice: added\n"
    said(0, "--server", administered.server, "--user", *new, "topic", "list")
    assert "there is an account 'alice' already" in seglog(1, "add", *new)
    seglog(0, "passwd", *new, "--iterations", "4096")
    assert [user["name"] for user in json.loads(seglog(0, "list", "--json"))][:2] == ["admin", "alice"]
    assert "SCRAM-SHA-256 (4096), SCRAM-SHA-512 (4096)" in seglog(0, "list")
    assert json.loads(seglog(0, "delete", "alice", "--json")) == {"user": "alice"}
    seglog(4, "passwd", *new)
    seglog(4, "delete", "alice")


def test_an_account_is_added_unless_it_is_there_with_a_password_of_standard_input(
    administered: Broker, seglog: Said
) -> None:
    add = ("add", "bob", "--password-file", "-", "--if-absent")
    assert seglog(0, *add, stdin=b"of bob\n") == "bob: added\n"
    assert seglog(0, *add, stdin=b"another\n") == "bob: was there already, and is not changed\n"
    shown = seglog(2, "passwd", "bob", "--password-file", "-", stdin=b"one\ntwo\n")
    assert "standard input has several lines" in shown
    with seglog_connect(administered.server, user="bob", password="of bob"):
        pass


def test_a_password_of_ones_own_that_is_given_behind_the_command_belongs_in_front(
    broker: SecureBroker, password_file: str, said: Said
) -> None:
    command = ["--server", broker.address, "user", "add", "i", "--user", "admin", "--password-file", password_file]
    assert "that of user 'admin' belongs in front: seglog --password-file FILE user" in said(2, *command)


def test_a_password_that_cannot_be_is_a_mistake_of_usage_and_not_shown(tmp_path: Path, seglog: Said) -> None:
    new = tmp_path / "new"
    for text in (f"{PASSWORD}\u2168", f"{PASSWORD}\n{PASSWORD}\n"):
        new.write_text(text)
        shown = seglog(2, "add", "alice", "--password-file", str(new))
        assert "password" in shown
        assert PASSWORD not in shown
    assert "nowhere" in seglog(1, "add", "alice", "--password-file", str(tmp_path / "nowhere"))
    assert "without a terminal" in seglog(2, "add", "alice")
