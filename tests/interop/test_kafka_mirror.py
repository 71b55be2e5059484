"""``seglog mirror`` with a real Kafka: out and back, killed on every side, compared record by record."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

import seglog
from tests.interop.peer import Kafka, kafka_script
from tests.processes import Daemon, kafka_daemon, wait_until
from tests.unit.clients.mirror.sides import (
    commit,
    committed,
    completed,
    contents,
    end_of,
    kafka_of,
    numbered,
    produce,
    started,
)

pytestmark = [pytest.mark.timeout(1800)]

PARTITIONS: Final = 4
KILLS: Final = int(os.environ.get("SEGLOG_MIRROR_KILLS") or 2)
"""Of the mirror, and of each side, in each direction."""
_SHARE: Final = int(os.environ.get("SEGLOG_MIRRORED_RECORDS") or 200_000) // (3 * KILLS * PARTITIONS) * PARTITIONS
COUNT: Final = _SHARE * 3 * KILLS
_SETTLED: Final = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")


def mirror_command(daemon: Daemon, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "seglog", "mirror", "--server", daemon.address, *arguments]


def _has_gone_on(running: "subprocess.Popen[bytes]", target: str, before: int) -> bool:
    assert running.poll() is None, "the mirror has ended"
    return end_of(target, "t") > before


def killed_on_every_side(
    command: list[str], source: str, target: str, restarts: list[Callable[[], None]], errors: Path
) -> None:
    """Run a mirror that is killed, as are the brokers of both sides, in turn.

    Before each kill a part of the ``COUNT`` records comes to the source, so that each has something to interrupt.
    """
    running: subprocess.Popen[bytes] | None = None
    for turn in range(KILLS * 3):
        before = end_of(target, "t")
        produce(source, "t", numbered(turn * _SHARE, _SHARE, PARTITIONS))
        if running is None:
            running = started(command, errors)
        wait_until(partial(_has_gone_on, running, target, before), "it goes on")
        if turn % 3 == 0:
            running.kill()
            running.wait()
            running = None
        else:
            restarts[turn % 3 - 1]()
    if running is not None:
        running.kill()
        running.wait()


def test_a_topic_goes_to_kafka_and_back_with_kills_on_every_side_record_by_record(tmp_path: Path) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    there = f"kafka://{kafka.address}"
    errors = tmp_path / "errors"

    def kill_kafka() -> None:
        os.kill(int((kafka.data / "pid").read_text()), 9)
        kafka._run("stop", str(kafka.data), check=False)
        kafka._run("start", str(kafka.data), str(kafka.port), *_SETTLED)

    def kill(daemon: Daemon) -> None:
        daemon.kill()
        daemon.start()

    with kafka_daemon(tmp_path / "a") as ours, kafka.running(*_SETTLED):
        with seglog.connect(ours.address) as client:
            client.create_topic("t", partitions=PARTITIONS, config={"retention.ms": "-1"})
        out = mirror_command(ours, "--to", there, "t")
        restarts: list[Callable[[], None]] = [partial(kill, ours), kill_kafka]
        killed_on_every_side(out, kafka_of(ours), kafka.address, restarts, errors)
        commit(kafka_of(ours), "readers", "t", 77, "noted")
        done = completed([*out, "--cut-over", "--silent", "1"])
        assert "the same offsets" in done.stdout, (done, errors.read_text())
        expected = [contents(kafka_of(ours), "t", partition) for partition in range(PARTITIONS)]
        assert sum(map(len, expected)) == COUNT
        for partition in range(PARTITIONS):
            assert contents(kafka.address, "t", partition) == expected[partition]
        assert committed(kafka.address, "readers", "t") == (77, "noted")
        with kafka_daemon(tmp_path / "b") as other:
            back = mirror_command(other, "--from", there, "t")
            restarts = [partial(kill, other), kill_kafka]
            killed_on_every_side(back, kafka.address, kafka_of(other), restarts, errors)
            done = completed([*back, "--cut-over", "--silent", "1"])
            assert "the same offsets" in done.stdout, (done, errors.read_text())
            for partition in range(PARTITIONS):
                found = contents(kafka_of(other), "t", partition)
                assert found == contents(kafka.address, "t", partition)
                assert len(found) == 2 * COUNT // PARTITIONS
                assert found[: COUNT // PARTITIONS] == expected[partition]
            assert committed(kafka_of(other), "readers", "t") == (77, "noted")


def test_of_transactions_what_was_committed_is_mirrored_and_groups_stand_before_the_same_record(
    tmp_path: Path,
) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    with kafka.running(*_SETTLED), kafka_daemon(tmp_path / "a") as ours:
        kafka.topics("--create", "--topic", "t", "--partitions", "1")
        producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(60)
        for turn in range(6):
            producer.begin_transaction()
            for record in numbered(turn * 10, 10):
                producer.produce("t", **record)
            if turn % 2:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
        theirs = contents(kafka.address, "t", isolation="read_committed")
        assert len(theirs) == 30
        commit(kafka.address, "readers", "t", theirs[15][0])
        done = completed(mirror_command(ours, "--from", f"kafka://{kafka.address}", "t", "--once"))
        assert "other offsets in some partitions" in done.stdout, done
        found = contents(kafka_of(ours), "t")
        assert [record[1:] for record in found] == [record[1:] for record in theirs]
        assert [record[0] for record in found] == list(range(30))
        assert committed(kafka_of(ours), "readers", "t")[0] == 15
