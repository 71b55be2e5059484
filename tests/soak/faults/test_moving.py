"""The runbook's page on another machine, performed: a copy while the broker runs, a stop, the same copy, a start."""

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import seglog
from tests.processes import PATIENCE_SECONDS, clean_environment, daemon, wait_until
from tests.support import REPOSITORY

SETTINGS = ("--set", "log.flush.offset.checkpoint.interval.ms=100")
_SOURCE = "/var/lib/seglog/data/"


def the_page() -> str:
    page = (REPOSITORY / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    return page.partition("## Moving to another machine\n")[2].partition("\n## ")[0]


def copy(old: Path, new: Path) -> None:
    """What the page's command does, by rsync where there is one."""
    [command] = re.findall(r"`(rsync [^`]+)`", the_page())
    assert command == f"rsync -a --delete {_SOURCE} new:{_SOURCE}"
    if shutil.which("rsync"):
        subprocess.run(["rsync", "-a", "--delete", f"{old}/", f"{new}/"], check=False)  # 24: files went meanwhile
        return
    shutil.rmtree(new, ignore_errors=True)
    subprocess.run(["cp", "-a", str(old), str(new)], check=False, stderr=subprocess.DEVNULL)


def test_a_directory_that_is_moved_as_the_page_says_has_everything_on_the_other_machine(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    acknowledged: list[int] = []
    stopping = threading.Event()
    with daemon(old, *SETTINGS) as running:

        def write() -> None:
            with seglog.connect(running.address) as client, client.producer("orders", linger_ms=1) as producer:
                while not stopping.is_set():
                    acknowledged.append(producer.send(b"x" * 500).result(PATIENCE_SECONDS).offset)

        with seglog.connect(running.address) as client:
            client.create_topic("orders", 1, {"segment.bytes": 16_384})
            writer = threading.Thread(target=write)
            writer.start()
            wait_until(lambda: len(acknowledged) > 200, "some segments")
            copy(old, new)
            client.reset_group("billing", 100, {"orders": [0]})
            seen = len(acknowledged)
            wait_until(lambda: len(acknowledged) > seen + 100, "records after the copy")
            stopping.set()
            writer.join(PATIENCE_SECONDS)
            identity = client.ping().cluster_id
        assert running.stop() == 0
    copy(old, new)
    check = [sys.executable, "-m", "seglog_broker", "check", str(new)]
    told = subprocess.run(check, env=clean_environment(), capture_output=True, text=True, check=True).stdout
    assert "is sound" in told.splitlines()[-1]
    with daemon(new, *SETTINGS) as running, seglog.connect(running.address) as client:
        assert client.ping().cluster_id == identity
        with client.consumer("orders") as consumer:
            assert [record.offset for record in consumer] == acknowledged
        [committed] = client.group_offsets("billing")
        assert (committed.topic, committed.partition, committed.offset) == ("orders", 0, 100)
        assert '"event": "broker_ready"' in running.log_text()
        assert "partition_recovered" not in running.log_text()
