"""SIGKILLs of a daemon that Kafka producers write to, with acks=all and acks=1: nothing with an ack is lost, or twice.

The producers are idempotent, have five requests on their way, and send to both partitions in one request. Readers on
the native port read all of it meanwhile. What is looked at after each kill: ``kills``.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.process.faults.kafka_writer import KafkaWriter
from tests.process.faults.kills import Load, kill_and_look, look
from tests.process.faults.living_clients import Ledger, Reader
from tests.processes import kafka_daemon
from tests.support import soak_scaled, soak_seed

KILLS_MIN: Final = 20
TOPIC: Final = "kept"
PARTITIONS: Final = 2


@pytest.mark.timeout(7200)
def test_many_kills_lose_and_duplicate_nothing_of_kafkas_producers(tmp_path: Path) -> None:
    folder, kills, seed = tmp_path, max(KILLS_MIN, soak_scaled(100)), soak_seed()
    dice = random.Random(seed)
    ledgers = {(TOPIC, number): Ledger("keep") for number in range(PARTITIONS)}
    with kafka_daemon(folder / "data") as running, ThreadPoolExecutor(1) as aside:
        with seglog.connect(running.address) as client:
            client.create_topic(
                TOPIC, PARTITIONS, {"segment.bytes": 40_000, "index.interval.bytes": 256, "retention.ms": -1}
            )
        writers = [
            KafkaWriter(f"writer{number}.{acks}", running.kafka_port, TOPIC, ledgers, acks)
            for number in range(2)
            for acks in (-1, 1)
        ]
        readers = [Reader(running.address, TOPIC, ledgers, durable_only=durable) for durable in (False, True)]
        with Load(running.address, ledgers, writers, readers) as load:
            for number in range(kills):
                load.wait_for_acks(dice.randrange(1, 400))
                try:
                    kill_and_look(running, load, folder / "copy", aside)
                except BaseException as error:
                    error.add_note(f"seed {seed}, after kill {number + 1}; {folder / 'copy'} is what was found")
                    raise
            load.finish()
            print(f"{kills} kills, seed {seed}: {load.summary()}")
        assert running.stop() == 0
    look(folder / "data", ledgers)
    assert all(ledger.acked for ledger in ledgers.values())
    assert sum(writer.sent_again for writer in writers), "something was sent again"
