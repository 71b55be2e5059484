"""``seglogd`` as a process: what it prints, how it ends, and what it says when it cannot begin."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from seglog_broker import __main__ as daemon
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_protocol.frames import FrameReader, encode_frame
from seglog_protocol.kafka import write_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.messages import ApiVersionsRequest
from seglog_protocol.messages import PROTOCOL_NAME, HelloRequest, request_header
from tests.processes import SEGLOGD, clean_environment, finished, port_of, seglog, seglogd, signalled_at_import, watched
from tests.support import each_case

ANY_PORT = "127.0.0.1:0"


@each_case(("option", "shown"), [("--version", "seglogd "), ("--help", "--log-level")])
def test_help_and_version_are_printed(option: str, shown: str) -> None:
    done = seglogd(option)
    assert (done.returncode, shown in done.stdout) == (0, True)


@each_case(
    ("arguments", "words"),
    [
        (["--set", "log.dri=/nowhere"], "log.dir"),
        (["--set", "log.segment.bytes"], "key=value"),
        (["--listen", "localhost"], "seglog.listen = localhost (flag --listen)"),
        (["--kafka", "localhost"], "listeners = PLAINTEXT://localhost (flag --kafka)"),
        (["--log-format", "xml"], "console"),
        (["--config", "/nowhere/seglogd.toml"], "/nowhere/seglogd.toml"),
        (["--frobnicate"], "there is no --frobnicate; a key is set by --set KEY=VALUE"),
        (["--datadir", "x"], "there is no --datadir; did you mean --data?"),
        (["--log-dir=x"], "there is no --log-dir; did you mean --set log.dir=VALUE?"),
        (["serve"], "serve"),
    ],
)
def test_usage_and_configuration_errors_are_one_sentence_and_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = daemon.main(["--data", str(tmp_path / "data"), *arguments])
    except SystemExit as ended:  # of argparse
        code = ended.code
    assert code == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.splitlines()[-1].startswith("seglogd: ")
    assert not (tmp_path / "data").exists()


def test_configuration_comes_from_file_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "seglogd.toml"
    file.write_text('"seglog.log.format" = "xml"\n', encoding="utf-8")
    named = seglogd(SEGLOG_CONFIG=str(file))
    file.write_text('"seglog.log.format" = "json"\n', encoding="utf-8")
    given = seglogd("--config", str(file), SEGLOG_LISTEN="here")
    for done, where in ((named, "seglog.log.format"), (given, "SEGLOG_LISTEN")):
        assert (done.returncode, where in done.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(number: signal.Signals, tmp_path: Path) -> None:
    options = ("--http", "127.0.0.1:0", "--set", "seglog.disk.ballast.bytes=0")  # a ballast may be made meanwhile
    with watched(tmp_path / "data", *options) as (process, lines, logged):
        assert [entry["event"] for entry in logged] == ["broker_starting", "access_mode", "broker_ready"]
        assert {"listen", "http", "topics", "partitions", "seconds"} <= logged[-1].keys()
        assert {"version", "log_dir"} <= logged[0].keys()
        with socket.create_connection(("127.0.0.1", port_of(logged[-1]))) as client:
            client.sendall(encode_frame(request_header(1, HelloRequest(PROTOCOL_NAME))))
            reader = FrameReader()
            while (frame := reader.next_frame()) is None:
                reader.receive_data(client.recv(4096))
            assert frame.header["protocol"] == PROTOCOL_NAME
            process.send_signal(number)
            assert client.recv(1) == b""
        assert [entry["event"] for entry in lines.until("broker_stopped")] == ["broker_stopping", "broker_stopped"]
        assert process.wait() == 0


def test_a_second_signal_ends_it_there_and_then(tmp_path: Path) -> None:
    """The second one must work even while something keeps the loop busy."""
    code = (
        "import os, signal, time, trio\n"
        "from seglog_broker.runtime.signals import Signals\n"
        "async def main():\n"
        "    with trio.CancelScope() as scope, Signals() as signals:\n"
        "        signals.attach(scope.cancel, int)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(60)\n"
        "trio.run(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=False)
    assert done.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    "module",
    ["seglog_broker.config", "seglog_broker.server"]
    + [pytest.param(module, marks=pytest.mark.soak) for module in ("trio", "structlog", "msgpack")],
)
def test_a_signal_during_the_imports_ends_it_silently(module: str, number: signal.Signals, tmp_path: Path) -> None:
    environment = signalled_at_import(tmp_path, module, number)
    arguments = ("--data", str(tmp_path / "data"), "--listen", ANY_PORT)
    done = finished([*SEGLOGD, *arguments], environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "sent\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["check", "dump"])
@pytest.mark.parametrize("module", ["seglog_broker.inspect.commands", "seglog_broker.storage.io.filesystem"])
def test_an_offline_command_interrupted_at_its_import(name: str, module: str, tmp_path: Path) -> None:
    """An offline command that is interrupted while it is being imported ends with 130."""
    environment = signalled_at_import(tmp_path, module, signal.SIGINT)
    done = finished([*SEGLOGD, name, str(tmp_path)], environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sent\n")


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_port_in_use_is_one_sentence_and_code_1(log_format: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = seglogd("--data", str(tmp_path / "data"), "--listen", address, "--log-format", log_format)
    assert done.returncode == 1
    assert f"Cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr
    if log_format == "json":
        assert [json.loads(line)["event"] for line in done.stderr.splitlines()][-1] == "broker_failed"
    else:
        assert done.stderr.splitlines()[-1].startswith("seglogd: ")


def test_a_second_daemon_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with watched(tmp_path / "data") as (first, _, _):
        done = seglogd("--data", str(tmp_path / "data"), "--listen", ANY_PORT)
        assert done.returncode == 1
        assert str(tmp_path / "data") in done.stderr
        assert "Traceback" not in done.stderr
        first.terminate()
        assert first.wait() == 0


def test_another_platform_is_refused_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert daemon.main([]) == 1
    assert "win32" in capsys.readouterr().err


def test_only_errors_made_for_people_become_a_sentence() -> None:
    with pytest.raises(FileNotFoundError) as found:
        PosixFileSystem().open("/nowhere/at/all")
    assert daemon._sentence(found.value) == "No such file or directory: /nowhere/at/all."
    assert daemon._sentence(ExceptionGroup("", [found.value])) is not None
    assert daemon._sentence(ZeroDivisionError()) is None
    assert daemon._sentence(ExceptionGroup("", [found.value, ZeroDivisionError()])) is None


def test_both_ports_have_an_option_and_each_knows_the_others_clients(tmp_path: Path) -> None:
    with watched(tmp_path / "data", "--kafka", ANY_PORT) as (process, lines, logged):
        native, kafka = logged[-1]["listen"], logged[-1]["kafka"]
        sentence = f"this port is for Kafka's clients; seglog's own is {port_of(logged[-1])} (seglog.listen)"
        for more in ([], ["--live"]):
            pinged = seglog(kafka, "ping", *more)
            assert (pinged.returncode, pinged.stderr.decode()) == (3, f"seglog: {sentence}\n")
        host, port = native.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(b"".join(write_request(1, "a client", ApiVersionsRequest(), 3)))
            answer = b"".join(iter(lambda: peer.recv(4096), b""))
        assert answer[8:10] == ErrorCode.LISTENER_NOT_FOUND.to_bytes(2, "big")
        process.terminate()
        reasons = [entry["reason"] for entry in lines.until("broker_stopped") if "reason" in entry]
    assert reasons == [sentence, sentence, f"a Kafka client on seglog's own port: its port is {kafka} (listeners)"]
