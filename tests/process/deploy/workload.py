"""What a broker is given to do while Prometheus looks: load on both wires, topics that come and go, groups."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError

from seglog_protocol.errors import SeglogError
from tests.process.faults.secured_daemon import ADMIN, PASSWORDS, Secured
from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment, seglog_command, wait_until

VISITS: Final = "visits"
"""The topic of the load, which the group ``live`` reads, and which ``dead`` read once."""
DEAD: Final = "dead"
LIVE: Final = "live"
LATE: Final = "late"
"""A topic whose records are past their retention when they arrive."""
KEYED: Final = "keyed"
"""A compacted topic."""
OVER_KAFKA: Final = "over-kafka"
QUEUE: Final = "workers"
"""A share group that takes its records."""
PARTITIONS: Final = 4

SETTINGS: Final = (
    *("--set", "log.initial.task.delay.ms=0", "--set", "log.retention.check.interval.ms=500"),
    *("--set", "log.flush.offset.checkpoint.interval.ms=500", "--set", "log.cleaner.backoff.ms=200"),
    *("--set", "seglog.scrub.interval.ms=1000", "--set", "seglog.scrub.bytes.per.second=20000000"),
    *("--set", "log.segment.delete.delay.ms=1000", "--set", "group.initial.rebalance.delay.ms=0"),
    *("--set", "seglog.http.listen=127.0.0.1:0", "--set", "super.users=User:admin;User:ANONYMOUS"),
)
"""What happens once in minutes or days happens all the time."""

_A_DAY_SECONDS: Final = 86_400
_MOMENT_SECONDS: Final = 1.2
"""So long a topic is there that goes: scrapes, one each second, meet some of them."""
_PART_ENDS_SECONDS: Final = 60
"""Longer than any part of it does not look whether it is to end."""


class Workload:
    """Goes on until it is left; a part that fails by more than the broker's refusal fails the test then."""

    def __init__(self, secured: Secured) -> None:
        self.secured = secured
        self.churned = 0
        """Topics that were made and deleted."""
        self._stopping = threading.Event()
        self._live = threading.Event()
        self._live.set()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._load: subprocess.Popen[bytes] | None = None

    def begin(self, rate: int) -> None:
        """Make the topics, and start everything."""
        with self.secured.connect() as client:
            client.create_topic(VISITS, PARTITIONS, config={"segment.bytes": 1 << 20, "retention.ms": "1h"})
            client.create_topic(KEYED, 1, config={"cleanup.policy": "compact", "segment.bytes": 4096,
                                                  "min.cleanable.dirty.ratio": 0.1})  # fmt: skip
            client.create_topic(LATE, 1, config={"retention.ms": "1h", "segment.bytes": 4096})
            client.create_topic(OVER_KAFKA, 2)
            with client.producer(VISITS) as producer:
                for number in range(100 * PARTITIONS):
                    producer.send(b"%d" % number, partition=number % PARTITIONS)
            client.reset_group(DEAD, 10, VISITS)
        load = ("load", "produce", VISITS, "--rate", str(rate), "--duration", "86400", "--json")
        self._load = subprocess.Popen(
            seglog_command(self.secured.running.address, *load), env=clean_environment(), stdout=subprocess.PIPE
        )
        for part in (self._churn, self._read, self._take_jobs, self._over_kafka, self._odd):
            self._threads.append(threading.Thread(target=self._guarded, args=(part,), daemon=True))
        for thread in self._threads:
            thread.start()

    def stop_group(self) -> None:
        """The members of ``LIVE`` leave, while its topic goes on."""
        self._live.clear()

    def start_group(self) -> None:
        """They come back."""
        self._live.set()

    def end(self) -> dict[str, Any]:
        """Stop everything; what the load says of itself. Raises what a part has failed by."""
        assert self._load is not None
        self._stop_parts()
        self._load.send_signal(signal.SIGINT)
        told, _ = self._load.communicate(timeout=PATIENCE_SECONDS)
        found: dict[str, Any] = json.loads(told)
        return found

    def abandon(self) -> None:
        """Stop, however it went. Raises what a part has failed by."""
        try:
            self._stop_parts()
        finally:
            if self._load is not None and self._load.poll() is None:
                self._load.kill()
                self._load.communicate()

    def _stop_parts(self) -> None:
        """The load may have ended by itself, on a full disk."""
        self._stopping.set()
        self._live.set()
        for thread in self._threads:
            thread.join(_PART_ENDS_SECONDS)
        if self._failures:
            raise self._failures[0]
        assert not any(thread.is_alive() for thread in self._threads)

    def _guarded(self, part: Callable[[], None]) -> None:
        while not self._stopping.is_set():
            try:
                part()
            except (SeglogError, KafkaError):  # of a broker that is full, or that was started again
                self._stopping.wait(0.5)
            except BaseException as error:  # noqa: BLE001 - it is raised where the test ends
                self._failures.append(error)
                return

    def _churn(self) -> None:
        """Topics that live for a moment, and groups that read them once."""
        with self.secured.connect() as client:
            while not self._stopping.wait(0.5):
                name = f"churn-{self.churned}"
                client.create_topic(name, 2)
                with client.producer(name) as producer:
                    producer.send(b"moment")
                client.reset_group(name, "earliest", name)
                self._stopping.wait(_MOMENT_SECONDS)
                client.delete_topic(name)
                client.delete_group(name)
                self.churned += 1

    def _read(self) -> None:
        """A group that keeps up, while it is let."""
        while self._live.wait(0.2) and not self._stopping.is_set():
            with (
                self.secured.connect() as client,
                client.consumer(VISITS, group=LIVE, auto_commit_interval=0.2) as consumer,
            ):
                while self._live.is_set() and not self._stopping.is_set():
                    consumer.poll(0.2)  # the load ends on a full disk: then no record comes

    def _take_jobs(self) -> None:
        """A worker of a queue."""
        with self.secured.connect() as client, client.queue(OVER_KAFKA, group=QUEUE) as queue:
            while not self._stopping.is_set():
                job = queue.get(0.2)
                if job is not None:
                    job.accept()

    def _over_kafka(self) -> None:
        """A producer on Kafka's wire."""
        address = f"127.0.0.1:{self.secured.kafka_ports['PLAINTEXT']}"
        producer = KafkaProducer(bootstrap_servers=address, acks="all", retries=0)
        try:
            while not self._stopping.wait(0.05):
                producer.send(OVER_KAFKA, b"over Kafka's wire").get(10)
        finally:
            producer.close()

    def _odd(self) -> None:
        """What goes wrong, or comes late, in any day's work."""
        address = f"127.0.0.1:{self.secured.kafka_ports['SASL_SSL']}"
        login = {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": ADMIN,
            "ssl_context": self.secured.context(),
            "bootstrap_servers": address,
            "bootstrap_timeout_ms": 500,
        }
        with self.secured.connect() as client:
            while not self._stopping.wait(0.5):
                with suppress(SeglogError):
                    client.describe_topic("there-is-none")
                with client.producer(LATE) as producer:
                    producer.send(b"late", timestamp=int((time.time() - _A_DAY_SECONDS) * 1000))
                with client.producer(KEYED) as producer:
                    for number in range(60):
                        producer.send(b"v" * 100, key=b"%d" % (number % 3))
                for password in ("wrong", None):
                    self._log_in(login, password)

    def _log_in(self, login: dict[str, Any], password: str | None) -> None:
        with suppress(KafkaError):
            KafkaAdminClient(**login, sasl_plain_password=password or PASSWORDS[ADMIN]).close()


@contextmanager
def working(secured: Secured, *, rate: int = 500) -> Iterator[Workload]:
    """A broker with everything to do; gone afterwards."""
    workload = Workload(secured)
    try:
        workload.begin(rate)
        wait_until(lambda: workload.churned > 0, "the first topic that went")
        yield workload
    finally:
        workload.abandon()


_FLIP: Final = """
import pathlib, sys
segment = min(pathlib.Path(sys.argv[1]).glob("*.log"))
content = bytearray(segment.read_bytes())
content[100] ^= 1
with segment.open("r+b") as file:
    file.write(content)
"""


def damage(running: Daemon, topic: str) -> None:
    """Change a byte in the first segment of a topic, which is closed, where the daemon sees it."""
    partition = str(running.directory / f"{topic}-0")
    subprocess.run([*running.under, sys.executable, "-c", _FLIP, partition], check=True)
