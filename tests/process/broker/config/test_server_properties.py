"""A ``server.properties`` that the daemon is given."""

from pathlib import Path

from tests.processes import seglogd
from tests.unit.broker.config.test_server_properties import KRAFT_4


def test_the_daemon_reads_it_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KRAFT_4.replace("/tmp/kafka-logs", str(tmp_path / "logs")), encoding="utf-8")
    done = seglogd("--config", file, "--check-config")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no effect here") == 1
    assert "The configuration can be used (1 warning)." in done.stderr
    other = file.rename(tmp_path / "server.conf")
    done = seglogd("--config", other, "--check-config")
    assert done.returncode == 2
    assert "A file of Kafka's has a name that ends in .properties." in done.stderr
