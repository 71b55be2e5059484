"""`seglogd --check-config`: what would be in force, where it is from, and all that is wrong, not only the first."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from seglog_broker.__main__ import main
from seglog_broker.config import ConfigSources
from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.config.report import access_lines, configuration_lines, machine_warnings, verdict_lines, why_unusable
from seglog_broker.config.sources import examine_config
from tests.logs import old_message
from tests.support import each_case

MISTAKES = """\
"log.segment.byts" = 5
"num.partitions" = 0
"log.retention.hours" = "long"
"log.cleaner.threads" = -1
"retention.ms" = 5
[log]
dir = "x"
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Seglogd = Callable[..., Done]


@pytest.fixture
def seglogd(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Seglogd:
    """The command with these arguments, without what configures a broker in the environment. It may not serve here."""
    for name in [name for name in os.environ if name.startswith("SEGLOG_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        return Done(main(arguments), *capfd.readouterr())

    return run


def lines_of(*flags: str) -> dict[str, list[str]]:
    lines = configuration_lines(examine_config(None, "", {"SEGLOG_LISTEN": "[::1]:1"}, flags))
    return {line.split()[0]: line.split(maxsplit=2) for line in lines}


def test_every_key_stands_there_once_with_value_and_origin() -> None:
    lines = lines_of("log.retention.hours=1")
    assert {described.key for described in BrokerConfig().describe()} | {"KEY"} == set(lines)
    assert lines["seglog.listen"][1] == "[::1]:1"
    assert "environment SEGLOG_LISTEN" in lines["seglog.listen"][2]
    assert lines["log.retention.ms"][1] == "3600000"
    assert "flag --set log.retention.hours" in lines["log.retention.ms"][2]
    assert lines["log.retention.ms"][2].endswith("at a reload")
    assert lines["seglog.handles.max"][2].endswith("at a restart")
    assert lines["seglog.http.token.file"][2].endswith("at a reload")
    assert lines["log.dir.failure.timeout.ms"][2].endswith("has no effect here")


def test_all_mistakes_are_found_each_once_and_their_keys_have_no_value() -> None:
    examined = examine_config(
        MISTAKES, "f.toml", {"SEGLOG_FETCH_MAX_BYTES": "many"}, ["nonsense", "log.segment.bytes=1"]
    )
    named = sorted(error.facts["key"] for error in examined.mistakes)
    assert named == [
        "fetch.max.bytes",
        "log.cleaner.threads",
        "log.dir",
        "log.retention.hours",
        "log.segment.bytes",
        "log.segment.byts",
        "nonsense",
        "num.partitions",
        "retention.ms",
    ]
    lines = {line.split()[0]: line for line in configuration_lines(examined)}
    for key in ("fetch.max.bytes", "num.partitions", "log.retention.ms", "log.segment.bytes"):
        assert "?" in lines[key], key
    assert lines["seglog.handles.max"].split()[1] == "2048"
    *told, last = verdict_lines(examined, ["only 40 open files"])
    assert told[0] == "warning: only 40 open files."
    assert sum(line.startswith("mistake: ") for line in told) == 9
    assert last == "9 mistakes and 1 warning: the broker would not start."


def test_values_that_contradict_each_other_are_mistakes_too() -> None:
    contradiction = ["log.cleaner.min.compaction.lag.ms=9", "log.cleaner.max.compaction.lag.ms=8"]
    assert len(examine_config(None, "", {}, contradiction).mistakes) == 1
    both = examine_config(None, "", {}, [*contradiction, "log.cleaner.threads=1000"])
    assert len(both.mistakes) == 2


def test_a_file_that_cannot_be_read_is_one_mistake_among_others() -> None:
    examined = ConfigSources("/nowhere/f.toml", {}, ["num.partitions=0"]).examine()
    assert ["/nowhere/f.toml" in error.message for error in examined.mistakes] == [True, False]


def test_what_can_be_used_is_said_so() -> None:
    assert verdict_lines(examine_config(None, "", {}, []), []) == ["The configuration can be used."]
    [warning, last] = verdict_lines(examine_config(None, "", {}, ["seglog.http.listen=a:1"]), [])
    assert warning.startswith("warning: seglog.http.listen")
    assert last == "The configuration can be used (1 warning)."


@pytest.mark.parametrize(("text", "code"), [('"num.partitions" = 3\n', 0), (MISTAKES, 2)])
def test_the_command_prints_both_ends_with_a_code_and_touches_nothing(
    seglogd: Seglogd, text: str, code: int, tmp_path: Path
) -> None:
    file = tmp_path / "seglogd.toml"
    file.write_text(text, encoding="utf-8")
    done = seglogd("--check-config", "--config", str(file), "--data", str(tmp_path / "data"))
    assert done.returncode == code
    assert "log.cleaner.backoff.ms" in done.stdout
    assert done.stdout.splitlines()[0].split()[:3] == ["KEY", "VALUE", "ORIGIN"]
    assert all(line.startswith("seglogd: ") for line in done.stderr.splitlines())
    assert done.stderr.count("mistake: ") == (0 if code == 0 else 6)
    assert not (tmp_path / "data").exists()


def test_a_start_with_several_mistakes_says_where_to_find_the_others(seglogd: Seglogd, tmp_path: Path) -> None:
    done = seglogd("--data", str(tmp_path / "data"), "--set", "num.partitions=0", "--set", "fetch.max.bytes=0")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "1 more mistake, see --check-config" in done.stderr


def warnings_of(folder: Path, *flags: str) -> list[str]:
    return machine_warnings(examine_config(None, "", {}, [f"log.dir={folder}", *flags]).config)


def test_sizes_that_the_machine_has_not_are_warned_of(tmp_path: Path) -> None:
    assert warnings_of(tmp_path / "a" / "b") == []
    for flag in ("seglog.request.memory.max", "log.cleaner.dedupe.buffer.size"):
        [warning] = warnings_of(tmp_path, f"{flag}=100TiB")
        assert warning.startswith(f"{flag} = 102,400.0 GiB is more than the ")
        assert warning.endswith(" of memory that this machine has")
    [warning] = warnings_of(tmp_path, "seglog.disk.free.hard.bytes=1000000TiB")
    assert warning.endswith(" of the disk of log.dir: no record would ever be appended")
    [warning] = warnings_of(tmp_path, "log.retention.bytes=1000000TiB")
    assert warning.endswith(": the disk is full before that is reached")


@pytest.mark.parametrize("flag", ["seglog.http.listen=127.0.0.1:9192", "listeners=PLAINTEXT://:9092,PLAINTEXT://:9192"])
def test_a_port_that_is_named_twice_is_warned_of(tmp_path: Path, flag: str) -> None:
    [warning] = warnings_of(tmp_path, flag)
    assert "uses port 9192, which is that of seglog.listen = 127.0.0.1:9192" in warning
    assert warnings_of(tmp_path, flag, "seglog.listen=127.0.0.1:9292") == []


def test_a_log_directory_that_cannot_be_used_is_a_mistake(seglogd: Seglogd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, why in ((tmp_path / "file", "is not a directory"), (tmp_path / "file" / "data", "is not a directory")):
        done = seglogd("--check-config", "--data", str(path))
        assert done.returncode == 2
        assert f"mistake: log.dir = {path} cannot be used: {tmp_path / 'file'} {why}." in done.stderr
    (tmp_path / "data" / "old-0").mkdir(parents=True)
    (tmp_path / "data" / "old-0" / f"{0:020d}.log").write_bytes(old_message(0))
    done = seglogd("--check-config", "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert f"mistake: {tmp_path / 'data'} has records in Kafka's message formats 0 and 1" in done.stderr
    assert why_unusable(BrokerConfig(log_dir=str(tmp_path / "new" / "data"))) is None
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert "may not write in" in (why_unusable(BrokerConfig(log_dir=str(tmp_path / "new"))) or "")


def test_contradictory_settings_give_warnings() -> None:
    """Contradictions of segments and retention give warnings whichever was set last."""

    def told(*flags: str) -> list[str]:
        return examine_config(None, "", {}, flags).warnings

    [warning] = told("log.retention.ms=1h", "log.roll.ms=7d")
    assert warning.startswith("log.roll.ms = 604800000 is more than retention.ms = 3600000: ")
    [warning] = told("log.retention.bytes=100MiB", "log.segment.bytes=1GiB")
    assert warning.startswith("log.retention.bytes = 104857600 is less than segment.bytes = 1073741824: ")
    defaults = examine_config(None, "", {}, ["log.retention.bytes=100MiB", "log.segment.bytes=10MiB"]).config
    _, warnings = defaults.validate_topic_config({"segment.bytes": "200MiB"})
    assert [w for w in warnings if w.startswith("segment.bytes = 209715200 is more than retention.bytes = 104857600: ")]


# --- Who may do what --------------------------------------------------------------------------------------------------


def access_of(*flags: str) -> list[str]:
    config, _ = ConfigSources(flags=flags).load()
    return [" ".join(line.split()) for line in access_lines(config)[1:]]


def test_it_is_told_what_is_open_to_whom() -> None:
    assert access_of() == [
        "seglog.listen 127.0.0.1:9192 PLAINTEXT this machine everyone, as User:ANONYMOUS",
        "PLAINTEXT 127.0.0.1:9092 PLAINTEXT this machine everyone, as User:ANONYMOUS",
        "seglog.http.listen 127.0.0.1:9193 HTTP, PLAINTEXT this machine /metrics and /healthz: everyone",
        "Topics, configurations and accounts are administered by: everyone",
    ]
    flags = [
        "listeners=INTERNAL://127.0.0.1:1,SASL_SSL://:2,SSL://:3,SASL_PLAINTEXT://:4",
        "listener.security.protocol.map=INTERNAL:PLAINTEXT",
        "ssl.keystore.location=server.pem",
        "ssl.client.auth=required",
        "seglog.http.listen=",
    ]
    accounts = "accounts, by SCRAM-SHA-256, SCRAM-SHA-512"
    assert access_of(*flags)[1:] == [
        "INTERNAL 127.0.0.1:1 PLAINTEXT this machine everyone, as User:ANONYMOUS",
        f"SASL_SSL 0.0.0.0:2 SASL_SSL every machine that reaches it {accounts}, PLAIN and a certificate",
        "SSL 0.0.0.0:3 SSL every machine that reaches it whoever has a certificate",
        f"SASL_PLAINTEXT 0.0.0.0:4 SASL_PLAINTEXT every machine that reaches it {accounts}",
        "Topics, configurations and accounts are administered by: nobody, as super.users is empty",
    ]
    tokens = ("sasl.enabled.mechanisms=OAUTHBEARER", "seglog.sasl.oauthbearer.unsecured=true")
    shown = access_of("listeners=SASL_PLAINTEXT://127.0.0.1:9092", *tokens)
    assert any(line.endswith("anyone, as any account") for line in shown)
    assert access_of(*flags, "super.users=User:a;User:b")[-1].endswith("are administered by: User:a, User:b")
    rules = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert access_of(*flags, "super.users=User:a", rules)[-1].endswith("by: User:a, whoever rules (ACLs) allow to")


@each_case(
    ("flags", "who"),
    [
        (["seglog.http.listen=0.0.0.0:1"], "nobody"),
        (["seglog.http.listen=0.0.0.0:1", "seglog.http.token.file=t"], "whoever has the token"),
        (["seglog.http.listen=0.0.0.0:1", "seglog.open.to.everyone=true"], "everyone"),
        (
            ["seglog.http.listen=SSL://0.0.0.0:1", "ssl.client.auth=required", "ssl.keystore.location=s.pem"],
            "whoever has a certificate",
        ),
    ],
)
def test_it_is_told_who_sees_metrics_and_problems(flags: list[str], who: str) -> None:
    [told] = [line for line in access_of(*flags) if line.startswith("seglog.http.listen ")]
    assert told.endswith(f"every machine that reaches it /metrics and /healthz: {who}")


def test_the_token_is_looked_at(seglogd: Seglogd, tmp_path: Path) -> None:
    token = tmp_path / "token"
    flags = ["--data", str(tmp_path / "data"), "--set", f"seglog.http.token.file={token}", "--http", "127.0.0.1:1"]
    mistake = f"mistake: seglog.http.token.file = {token} cannot be used: "
    for content, why in (
        (None, "there is no such file."),
        ("short", "a token has 16 characters or more: openssl rand -hex 32 makes one."),
        ("two lines of text\nare no token", "a token is one line of letters, digits and"),
        ("x" * 5000, "it has more than 4096 bytes."),
    ):
        if content is not None:
            token.write_text(content)
        checked = seglogd("--check-config", *flags)
        assert (checked.returncode, mistake + why in checked.stderr) == (2, True), checked.stderr
    token.write_text("0123456789abcdef\n")
    token.chmod(0o644)
    checked = seglogd("--check-config", *flags)
    assert checked.returncode == 0
    assert f"seglog.http.token.file = {token} can be read by other users of this machine (mode 0644)" in checked.stderr


def test_the_certificate_is_looked_at(seglogd: Seglogd, tmp_path: Path) -> None:
    authority = trustme.CA()
    ends = datetime.now(UTC) + timedelta(days=3)
    issued = authority.issue_cert("localhost", not_after=ends)
    pem = tmp_path / "server.pem"
    pem.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    flags = ["--set", "listeners=SSL://127.0.0.1:0", "--set", f"ssl.keystore.location={pem}", "--check-config"]
    checked = seglogd("--data", str(tmp_path / "data"), *flags)
    assert checked.returncode == 0
    assert "warning: the broker's TLS certificate" in checked.stderr
    assert "in 2 days: renew it and send SIGHUP." in checked.stderr
    pem.write_bytes(issued.cert_chain_pems[0].bytes())
    checked = seglogd("--data", str(tmp_path / "data"), *flags)
    assert checked.returncode == 2
    assert f"mistake: ssl.keystore.location = {pem} cannot be used: there is no private key in it" in checked.stderr
