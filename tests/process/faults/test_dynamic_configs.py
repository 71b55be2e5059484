"""Settings that Kafka's admin client makes at run time: in force at once, kept over a kill, over a file and SIGHUP."""

from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

import seglog
from tests.interop.kafka_admin import BROKER, SET, Admin, Outcome
from tests.processes import Daemon, daemon, seglogd

OK = Outcome(0, None)


def with_file(tmp_path: Path, text: str) -> tuple[Path, tuple[str, ...]]:
    """A configuration file, and the options of a daemon that has it and a listener for Kafka's clients."""
    file = tmp_path / "seglogd.toml"
    file.write_text(text)
    return file, ("--config", str(file), "--set", "listeners=PLAINTEXT://127.0.0.1:0")


def altered(running: Daemon, name: str, *changes: tuple[str, int, str | None]) -> Outcome:
    with Admin(running.kafka_port) as admin:
        return admin.alter_incrementally(BROKER, name, changes)


def test_a_setting_of_kafkas_admin_client_is_in_force_and_outlives_a_kill(tmp_path: Path) -> None:
    _, options = with_file(tmp_path, '"num.partitions" = 2\n')
    with daemon(tmp_path / "data", *options) as running:
        admin: Any = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{running.kafka_port}")
        settings = {"num.partitions": "5", "log.retention.ms": "60000"}
        assert admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", settings)]) == {
            "broker": {"1": "OK"}
        }
        found = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1", dict.fromkeys(settings))])
        sources = {name: entry["config_source"] for name, entry in found["broker"]["1"].items()}
        assert sources == dict.fromkeys(settings, "DYNAMIC_BROKER_CONFIG")
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


def test_a_file_that_contradicts_the_settings_is_refused_at_a_start(tmp_path: Path) -> None:
    key = "log.cleaner.min.compaction.lag.ms"
    data = tmp_path / "data"
    _, options = with_file(tmp_path, "")
    with daemon(data, *options) as running:
        assert altered(running, "1", (key, SET, "5000")) == OK
        assert running.stop() == 0
    before = (data / "seglog-configs.json").read_bytes()
    for more in ((), ("--check-config",)):
        done = seglogd(
            "--listen", "127.0.0.1:0", "--data", data, "--set", "log.cleaner.max.compaction.lag.ms=4000", *more
        )
        assert done.returncode == (2 if more else 1)
        assert "contradict each other" in done.stderr
        assert "seglog-configs.json" in done.stderr
    assert (data / "seglog-configs.json").read_bytes() == before
