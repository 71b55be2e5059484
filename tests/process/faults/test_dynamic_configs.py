"""Settings that Kafka's admin client makes at run time: in force at once, kept over a kill, over a file and SIGHUP."""

from pathlib import Path

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
