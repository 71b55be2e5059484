"""``seglog doctor``: a verdict and a remedy a line, on healthy brokers and sick ones, and the exit code of ``ping``."""

import json
import math
import os
import socket
import subprocess
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from seglog.cli import doctor, main
from seglog.cli.checkups.model import problem
from seglog.cli.checkups.told import OFFSET_SECONDS_WARNED, OFFSET_SECONDS_WRONG, SECTIONS
from seglog_protocol.errors import UnsupportedApiError
from seglog_protocol.messages import DescribeBrokerRequest, DescribedListener, Request
from tests.processes import daemon, free_port, kafka_daemon, on_terminal, seglog_command
from tests.support import each_case
from tests.unit.clients.cli.conftest import Typed
from tests.unit.clients.cli.doctor_answers import Sick
from tests.unit.clients.fake_broker import Answer, FakeBroker
from tests.unit.clients.secure_broker import secure_broker


def told(server: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code and checks, by name."""
    with redirect_stdout(StringIO()) as printed:
        code = main(["--server", server, "doctor", "--json"])
    found: dict[str, list[dict[str, str]]] = {}
    for check in json.loads(printed.getvalue())["checks"]:
        found.setdefault(check["name"], []).append(check)
    return code, found


def verdicts(checks: dict[str, list[dict[str, str]]], name: str) -> list[str]:
    return [check["verdict"] for check in checks[name]]


# --- Daemons ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A private directory, whatever the umask is."""
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    return folder


def test_a_healthy_broker_is_found_healthy_in_lines_that_fit_the_terminal(home: Path) -> None:
    with kafka_daemon(home) as running:
        code, checks = told(running.address)
        assert code == 0
        for name in (
            "broker",
            "connection",
            "versions",
            "clock",
            "configuration",
            "permissions",
        ):  # the rest: the machine's
            assert verdicts(checks, name) == ["ok"], checks[name]
        assert verdicts(checks, "ports") == ["ok", "ok"]
        (advertised,) = checks["advertised"]
        assert f"127.0.0.1:{running.kafka_port}, where this broker answers" in advertised["found"]
        assert str(home) in checks["disk"][0]["found"]
        count = sum(map(len, checks.values()))
        for columns in (80, 160):
            code, shown = on_terminal(seglog_command(running.address, "doctor"), columns=columns, NO_COLOR="1")
            assert code == 0
            lines = shown.splitlines()
            assert all(len(line) <= columns or str(home) in line or "docs/OPERATIONS.md" in line for line in lines)
            assert all(line.startswith((" ", "ok", "warning", "unknown")) for line in lines[:-1])
            assert lines[-1].startswith(f"{count} checks: ")


def test_what_to_do_is_not_in_the_colour_of_what_is_wrong_on_any_of_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr(doctor, "columns_of_terminal", lambda: 80)
    monkeypatch.setattr(doctor, "print_line", lambda line, **style: shown.append((line, bool(style))))
    doctor._print(problem("disk", "word " * 40, "remedy " * 40))
    assert {is_coloured for line, is_coloured in shown if "word" in line} == {True}
    remedy = [is_coloured for line, is_coloured in shown if "remedy" in line]
    assert len(remedy) > 1
    assert not any(remedy)


def test_an_advertised_address_that_nobody_answers_at_is_a_problem(home: Path) -> None:
    port = free_port()
    flags = (
        "--set",
        "listeners=PLAINTEXT://127.0.0.1:0",
        "--set",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
    )
    with daemon(home, *flags) as running:
        code, checks = told(running.address)
    assert code == 1
    (advertised,) = checks["advertised"]
    assert advertised["verdict"] == "problem"
    assert f"127.0.0.1:{port}, and that fails from here: Connection refused" in advertised["found"]
    assert "advertised.listeners" in advertised["remedy"]


def test_an_advertised_address_of_another_broker_is_a_problem(home: Path, tmp_path: Path) -> None:
    with kafka_daemon(tmp_path / "other") as other:
        flags = "listeners=PLAINTEXT://127.0.0.1:0", f"advertised.listeners=PLAINTEXT://127.0.0.1:{other.kafka_port}"
        with daemon(home, *(part for flag in flags for part in ("--set", flag))) as running:
            code, checks = told(running.address)
    assert code == 1
    assert "where another broker answers" in checks["advertised"][0]["found"]


def test_few_open_files_and_what_others_can_read_are_told(home: Path) -> None:
    home.chmod(0o777)
    with daemon(home, under=("prlimit", "--nofile=700:700")) as running:
        code, checks = told(running.address)
        subprocess.run(checks["permissions"][0]["remedy"].split(), check=True)
        assert verdicts(told(running.address)[1], "permissions") == ["ok"]
        (home / "seglog-accounts.json").touch(0o644)
        (home / "seglog-accounts.json").chmod(0o644)
        shared = told(running.address)[1]["permissions"]
        assert [check["verdict"] for check in shared] == ["ok", "problem"]
        subprocess.run(shared[1]["remedy"].split(), check=True)
        assert verdicts(told(running.address)[1], "permissions") == ["ok"]
        (home / "seglog-accounts.json").unlink()
    assert code == 1
    assert verdicts(checks, "limits") == ["warning"]
    assert "700 open files are granted" in checks["limits"][0]["found"]
    assert "LimitNOFILE" in checks["limits"][0]["remedy"]
    assert verdicts(checks, "permissions") == ["problem"]
    assert checks["permissions"][0]["remedy"] == f"chmod 750 {home}"


def test_the_pages_for_health_and_metrics_are_asked(home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length-0123456789\n")
    token.chmod(0o600)
    pages = ("--set", "seglog.http.listen=127.0.0.1:0")
    with daemon(home, *pages) as running:
        code, checks = told(running.address)
        assert code == 0
        assert checks["http"][0]["found"] == (
            f"http (PLAINTEXT) at 127.0.0.1:{running.http_port} answers probes and Prometheus"
        )
        assert "advertised" not in checks
    with daemon(home, *pages, "--set", f"seglog.http.token.file={token}") as running:
        _, checks = told(running.address)
        assert checks["http"][0]["found"].endswith("/metrics with the token")
        assert checks["http"][0]["verdict"] == "ok"


def test_without_a_broker_it_says_so_and_exits_as_ping(typed: Typed) -> None:
    code, out, _ = typed("--server", "127.0.0.1:1", "doctor", "--connect-timeout", "0.1")
    assert code == typed("--server", "127.0.0.1:1", "ping", "--connect-timeout", "0.1")[0] == 3
    lines = out.splitlines()
    assert lines[0].startswith("problem  broker")
    assert "-> start it" in lines[1]
    assert lines[-1] == "1 check: 1 problem"


@each_case("account", [(), ("--user", "admin")], ids=["none", "a wrong password"])
def test_one_that_refuses_the_login_is_not_said_to_be_stopped(
    account: tuple[str, ...], tmp_path: Path, typed: Typed
) -> None:
    wrong = tmp_path / "password"
    wrong.write_text("wrong-password")
    wrong.chmod(0o600)
    given = (*account, "--password-file", str(wrong)) if account else ()
    with secure_broker(passwords={"admin": "right-password"}) as running:
        code, out, _ = typed("--server", running.address, "doctor", *given)
        assert code == typed("--server", running.address, "ping", *given)[0] == 4
    shown = " ".join(out.split())
    assert "--user NAME with --password-file FILE" in shown
    assert "start it" not in shown


def test_the_runbook_has_the_sections_that_are_named() -> None:
    headings = (Path(__file__).parents[4] / "docs" / "OPERATIONS.md").read_text().splitlines()
    assert [name for name in {*SECTIONS.values(), "Situations"} if f"## {name}" not in headings] == []


# --- Brokers that tell something else ---------------------------------------------------------------------------------


@pytest.fixture
def sick(broker: FakeBroker) -> Sick:
    sick = Sick()
    broker.script = sick.answer
    return sick


def test_a_problem_of_no_kind_has_a_remedy_too(broker: FakeBroker, sick: Sick) -> None:
    sick.hello |= {"problems": ["full-disk-0 is offline: EIO", "and 2 more"], "problem_kinds": ["disk"]}
    code, checks = told(broker.address)
    assert code == 1
    assert verdicts(checks, "broker") == ["ok", "problem", "problem"]
    assert "'The disk is slow or fails' in docs/OPERATIONS.md" in checks["broker"][1]["remedy"]
    assert "'Situations' in docs/OPERATIONS.md" in checks["broker"][2]["remedy"]


@each_case(
    ("disk", "verdict"),
    [
        ({}, "ok"),
        ({"free_bytes": 9e9}, "warning"),
        ({"full_in_seconds": 3600.0}, "warning"),
        ({"full_in_seconds": math.inf}, "ok"),
        ({"free_inodes": 500}, "warning"),
        ({"free_inodes": -1}, "ok"),
        ({"full": 1}, "problem"),
    ],
)
def test_little_room_is_told_before_there_is_none(
    broker: FakeBroker, sick: Sick, disk: dict[str, float], verdict: str
) -> None:
    sick.disk = Sick().disk | disk
    code, checks = told(broker.address)
    assert verdicts(checks, "free space") == [verdict]
    assert code == (verdict == "problem")


def test_a_directory_elsewhere_is_not_looked_at(broker: FakeBroker, sick: Sick, tmp_path: Path) -> None:
    _, checks = told(broker.address)
    assert verdicts(checks, "disk") == ["unknown"]
    assert "not on this machine" in checks["disk"][0]["found"]
    assert not {"permissions", "mount options", "time sync"} & checks.keys()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=another\n")
    sick.hello |= {"log_dir": str(tmp_path), "cluster_id": "ours"}
    _, checks = told(broker.address)
    assert "another broker's" in checks["disk"][0]["found"]


@each_case(
    ("offset", "verdict"),
    [
        (0.0, "ok"),
        (OFFSET_SECONDS_WARNED * 20, "warning"),
        (-OFFSET_SECONDS_WARNED * 20, "warning"),
        (OFFSET_SECONDS_WRONG * 60, "problem"),
    ],
)
def test_clocks_that_are_apart_are_told(broker: FakeBroker, sick: Sick, offset: float, verdict: str) -> None:
    sick.clock_offset = offset
    code, checks = told(broker.address)
    assert verdicts(checks, "clock") == [verdict]
    assert code == (verdict == "problem")


def test_a_port_that_is_not_reached_is_a_warning_and_one_that_answers_nothing_is_said_to_be_mute(
    broker: FakeBroker, sick: Sick
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, and never answers
        listeners = [
            DescribedListener("GONE", "PLAINTEXT", f"127.0.0.1:{free_port()}"),
            DescribedListener("MUTE", "PLAINTEXT", f"127.0.0.1:{mute.getsockname()[1]}"),
            DescribedListener("LOGIN", "SASL_PLAINTEXT", f"127.0.0.1:{mute.getsockname()[1]}"),
        ]
        sick.described["listeners"] = listeners
        code, checks = told(broker.address)
    assert code == 0
    assert verdicts(checks, "ports") == ["warning", "ok", "ok"]
    assert verdicts(checks, "advertised") == ["unknown", "ok"]
    assert "it does not answer as Kafka's do" in checks["advertised"][0]["found"]
    assert "no login was tried" in checks["advertised"][1]["found"]


def test_a_broker_that_tells_no_configuration_is_judged_by_what_it_tells(broker: FakeBroker, sick: Sick) -> None:
    def answer(request: Request, payload: memoryview) -> Answer | None:
        if isinstance(request, DescribeBrokerRequest):
            return UnsupportedApiError("there is no api describe_broker", api="describe_broker")
        return sick.answer(request, payload)

    broker.script = answer
    code, checks = told(broker.address)
    assert code == 0
    assert verdicts(checks, "configuration") == ["unknown"]
    assert "update it" in checks["configuration"][0]["remedy"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_this_user_may_not_read_is_said_to_be_one(
    broker: FakeBroker, sick: Sick, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(0o000)
    sick.hello["log_dir"] = str(locked)
    _, checks = told(broker.address)
    assert "may not read" in checks["disk"][0]["found"]
