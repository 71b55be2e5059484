"""Consume, transform, produce: programs copy a topic while they and the broker are killed.

What was copied is read at "read_committed" afterwards: where it was copied in transactions each record is there once.
"""

import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import seglog
from seglog_protocol.errors import CoordinatorLoadingError
from tests.processes import Daemon, clean_environment, kafka_daemon, wait_until

GROUP: Final = "copiers"
KEYS: Final = 100
"""The key of a record is its number modulo this."""
PARTITIONS: Final = 4
TRANSACTION_SECONDS: Final = 20
"""The timeout of a copier's transactions: what a killed one left open ends then at the latest."""


@dataclass(frozen=True, slots=True)
class Copier:
    """A program that copies the topic ``in`` to ``out`` as a member of `GROUP`.

    It may end at any time, with or without an error, and is started again.
    """

    name: str
    command: Callable[[Daemon, str, int], Sequence[str]]
    """Its command for a broker, a transactional id, and the records of a transaction."""
    copy: Callable[[int], str] = str
    """What it makes of the record of a number."""
    workers: int = 2
    """How many run at a time, and share the partitions."""
    is_killed: bool = True
    """Whether its workers are killed, in turn with the broker; else it is the broker each time."""
    number_of: Callable[[bytes], int] = int
    """The number of the record that a copy is of."""


class Worker:
    """A process of a copier, which is started again whenever it ends."""

    def __init__(self, command: Sequence[str], said: Path) -> None:
        self._command = command
        self.said = said
        self._is_over = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.said.open("ab") as said:
            return subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=clean_environment()
            )

    def _keep(self) -> None:
        while True:
            self._process.wait()
            if self._is_over.wait(0.2):
                return
            self._process = self._start()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def end(self) -> None:
        """SIGKILL, and it is not started again."""
        self._is_over.set()
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(0.1)


@contextmanager
def _workers(copier: Copier, running: Daemon, folder: Path, batch: int) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        for number in range(copier.workers):
            name = f"copier-{number}"
            started.append(Worker(copier.command(running, name, batch), folder / f"{name}.txt"))
        yield started
    except BaseException as error:
        for worker in started:
            error.add_note(f"{worker.said.name}: {worker.said.read_text(errors='replace')[-3000:]}")
        raise
    finally:
        for worker in started:
            worker.end()


def assert_each_record_is_copied_once(copier: Copier, folder: Path, records: int, kills: int) -> None:
    """``kills`` of the broker and as many of workers, in turn, while so many records are copied."""
    found = copied(copier, folder, records, kills)
    assert found.keys() == {copier.copy(number).encode() for number in range(records)}
    assert set(found.values()) == {1}


def assert_each_record_is_copied(copier: Copier, folder: Path, records: int, kills: int) -> Counter[bytes]:
    """As `assert_each_record_is_copied_once`, but copies may be there more than once; gives how often each is."""
    found = copied(copier, folder, records, kills)
    assert {copier.number_of(value) for value in found} == set(range(records))
    return found


def copied(copier: Copier, folder: Path, records: int, kills: int) -> Counter[bytes]:
    """How often each value is there, after so many kills of the broker and of workers."""
    chosen = random.Random(7)
    batch = max(20, records // 200)
    with kafka_daemon(folder / "data") as running, seglog.connect(running.address, connect_timeout=60) as client:
        for name in ("in", "out"):
            client.create_topic(name, PARTITIONS)
        share = records // (2 * kills + 1)
        with _sending(client) as send, _workers(copier, running, folder, batch) as copying:
            for number in range(2 * kills):
                send(range(number * share, (number + 1) * share))
                _wait_for_copies(client, number * share + share // 4)
                time.sleep(chosen.random() / 5)  # at another place of a transaction each time
                if number % 2 and copier.is_killed:
                    copying[number // 2 % copier.workers].kill()
                else:
                    running.kill()
                    running.start()
            send(range(2 * kills * share, records))
            _wait_for_copies(client, records)
            wait_until(lambda: _copies(client).total() >= records, "copies that can be read")
        wait_until(lambda: _all_ended(client), "the end of what killed workers left open")
        return _copies(client)


@contextmanager
def _sending(client: seglog.Client) -> Iterator[Callable[[range], object]]:
    """A function that has records of these numbers sent to ``in`` while its caller goes on.

    So there is always something to copy when something is killed.
    """
    sent: list[Future[None]] = []
    with client.producer("in") as producer, ThreadPoolExecutor(1) as pool:
        yield lambda numbers: sent.append(pool.submit(_send, producer, numbers))
        for each in sent:
            each.result()


def _send(producer: seglog.Producer, numbers: range) -> None:
    """A few at a time, for two seconds."""
    for number in numbers:
        producer.send(str(number), key=str(number % KEYS), partition=number % PARTITIONS)
        if number % (len(numbers) // 20 + 1) == 0:
            time.sleep(0.1)
    producer.flush()


def _wait_for_copies(client: seglog.Client, count: int) -> None:
    """Return when the group has committed so many records."""

    def is_reached() -> bool:
        try:
            return sum(each.offset or 0 for each in client.group_offsets(GROUP)) >= count
        except CoordinatorLoadingError:  # the broker has just started
            return False

    wait_until(is_reached, f"{count} records")


def _copies(client: seglog.Client) -> Counter[bytes]:
    with client.consumer("out", isolation="read_committed") as consumer:
        return Counter(record.value or b"" for record in consumer)


def _all_ended(client: seglog.Client) -> bool:
    states = {each.state for each in client.transactions()}
    return states <= {"CompleteCommit", "CompleteAbort", "Empty"}
