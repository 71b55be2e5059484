"""Commands as processes: interrupts while they are imported, pipes that end, lists that are not whole."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.cli.exits import FAILED
from seglog_protocol.batch_builder import encode_batch
from tests.processes import daemon, finished, seglog_command, signalled_at_import, wait_until
from tests.support import each_case
from tests.unit.clients.fake_broker import FakeBroker


def test_whoever_has_read_enough_ends_it_quietly(broker: FakeBroker) -> None:
    broker.logs["t"][0].append(encode_batch([(0, None, b"x" * 1000, ())] * 1000))
    done = subprocess.run(
        f"{sys.executable} -m seglog.cli --server {broker.address} consume t | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "x" * 1000 + "\n0\n"
    assert done.stderr == ""


@each_case("module", ["seglog.cli.arguments", "seglog_protocol.errors", "seglog.cli.topic", "msgpack"])
def test_an_interrupt_while_it_is_still_being_imported_is_exit_code_130_too(module: str, tmp_path: Path) -> None:
    done = finished(
        seglog_command("localhost:1", "topic", "list"), environment=signalled_at_import(tmp_path, module, signal.SIGINT)
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sent\nseglog: interrupted\n")


@each_case(("module", "name"), [("seglog", "seglog"), ("seglog.cli", "seglog"), ("seglog_broker", "seglogd")])
def test_a_module_that_python_runs_is_the_command_and_calls_itself_so(module: str, name: str) -> None:
    for option, code in (("--help", 0), ("--frobnicate", 2)):
        done = finished([sys.executable, "-m", module, option])
        assert done.returncode == code
        if code == 0:
            assert done.stdout.lower().startswith(f"usage: {name} [")
        else:
            assert "--frobnicate" in done.stderr
            assert f"{name}: " in done.stderr


def test_a_list_of_which_a_part_cannot_be_read_says_so(tmp_path: Path) -> None:
    states = "--set", "transaction.state.log.num.partitions=2"
    with daemon(tmp_path / "data", *states) as running:
        with seglog.connect(running.address) as client:
            client.create_topic("t", 1)
            for name in ("a", "b"):  # one in each partition of the two
                with client.transaction(name) as txn:
                    txn.send("t", name)
        assert running.stop() == 0
        (running.directory / "__transaction_state-1").rename(tmp_path / "away")
        running.start()

        def listed(*options: str) -> tuple[int, str, str]:
            command = seglog_command(running.address, "transaction", "list", *options)
            done = finished(command)
            return done.returncode, done.stdout, done.stderr

        wait_until(lambda: listed()[0] == FAILED, "it is known that a part is missing")
        code, out, told = listed("--json")
        assert (code, [each["transactional_id"] for each in json.loads(out)]) == (FAILED, ["b"])
        assert "transactional ids of __transaction_state-1 are missing, because" in told
        with (
            seglog.connect(running.address) as client,
            pytest.raises(seglog.RequestError, match="__transaction_state-1 are missing"),
        ):
            client.transactions()
