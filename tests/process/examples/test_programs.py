"""The programs in ``examples/``, run as a newcomer would, against a real daemon."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import seglog
from tests.processes import Daemon, clean_environment, ended, finished, free_port, wait_until
from tests.support import REPOSITORY

EXAMPLES = REPOSITORY / "examples"
_SPARKS_TEST = REPOSITORY / "tests" / "spark" / "test_example.py"  # there it shares a JVM with others
_WINDOWS_TEST = REPOSITORY / "tests" / "spark" / "test_windows.py"
_REPLAYS_TEST = REPOSITORY / "tests" / "interop" / "test_spark_replay.py"
TOPIC = "readings"
_SUM = sum(range(1000))


def _command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]


def _run(running: Daemon, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example to its end."""
    return finished(_command(name, *arguments), SEGLOG_SERVER=running.address)


def _printed(running: Daemon, name: str, *arguments: str) -> str:
    """What an example prints, which must succeed and say nothing on stderr."""
    done = _run(running, name, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def _send(running: Daemon, values: range) -> None:
    with seglog.connect(running.address) as client:
        client.create_topic(TOPIC, partitions=3, exist_ok=True)
        with client.producer(TOPIC) as producer:
            for value in values:
                producer.send(str(value), key=f"sensor-{value % 10}")


def test_the_producer_sends_its_records_and_says_where_the_last_one_is(running: Daemon) -> None:
    printed = _printed(running, "producer.py")
    found = re.fullmatch(
        r"1,001 records sent; the last one is in partition (\d) and has reached disk", printed.rstrip()
    )
    assert found is not None, printed
    with seglog.connect(running.address) as client, client.consumer(TOPIC) as consumer:
        records = list(consumer)
    assert sorted(int(record.value or b"") for record in records) == list(range(1001))
    assert {record.partition for record in records if record.value == b"1000"} == {int(found[1])}


def test_the_producer_says_why_its_records_were_not_taken(running: Daemon) -> None:
    with seglog.connect(running.address) as client:
        client.create_topic(TOPIC, partitions=3, config={"max.message.bytes": 70})
    done = _run(running, "producer.py")
    assert done.returncode == 1
    assert "max.message.bytes" in done.stderr


def test_the_consumer_prints_every_record_and_the_gaps_between_them(running: Daemon) -> None:
    _send(running, range(30))
    done = _run(running, "consumer.py", "-1h")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert sorted((int(value), key) for _, _, _, key, value in rows) == [(n, f"sensor-{n % 10}") for n in range(30)]
    assert done.stderr == "30 records\n"
    assert _run(running, "consumer.py", "latest").stderr == "0 records\n"


def test_the_worker_counts_each_record_once_through_kills(running: Daemon, tmp_path: Path) -> None:
    """Kills of the worker and of the broker."""
    path = tmp_path / "totals.json"

    def work_until(is_enough: Callable[[int], bool]) -> None:
        """Start the worker, and kill it when what it has saved is enough."""
        command = _command("worker.py", str(path))
        with subprocess.Popen(command, env=clean_environment(SEGLOG_SERVER=running.address)) as worker, ended(worker):
            while not is_enough(_saved(path)):
                assert worker.poll() is None, "the worker has ended"
                time.sleep(0.002)

    _send(running, range(20_000))
    work_until(lambda saved: saved > 0)  # killed in the middle, wherever that is
    work_until(lambda saved: saved == 20_000)
    _send(running, range(20_000, 21_000))  # while no worker is there
    running.kill()
    running.start()
    work_until(lambda saved: saved == 21_000)
    totals = json.loads(path.read_text(encoding="utf-8"))["totals"]
    assert totals == {f"sensor-{key}": sum(range(key, 21_000, 10)) for key in range(10)}


@pytest.mark.parametrize("arguments", [("group_worker.py",), ("worker.py", "totals.json")])
def test_a_worker_ends_by_sigterm_and_leaves_its_group(
    running: Daemon, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    _send(running, range(30))
    name, *files = arguments
    command = _command(name, *(str(tmp_path / file) for file in files))
    environment = clean_environment(SEGLOG_SERVER=running.address)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as worker,
        ended(worker),
    ):
        assert worker.stdout is not None
        if files:
            wait_until(lambda: _saved(tmp_path / files[0]) == 30, "what the worker saves")
        else:
            assert sum(1 for _, _ in zip(range(30), worker.stdout, strict=False)) == 30
        worker.terminate()
        _, errors = worker.communicate(timeout=60)
    assert (worker.returncode, errors) == (0, b"")
    if not files:
        with seglog.connect(running.address) as client:
            assert client.describe_group("workers").members == []
            assert sum(found.offset or 0 for found in client.group_offsets("workers")) >= 29


def _saved(path: Path) -> int:
    """How many records the worker has done, as it has saved it."""
    if not path.exists():
        return 0
    positions: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["positions"]
    return sum(positions.values())


def test_on_asyncio_all_records_come_and_the_program_ends(running: Daemon) -> None:
    assert _printed(running, "asyncio_client.py") == f"the sum of 1,000 records is {_SUM}\n"


def test_the_web_service_stores_what_it_answers_through_the_death_of_its_broker(running: Daemon) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/orders"
    environment = clean_environment(SEGLOG_SERVER=running.address, PORT=str(port))
    with subprocess.Popen(_command("fastapi_service.py"), env=environment) as service:
        try:
            wait_until(lambda: _answers(port), "the service")
            assert [_post(url, f"order {number}") for number in range(3)] == [0, 1, 2]
            running.kill()
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(_post, url, "order 3")
                running.start()
                waiting.result(60)
            with urllib.request.urlopen(f"{url}?start=1", timeout=60) as answer:
                assert json.load(answer) == ["order 1", "order 2", "order 3"]
        finally:
            service.terminate()
        assert service.wait(60) in (0, -signal.SIGTERM)  # uvicorn raises the signal again when it has stopped


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _post(url: str, body: str) -> int:
    with urllib.request.urlopen(url, body.encode(), timeout=60) as answer:
        offset: int = json.load(answer)["offset"]
        return offset


def test_the_command_of_a_django_site_brings_each_order_into_the_database_once(running: Daemon, tmp_path: Path) -> None:
    """Kills of the command and of the broker; the last command is ended by SIGTERM."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/orders"
    environment = clean_environment(SEGLOG_SERVER=running.address, DATABASE=str(tmp_path / "orders.sqlite3"))

    def manage(*arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(_command("django_orders/manage.py", *arguments), env=environment)

    def is_taken(count: int) -> bool:
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: list[str] = json.load(answer)
        return sorted(found) == [f"order {number}" for number in range(count)]

    with manage("migrate", "--run-syncdb", "--verbosity=0") as made:
        assert made.wait(60) == 0
    with manage("runserver", "--noreload", str(port)) as site, ended(site):
        wait_until(lambda: _answers(port), "the site")
        with manage("take_orders") as command, ended(command):
            assert [_post(url, f"order {number}") for number in range(3)] == [0, 1, 2]
            wait_until(lambda: is_taken(3), "the first orders")
            command.kill()
        running.kill()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_post, url, "order 3")
            running.start()
            waiting.result(60)
        with manage("take_orders") as command, ended(command):
            wait_until(lambda: is_taken(4), "the order that came while there was no command")
            command.terminate()
            assert command.wait(60) == 0
    with seglog.connect(running.address) as client:
        wait_until(lambda: client.describe_group("take-orders").members == [], "the group without members")
        assert [found.offset for found in client.group_offsets("take-orders")] in ([3], [4])


def test_arrow_tables_go_to_a_topic_and_come_back(running: Daemon) -> None:
    lines = _printed(running, "arrow_tables.py").splitlines()
    assert lines == ["100,000 rows written", *(f"sensor-{key} 10000 {99_990 + key}" for key in range(10))]


def test_the_tests_of_a_service_pass() -> None:
    command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", "-q"]
    # kafka-python 3.0 has these when it reads its definitions, and an unclosed socket when it loses a connection.
    for warning in ("open_text is deprecated:", "read_text is deprecated:", "unclosed <socket:"):
        command += ["-W", f"ignore:{warning}"]
    command += ["--config-file", os.devnull, "--rootdir", str(EXAMPLES)]
    command += [str(EXAMPLES / name) for name in ("test_my_service.py", "test_situations.py")]
    done = finished(command)
    assert done.returncode == 0, done.stdout
    assert "11 passed" in done.stdout


def test_every_example_is_run_here_and_named_by_the_documents() -> None:
    tests = [path.read_text(encoding="utf-8") for path in (Path(__file__), _SPARKS_TEST, _WINDOWS_TEST, _REPLAYS_TEST)]
    client_page = (REPOSITORY / "docs" / "CLIENT.md").read_text(encoding="utf-8")
    programs = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/manage.py")]
    names = sorted(str(path.relative_to(EXAMPLES)) for path in programs if path.name != "make_events.py")
    assert len(names) >= 7
    for name in names:
        assert any(f'"{name}"' in text or f"import {name.removesuffix('.py')}" in text for text in tests), name
        assert f"(../examples/{name})" in client_page, name
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert re.search(rf"\n    python (-m pytest )?examples/{re.escape(name)}", text), name
