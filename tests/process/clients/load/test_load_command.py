"""`seglog load` against a real daemon; each verb: ``tests/unit/clients/load/test_running.py``."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Daemon, clean_environment, daemon, seglog, seglog_command


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(Path(tmp_path_factory.mktemp("load")) / "data") as running:
        yield running


def test_an_interrupted_run_reports_and_removes_its_topic(broker: Daemon) -> None:
    command = seglog_command(
        *(broker.address, "load", "produce", "interrupted", "--duration", "600", "--rate", "200"),
        "--json",
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()) as process:
        while not any(p["latest"] for p in offsets_if_there(broker)):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
    report = json.loads(output)
    assert report["ended_by"] == "interrupt"
    assert report["records"] > 0
    assert offsets_if_there(broker) == []


def offsets_if_there(broker: Daemon) -> list[dict[str, int]]:
    done = seglog(broker.address, "offsets", "interrupted", "--json")
    offsets: list[dict[str, int]] = json.loads(done.stdout) if done.returncode == 0 else []
    return offsets


def test_what_cannot_be_begun_says_why_with_the_exit_code_of_every_command(broker: Daemon) -> None:
    done = seglog(broker.address, "load", "consume", "nowhere")
    assert (done.returncode, b"no topic nowhere" in done.stderr) == (4, True)
    refused = seglog(broker.address, "load", "produce", "--count", "1", "--record-size", "2000000")
    assert (refused.returncode, b"MESSAGE_TOO_LARGE" in refused.stdout) == (1, True)
