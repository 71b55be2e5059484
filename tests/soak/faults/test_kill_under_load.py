"""Very many SIGKILLs of a daemon that is written to, read, rolls, compacts, expires, creates and deletes at once.

The producers and consumers run through all of them. What is looked at after each kill: ``kills``.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import seglog
from tests.process.faults.kills import Load, has_a_compaction_begun, kill_and_look, look
from tests.process.faults.living_clients import KafkaWriter, Ledger, Ledgers, Policy, Reader, Sender, Writer
from tests.processes import PATIENCE_SECONDS, Daemon, kafka_daemon
from tests.support import numbers_of, soak_scaled, soak_seed

KILLS: Final = max(30, soak_scaled(200))
DAEMON: Final = tuple(
    part
    for key, value in {
        "log.initial.task.delay.ms": 0,
        "log.cleaner.backoff.ms": 50,
        "log.retention.check.interval.ms": 50,
        "log.flush.offset.checkpoint.interval.ms": 100,
        "log.segment.delete.delay.ms": 100,
    }.items()
    for part in ("--set", f"{key}={value}")
)
_Config = dict[str, str | int]
_SMALL: Final[_Config] = {"segment.bytes": 4096, "segment.ms": 200, "index.interval.bytes": 256}
_COMPACTED: Final[_Config] = {
    **_SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 300,
}
TOPICS: Final[dict[str, tuple[Policy, int, _Config]]] = {
    "kept": ("keep", 2, {"segment.bytes": 40_000, "index.interval.bytes": 256, "retention.ms": -1}),
    "compacted": ("compact", 1, _COMPACTED),
    "both": ("compact,delete", 1, {**_COMPACTED, "cleanup.policy": "compact,delete", "retention.bytes": 40_000}),
    "expiring": ("delete", 1, {**_SMALL, "retention.bytes": 40_000}),
}
"""Of each topic the policy, the partitions and the configuration."""


class ComingAndGoing(threading.Thread):
    """A compacted topic that is created, written to and deleted, over and over."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            with suppress(seglog.SeglogError, OSError), seglog.connect(self._address, connect_timeout=0.1) as client:
                self._come_and_go(client)

    def _come_and_go(self, client: seglog.Client) -> None:
        while not self._is_over.is_set():
            with suppress(seglog.TopicExistsError):
                client.create_topic("fleeting", 1, _COMPACTED)
            producer = client.producer("fleeting", delivery_timeout=1, linger_ms=2)
            for number in range(200):
                producer.send("." * 100, key=str(number % 5))
            self._is_over.wait(0.1)
            producer.abort(timeout=0)
            client.delete_topic("fleeting")

    def finish(self) -> None:
        self._is_over.set()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive()


class UsualLoad(Load):
    """All the load on the daemon, in threads that run across its restarts."""

    def __init__(self, address: str, ledgers: Ledgers, kafka: str | None = None) -> None:
        """With producers of Kafka's clients where there is an address for them."""
        writers: list[Sender] = [
            Writer(f"{topic}-{ack}", address, topic, ledgers, ack) for topic in TOPICS for ack in ("os", "disk")
        ]
        if kafka is not None:
            writers += [KafkaWriter(f"{topic}-kafka", kafka, topic, ledgers) for topic in ("kept", "compacted")]
        readers = [
            Reader(address, topic, ledgers, durable_only=durable_only, again=again)
            for topic, (policy, _, _) in TOPICS.items()
            for durable_only, again in ((False, False), (True, False), (False, True))
            if policy != "keep" or not again
        ]
        super().__init__(address, ledgers, writers, readers)
        self._fleeting = ComingAndGoing(address)
        self._fleeting.start()

    def finish(self) -> None:
        self._fleeting.finish()
        super().finish()


def _is_compacted(running: Daemon, topic: str) -> bool:
    """Whether the daemon has compacted this topic since it was started."""
    whole_lines = running.log_text().splitlines()[:-1]
    return any('"partition_compacted"' in line and f'"topic": "{topic}"' in line for line in whole_lines)


def _is_being_compacted(partition: Path) -> bool:
    """Whether a compaction of it is seen in many looks one after the other: it lasts some milliseconds."""
    return any(has_a_compaction_begun(partition) for _ in range(100))


@pytest.mark.timeout(7200)
def test_kills_under_load_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    seed = soak_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    ledgers = {(topic, n): Ledger(policy) for topic, (policy, count, _) in TOPICS.items() for n in range(count)}
    began = time.monotonic()
    interrupted, recognised = 0, 0.0
    with kafka_daemon(tmp_path / "data", *DAEMON[1::2]) as running, ThreadPoolExecutor(1) as aside:
        with seglog.connect(running.address) as client:
            for topic, (_, partitions, config) in TOPICS.items():
                client.create_topic(topic, partitions, config)
        with UsualLoad(running.address, ledgers, f"127.0.0.1:{running.kafka_port}") as load:
            for number in range(KILLS):
                load.wait_for_acks(dice.randrange(1, 400))
                if number % 5 == 0:  # a machine that is busy may not get so far by itself between two kills
                    topic = ("compacted", "both")[number % 2]
                    load.wait_until(partial(_is_compacted, running, topic))
                    load.wait_until(partial(_is_being_compacted, running.directory / f"{topic}-0"))
                with seglog.connect(running.address) as client:
                    recognised += numbers_of(client)["duplicates_total"]
                try:
                    interrupted += kill_and_look(running, load, tmp_path / "copy", aside)
                except BaseException as error:
                    error.add_note(f"after kill {number + 1}; {tmp_path / 'copy'} is what was found")
                    raise
            load.finish()
        assert running.stop() == 0
    look(tmp_path / "data", ledgers)
    seconds = time.monotonic() - began
    print(
        f"{KILLS} kills in {seconds:.0f} s, {interrupted} amid a compaction: {load.summary()}; "
        f"{recognised:,.0f} batches came again"
    )
    assert interrupted, "some kill fell into a compaction"
    assert recognised, "something came again"
    # Of "compact,delete" all that was compacted may have expired by the time of the next look.
    assert all(ledger.superseded for ledger in ledgers.values() if ledger.policy == "compact")
    assert all(ledger.expired for ledger in ledgers.values() if "delete" in ledger.policy)
