"""Files of a daemon and its processes are readable only for their own user, whatever the umask."""

import os
from pathlib import Path
from typing import Any

import seglog
from tests.processes import daemon, wait_until

_OFTEN = (
    *("--set", "log.initial.task.delay.ms=0", "--set", "log.cleaner.backoff.ms=50"),
    *("--set", "log.flush.offset.checkpoint.interval.ms=50"),
)


def test_no_file_can_be_read_by_others(tmp_path: Path) -> None:
    """After rolls, compaction, a kill and a clean stop."""
    mask = os.umask(0)
    try:
        with daemon(tmp_path / "data", *_OFTEN) as running:
            with seglog.connect(running.address) as client:
                client.create_topic("t", 1, config={"segment.bytes": 1024})
                config: dict[str, Any] = {
                    "segment.bytes": 1024,
                    "cleanup.policy": "compact",
                    "min.cleanable.dirty.ratio": 0.1,
                }
                client.create_topic("compacted", 1, config=config)
                with client.producer("t") as producer:
                    for number in range(40):
                        producer.send(b"%d" % number)
                        producer.flush()
                with client.producer("compacted") as producer:
                    for number in range(200):
                        producer.send(b"%d" % number, key=b"k")
                wait_until(lambda: "partition_compacted" in running.log_text(), "compaction")
            running.kill()
            running.start()
            assert running.stop() == 0
    finally:
        os.umask(mask)
    made = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(made) > 30
    assert {path.name: oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077} == {}
