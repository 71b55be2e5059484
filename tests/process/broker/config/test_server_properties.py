"""Files that the daemon is given: a ``server.properties``, and a token."""

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


def test_a_token_that_cannot_be_used_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x" * 5000)
    flags = ["--set", f"seglog.http.token.file={tmp_path / 'token'}", "--http", "127.0.0.1:1"]
    done = seglogd("--data", tmp_path / "data", *flags)
    assert (done.returncode, "it has more than 4096 bytes." in done.stderr) == (2, True)
