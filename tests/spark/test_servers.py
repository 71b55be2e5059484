"""Brokers that want TLS or an account: the options of Spark, without a secret among them, and a query by both."""

import io
import pickle
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import seglog
from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.core.security import Secret, Tls
from seglog_spark.options import Mode, OptionError, parse_read_options, parse_write_options
from seglog_spark.servers import SecuredServer, options_of, server_of
from tests.processes import Daemon
from tests.unit.clients.secure_broker import Authority, SecureFront, secure_front

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "kept-to-itself"

BROKER = {"servers": "logs.example:9192"}
READ = BROKER | {"subscribe": "t"}


# --- Options ----------------------------------------------------------------------------------------------------------


def test_source_and_sink_take_them_alike() -> None:
    given = {
        "user": "alice",
        "passwordfile": "/p",
        "mechanism": "scram-sha-256",
        "tls": "true",
        "ca": "/ca.pem",
        "certificate": "/c.pem",
        "key": "/c.key",
    }
    names = {"passwordFile" if name == "passwordfile" else name: text for name, text in given.items()}
    server = SecuredServer("logs.example:9192", names | {"mechanism": "SCRAM-SHA-256"})
    modes: tuple[Mode, Mode] = ("batch", "stream")
    for mode in modes:
        assert parse_read_options(READ | given, mode).server == server
        assert parse_write_options(BROKER | given, mode).server == server
    assert pickle.loads(pickle.dumps(server)) == server
    assert parse_read_options(options_of(server) | {"subscribe": "t"}, "batch").server == server
    assert server.keywords() == {
        "user": "alice",
        "password_file": "/p",
        "mechanism": "SCRAM-SHA-256",
        "tls": Tls("/ca.pem", "/c.pem", "/c.key"),
    }


def test_a_scheme_says_tls() -> None:
    for scheme in ("seglog", "seglogs"):
        server = parse_read_options({"servers": f"{scheme}://a", "subscribe": "t"}, "batch").server
        assert server == SecuredServer(f"{scheme}://a:9192")


def test_without_them_nothing_is_added() -> None:
    server = parse_read_options(READ, "batch").server
    assert server == "logs.example:9192"
    assert isinstance(server, str)
    assert options_of(server) == BROKER


def test_the_environment_of_each_machine_may_name_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SecuredServer("a:1", {"user": "alice"})
    monkeypatch.delenv("SEGLOG_PASSWORD_FILE", raising=False)
    with pytest.raises(ValueError, match=r"passwordFile.*SEGLOG_PASSWORD_FILE"):
        server.keywords()
    monkeypatch.setenv("SEGLOG_PASSWORD_FILE", "/here")
    assert server.keywords()["password_file"] == "/here"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"password": PASSWORD}, "passwordFile"),
        ({"token": PASSWORD}, "passwordFile"),
        ({"kafka.sasl.jaas.config": f"password={PASSWORD}"}, "write user and passwordFile"),
        ({"kafka.security.protocol": "SASL_SSL"}, "write tls true"),
        ({"passwordFile": "/p"}, "belongs to the option user"),
        ({"mechanism": "PLAIN"}, "belongs to the option user"),
        ({"user": "a", "mechanism": "OAUTHBEARER"}, "SCRAM-SHA-512 or SCRAM-SHA-256 or PLAIN"),
        ({"key": "/k"}, "belongs to the option certificate"),
        ({"tls": "yes"}, "tls is true or false"),
        ({"user": " "}, "user is empty"),
    ],
)
def test_what_contradicts_itself_or_would_show_a_secret_is_refused(given: dict[str, str], said: str) -> None:
    for parse, base in ((parse_read_options, READ), (parse_write_options, BROKER)):
        with pytest.raises(OptionError, match=said) as caught:
            parse(base | given, "batch")
        assert PASSWORD not in str(caught.value)


def test_a_job_gives_its_executors_files_and_no_secret() -> None:
    def options(**security: object) -> Options:
        return Options(lambda _: 0, "a:1", False, 1.0, security=security)

    assert server_of(options()) == "a:1"
    server = server_of(options(user="alice", password_file="/p", tls=Tls("/ca.pem"), mechanism="PLAIN"))
    named = {"user": "alice", "passwordFile": "/p", "mechanism": "PLAIN", "ca": "/ca.pem"}
    assert server == SecuredServer("a:1", named)
    assert server_of(options(tls=True)) == SecuredServer("a:1", {"tls": "true"})
    for security in ({"user": "alice"}, {"user": "alice", "password": Secret(PASSWORD)}):
        with pytest.raises(UsageError, match="--password-file"):
            server_of(options(**security))


# --- Spark ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def front(running: Daemon, tmp_path: Path) -> Iterator[tuple[SecureFront, dict[str, str]]]:
    """A broker with TLS and accounts, and the options that lead to it."""
    authority = Authority(tmp_path)
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    with secure_front(running.address, context=authority.context(), passwords={"alice": PASSWORD}) as secured:
        yield secured, {"servers": secured.address, "user": "alice", "passwordFile": str(file), "ca": authority.file}


def test_a_query_logs_in_on_every_machine_and_its_plan_shows_no_secret(
    spark: "SparkSession", front: tuple[SecureFront, dict[str, str]], running: Daemon
) -> None:
    secured, options = front
    rows = spark.createDataFrame([(f"value {number}",) for number in range(100)], "value string")
    rows.write.format("seglog").options(**options, topic="secured").mode("append").save()
    read = spark.read.format("seglog").options(**options, subscribe="secured").load()
    assert sorted(row.value.decode() for row in read.select("value").collect()) == sorted(
        f"value {number}" for number in range(100)
    )
    assert {principal for principal, _ in secured.logins} == {"User:alice"}
    shown = io.StringIO()
    with redirect_stdout(shown):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            read.explain(mode)
    assert "seglog" in shown.getvalue().lower()
    assert PASSWORD not in shown.getvalue()
    assert PASSWORD not in repr(read._jdf.queryExecution().toString())
    with seglog.connect(running.address) as client:
        assert sum(p.latest for p in client.offsets("secured")) == 100
