"""A daemon with a continuous backup: its process is started again when it dies, and a stop loses nothing."""

import os
import signal
import subprocess
from pathlib import Path

import seglog
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.points import PointStore
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.processes import Daemon, daemon, wait_until


def agents(running: Daemon) -> list[int]:
    """The processes that back up a daemon."""
    assert running.process is not None
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(running.process.pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "seglog_broker.backup.agent" in line]


def test_a_backup_survives_its_process_and_has_all_that_was_appended_before_a_stop(tmp_path: Path) -> None:
    place = tmp_path / "place"
    settings = f"seglog.backup.to={place}", "seglog.backup.lag.ms=60000"  # a cut in half a minute
    with daemon(tmp_path / "data", *(part for setting in settings for part in ("--set", setting))) as running:
        with seglog.connect(running.address) as client:

            def has_published() -> bool:
                backup = client.ping().backup
                assert backup is not None
                return backup.published_ms is not None

            client.create_topic("t")
            wait_until(has_published, "the first state is published")
            [first] = agents(running)
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: len({*agents(running)} - {first}) == 1, "another process")
            with client.producer("t") as producer:
                producer.send(b"the last one")
        assert running.stop() == 0
        assert '"reason": "the process ended with status -9."' in running.log_text()
    assert PointStore(DirectoryDestination(PosixFileSystem(), str(place))).at().logs["t", 0].log_end == 1
