"""Settings that Kafka's admin client makes at run time: in force at once, kept over a kill, over a file and SIGHUP."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

import seglog
from tests.interop.kafka_admin import BROKER, DELETE, SET, Admin, Entry, Outcome
from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment, daemon

OK = Outcome(0, None)
KEYS = ("log.retention.ms", "num.partitions")


def with_file(tmp_path: Path, text: str) -> tuple[Path, tuple[str, ...]]:
    """A configuration file, and the options of a daemon that has it and a listener for Kafka's clients."""
    file = tmp_path / "seglogd.toml"
    file.write_text(text)
    return file, ("--config", str(file), "--set", "listeners=PLAINTEXT://127.0.0.1:0")


def described(running: Daemon, name: str = "1") -> dict[str, Entry]:
    with Admin(running.kafka_port) as admin:
        outcome, entries = admin.describe(BROKER, name, KEYS)
    assert outcome == OK
    return {entry.name: entry for entry in entries}


def altered(running: Daemon, name: str, *changes: tuple[str, int, str | None]) -> Outcome:
    with Admin(running.kafka_port) as admin:
        return admin.alter_incrementally(BROKER, name, changes)


def seglogd(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "seglog_broker", "--listen", "127.0.0.1:0", *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_setting_of_kafkas_admin_client_is_in_force_and_outlives_a_kill(tmp_path: Path) -> None:
    _, options = with_file(tmp_path, '"num.partitions" = 2\n')
    with daemon(tmp_path / "data", *options) as running:
        admin: Any = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{running.kafka_port}")
        resource = ConfigResource(ConfigResourceType.BROKER, "1", {"num.partitions": "5", "log.retention.ms": "60000"})
        assert admin.alter_configs([resource]) == {"broker": {"1": "OK"}}
        found = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1", dict.fromkeys(KEYS))])
        assert {name: entry["config_source"] for name, entry in found["broker"]["1"].items()} == dict.fromkeys(
            KEYS, "DYNAMIC_BROKER_CONFIG"
        )
        admin.close()
        with seglog.connect(running.address) as client:
            client.create_topic("t")
            assert client.describe_topic("t").partitions == 5
            assert client.explain.config("t")["retention.ms"].value == "60000"
            assert str(client.explain.config("t")["retention.ms"].origin) == "dynamic broker"

        running.kill()
        running.start()
        with seglog.connect(running.address) as client:
            client.create_topic("u")
            assert client.describe_topic("u").partitions == 5
            assert client.explain.config("t")["retention.ms"].value == "60000"
        done = seglogd("--check-config", "--data", str(running.directory))
        [line] = [line for line in done.stdout.splitlines() if line.startswith("num.partitions ")]
        assert "dynamic broker num.partitions" in line
        assert running.stop() == 0


def test_settings_lie_over_each_other_and_come_back_when_the_stronger_is_deleted(tmp_path: Path) -> None:
    file, options = with_file(tmp_path, '"num.partitions" = 2\n"log.retention.hours" = 24\n')
    with daemon(tmp_path / "data", *options) as running:
        assert altered(running, "", ("num.partitions", SET, "3"), ("log.retention.ms", SET, "7d")) == OK
        assert altered(running, "1", ("num.partitions", SET, "4")) == OK
        found = described(running)
        assert found["num.partitions"].synonyms == [
            ("num.partitions", "4", 2),
            ("num.partitions", "3", 3),
            ("num.partitions", "2", 4),
            ("num.partitions", "1", 5),
        ]
        assert found["log.retention.ms"].synonyms == [
            ("log.retention.ms", "604800000", 3),
            ("log.retention.hours", "24", 4),
            ("log.retention.hours", "168", 5),
        ]
        assert {name: entry.value for name, entry in described(running, "").items()} == {
            "num.partitions": "3",
            "log.retention.ms": "604800000",
        }

        file.write_text('"num.partitions" = 7\n"log.retention.hours" = 1\n')
        assert running.process is not None
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: ("num.partitions", "7", 4) in described(running)["num.partitions"].synonyms)
        assert described(running)["num.partitions"].value == "4"
        assert described(running)["log.retention.ms"].value == "604800000"

        assert altered(running, "1", ("num.partitions", DELETE, None)) == OK
        assert described(running)["num.partitions"].value == "3"
        running.kill()
        running.start()
        assert described(running)["num.partitions"].value == "3"
        assert altered(running, "", ("num.partitions", DELETE, None)) == OK
        assert described(running)["num.partitions"].value == "7"
        assert running.stop() == 0


def test_a_file_that_contradicts_the_settings_is_refused_at_a_start(tmp_path: Path) -> None:
    key = "log.cleaner.min.compaction.lag.ms"
    data = tmp_path / "data"
    _, options = with_file(tmp_path, "")
    with daemon(data, *options) as running:
        assert altered(running, "1", (key, SET, "5000")) == OK
        assert running.stop() == 0
    before = (data / "seglog-configs.json").read_bytes()
    for more in ((), ("--check-config",)):
        done = seglogd("--data", str(data), "--set", "log.cleaner.max.compaction.lag.ms=4000", *more)
        assert done.returncode == (2 if more else 1)
        assert "contradict each other" in done.stderr
        assert "seglog-configs.json" in done.stderr
    assert (data / "seglog-configs.json").read_bytes() == before
