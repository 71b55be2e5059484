"""``seglogd export-kafka``: what it prints, its exit codes, and what it refuses."""

from pathlib import Path

import pytest

from seglog_broker.__main__ import main
from seglog_broker.storage.directory.kafka_metadata import read_kafka_metadata
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import append_one, batch, opened_directory
from tests.unit.broker.storage.steps import create_topic


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    directory = opened_directory(PosixFileSystem(), str(folder))
    create_topic(directory, "orders", 3, {"segment.bytes": "1024"})
    for log in directory.logs.values():
        append_one(log, batch(b"v" * 100))
    assert directory.close() == []
    return folder


def test_it_says_what_changes_before_and_when_it_exports(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = data.parent / "made" / "kafka"
    assert main(["export-kafka", str(data), "--to", str(to), "--check"]) == 0
    checked = capsys.readouterr().out.splitlines()
    assert checked[0].startswith(f"{data}: 1 topic, 3 partitions, 3 segments, ")
    assert checked[1].startswith("changed: topic orders: segment.bytes is 1048576 instead of 1024, ")
    assert checked[-1] == "it can be exported; nothing was written"
    assert not to.parent.exists()
    assert main(["export-kafka", str(data), "--check"]) == 0
    capsys.readouterr()
    assert main(["export-kafka", str(data), "--to", str(to)]) == 0
    done = capsys.readouterr().out.splitlines()
    assert done[:2] == checked[:2]
    assert done[-1] == f"  kafka-server-start.sh {to}/server.properties"
    assert to.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in to.rglob("*") if path.is_file()} == {0o600}
    assert read_kafka_metadata(PosixFileSystem(), str(to)).topic_configs == {"orders": {"segment.bytes": "1048576"}}
    assert main(["export-kafka", str(data), "--to", str(to)]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_an_export_for_later_kafkas_alone_has_the_metadata_version_that_is_asked_for(data: Path) -> None:
    to = data.parent / "kafka"
    assert main(["export-kafka", str(data), "--to", str(to), "--metadata-version", "33"]) == 0
    assert read_kafka_metadata(PosixFileSystem(), str(to)).metadata_version == 33


def test_segments_keep_their_time(data: Path) -> None:
    to = data.parent / "kafka"
    assert main(["export-kafka", str(data), "--to", str(to), "--link", "--brokers", "2"]) == 0
    copies = list(to.rglob("*.log"))
    assert len(copies) == 3
    assert read_kafka_metadata(PosixFileSystem(), f"{to}/broker-1").metadata_version == 30
    for copy in copies:
        assert abs(copy.stat().st_mtime - (data / copy.relative_to(copy.parents[1])).stat().st_mtime) < 0.002


def test_a_directory_in_use_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = opened_directory(PosixFileSystem(), str(data))
    assert main(["export-kafka", str(data), "--to", str(data.parent / "kafka")]) == 1
    assert f"{data} is in use by another broker of this process: stop it first" in capsys.readouterr().err
    directory.close()


def test_what_is_no_log_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for name in ("other", "nowhere"):
        assert main(["export-kafka", str(tmp_path / name), "--check"]) == 1
        assert "is no log directory: name the log.dir of a broker" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["one,two", "one "])
def test_a_destination_that_kafka_would_read_as_another_one_is_refused(
    data: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ((), ("--check",)):
        assert main(["export-kafka", str(data), "--to", str(data.parent / name), *more]) == 1
        assert "has a comma or ends in a space" in capsys.readouterr().err
    assert not (data.parent / name).exists()


def test_usage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-kafka", str(data)]) == 2
    assert "name the directory for Kafka by --to" in capsys.readouterr().err
    wrong = {
        "--brokers": ("0", "1001", "x"),
        "--host": ("", "a b", "kafka:9092", "a,b", "[::1]", "a\nlog.dirs=b", "-a"),
    }
    for option, value in ((option, value) for option, values in wrong.items() for value in values):
        with pytest.raises(SystemExit) as ended:
            main(["export-kafka", str(data), "--check", f"{option}={value}"])
        assert ended.value.code == 2
    assert main(["export-kafka", str(data), "--check", "--set", "log.retention.ms=often"]) == 2
    assert "log.retention.ms" in capsys.readouterr().err
    assert main(["export-kafka", str(data), "--check", "--host", "a", "--host", "b"]) == 1
    assert "as many hosts" in capsys.readouterr().err
