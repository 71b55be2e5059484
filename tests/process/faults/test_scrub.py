"""The scrub in a real daemon: damage is found and reported, before a reader finds it."""

from pathlib import Path

import pytest

import seglog
from seglog_protocol.errors import CorruptRecordError
from tests.processes import daemon, wait_until
from tests.processes import seglog as seglog_cli
from tests.support import numbers_of

_OFTEN = (
    *("--set", "log.initial.task.delay.ms=0", "--set", "log.flush.offset.checkpoint.interval.ms=50"),
    *("--set", "seglog.scrub.interval.ms=50", "--set", "seglog.scrub.bytes.per.second=100000000"),
)
_SMALL = {"segment.bytes": 1024}


def fill(client: seglog.Client, count: int, topic: str = "t") -> None:
    """Produce records, each in its own batch, about fourteen in a segment of 1024 bytes."""
    with client.producer(topic) as producer:
        for number in range(count):
            producer.send(b"%d" % number)
            producer.flush()


def test_damage_is_reported_before_a_reader_finds_it_and_the_rest_is_served(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *_OFTEN) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, config=_SMALL)
        fill(client, 40)
        wait_until(lambda: numbers_of(client)["scrubbed_segments_total"] > 0, "the scrub")
        log = running.directory / "t-0" / f"{0:020d}.log"
        index = min(path for path in (running.directory / "t-0").glob("*.timeindex"))
        right = index.read_bytes()
        with log.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 1]))
        wait_until(lambda: "damage_found" in running.log_text(), "the damage to be found")
        with seglog.connect(running.address) as another:
            assert any("are damaged" in problem for problem in another.ping().problems)
        told = seglog_cli(running.address, "ping")
        assert (told.returncode, b"\nproblem: t-0: " in told.stdout, b"are damaged" in told.stdout) == (1, True, True)
        with pytest.raises(CorruptRecordError), client.consumer("t") as consumer:
            list(consumer)
        with client.consumer("t", start=20) as consumer:
            assert len(list(consumer)) == 20
        index.unlink()
        wait_until(lambda: index.exists() and index.read_bytes() != b"", "the index")
        assert len(index.read_bytes()) == len(right)
