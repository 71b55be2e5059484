"""The load on a broker that will be lost: ``python -m tests.process.faults.lost_load ROLE ADDRESS KAFKA FOLDER MB``.

Each role is a process, which lives on through the loss, and notes in ``FOLDER/ROLE.txt`` what it was promised: a line
each of a word, when that was (nanoseconds of the machine's monotonic clock, taken behind the answer), and places. Each
record has a number, which no other one ever has.

``writer`` sends MB megabytes a second to ``bulk``, and jobs; ``worker`` is a queue's; ``pairs`` writes one record to
each partition of ``pairs``, and an offset, in transactions, of which it aborts some; ``reader`` reads ``bulk`` in a
group, and commits. The first two are asynchronous clients of seglog's, the others librdkafka's.
"""

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import seglog
import seglog.asyncio
from seglog_protocol.messages import Ack

BULK: Final = "bulk"
JOBS: Final = "jobs"
PAIRS: Final = "pairs"
PARTITIONS: Final = {BULK: 4, JOBS: 1, PAIRS: 3}
READERS: Final = "readers"
MOVED: Final = "moved"
"""The group whose offset of the first partition of ``pairs`` is committed in each transaction."""
WORKERS: Final = "workers"

VALUE_BYTES: Final = 8 * 1024
ABORTED: Final = 8
"""One in so many transactions is aborted."""

_ROUNDS: Final = 20
"""A second: of the writer."""
_JOBS: Final = 5
"""A round."""
_SECONDS: Final = 30
_TRANSACTION_MS: Final = 5_000
_POOL: Final = random.Random(7).randbytes(1 << 20)

Note = Callable[..., None]


def value_of(number: int, size: int = VALUE_BYTES) -> bytes:
    """The record of a number, which does not compress."""
    begin = number % (len(_POOL) - size)
    return b"%d %b" % (number, _POOL[begin : begin + size])


def number_of(value: bytes | None) -> int:
    """The number of a record; nothing but that record has it."""
    assert value is not None
    number, _, rest = value.partition(b" ")
    assert value_of(int(number), len(rest)) == value, "a record that nobody has sent"
    return int(number)


async def writer(address: str, _port: int, note: Note, megabytes: float) -> None:
    """Send what a round has, wait for all of it, note it."""
    numbers = itertools.count(time.time_ns())
    count = max(1, int(megabytes * 1_000_000 / VALUE_BYTES / _ROUNDS))
    async with seglog.asyncio.connect(address, connect_timeout=600) as client:
        acks: dict[str, Ack] = {BULK: "disk", JOBS: "os"}
        producers = {topic: await client.producer(topic, ack=ack, delivery_timeout=600) for topic, ack in acks.items()}
        for due in itertools.count(asyncio.get_running_loop().time(), 1 / _ROUNDS):
            begun = time.monotonic_ns()
            sent: dict[str, list[tuple[int, Any]]] = {BULK: [], JOBS: []}
            for topic, wanted, size in ((BULK, count, VALUE_BYTES), (JOBS, _JOBS, 20)):
                for number in itertools.islice(numbers, wanted):
                    partition = number % PARTITIONS[topic]
                    sent[topic].append(
                        (number, await producers[topic].send(value_of(number, size), partition=partition))
                    )
            for topic, deliveries in sent.items():
                await producers[topic].flush()
                receipts = [(await delivery, number) for number, delivery in deliveries]
                note("acked", begun, topic, *(f"{each.partition}:{each.offset}:{number}" for each, number in receipts))
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


async def worker(address: str, _port: int, note: Note, _megabytes: float) -> None:
    """Take jobs, accept them, wait for that, note it."""
    async with (
        seglog.asyncio.connect(address, connect_timeout=600) as client,
        await client.queue(JOBS, group=WORKERS, start="earliest", reconnect_timeout=600) as queue,
    ):
        while True:
            jobs = [await queue.get()]
            while len(jobs) < 100 and (another := await queue.get(0)) is not None:
                jobs.append(another)
            places = [f"{job.offset}:{number_of(job.value)}" for job in jobs if job is not None]
            note("tries", *places)
            for job in filter(None, jobs):
                job.accept()
            try:
                await queue.flush()
            except seglog.JobLost:
                continue
            note("accepted", *places)


def pairs(_address: str, port: int, note: Note, _megabytes: float) -> None:
    """A transaction after the other."""
    common = {"bootstrap.servers": f"127.0.0.1:{port}", "metadata.recovery.strategy": "none"}
    group = Consumer(common | {"group.id": MOVED}).consumer_group_metadata()
    producer = Producer(common | {"transactional.id": "pairs", "transaction.timeout.ms": _TRANSACTION_MS})
    producer.init_transactions(_SECONDS)
    offsets: list[int] = []
    for number in itertools.count(time.time_ns()):
        producer.begin_transaction()
        offsets.clear()
        for partition in range(PARTITIONS[PAIRS]):
            told = (lambda _, message: offsets.append(message.offset())) if partition == 0 else None
            producer.produce(PAIRS, value_of(number, 20), partition=partition, on_delivery=told)
        producer.flush(_SECONDS)
        if number % ABORTED == 0 or not offsets:
            producer.abort_transaction(_SECONDS)
            continue
        producer.send_offsets_to_transaction([TopicPartition(PAIRS, 0, offsets[0] + 1)], group, _SECONDS)
        note("tries", number)
        producer.commit_transaction(_SECONDS)
        note("committed", number)
        time.sleep(0.02)


def reader(_address: str, port: int, note: Note, _megabytes: float) -> None:
    """Read, commit twice a second, note it."""
    settings = {"group.id": READERS, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(
        settings
        | {"bootstrap.servers": f"127.0.0.1:{port}", "metadata.recovery.strategy": "none", "session.timeout.ms": 6000}
    )
    consumer.subscribe([BULK])
    while True:
        due = time.monotonic() + 0.5
        while time.monotonic() < due:
            consumer.consume(500, 0.1)
        positions = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
        if positions:
            consumer.commit(offsets=positions, asynchronous=False)
            note("committed", *(f"{each.partition}:{each.offset}" for each in positions))


ROLES: Final[dict[str, Callable[[str, int, Note, float], Any]]] = {
    "writer": writer,
    "worker": worker,
    "pairs": pairs,
    "reader": reader,
}


def main(role: str, address: str, port: str, folder: str, megabytes: str) -> None:
    """Play the role until killed; what fails is noted, and begun anew."""
    notes = os.open(Path(folder) / f"{role}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(word: str, *places: object) -> None:
        os.write(notes, " ".join(map(str, (word, time.monotonic_ns(), *places))).encode() + b"\n")

    while True:
        try:
            playing = ROLES[role](address, int(port), note, float(megabytes))
            if playing is not None:
                asyncio.run(playing)
        except (seglog.SeglogError, KafkaException, OSError) as error:
            note("failed", type(error).__name__, str(error).replace("\n", " "))
            time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
