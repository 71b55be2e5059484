"""A broker's machine that is lost under load, and the judge of what was restored.

What the broker tells of its backup bounds what may be lost: who asked at T and heard of S seconds knows that all that
was promised before T - S is in the backup.
"""

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import seglog
from benchmarks.processes import children
from tests.copying import Worker
from tests.interop.kafka_wire import Wire, plain, request
from tests.process.faults.lost_load import (
    ABORTED,
    BULK,
    JOBS,
    MOVED,
    PAIRS,
    PARTITIONS,
    READERS,
    ROLES,
    VALUE_BYTES,
    WORKERS,
    number_of,
)
from tests.processes import SEGLOGD, Daemon, clean_environment, kafka_daemon, wait_until
from tests.support import soak_seed

NS: Final = 1_000_000_000
COMPACTING: Final = (
    "offsets.topic.segment.bytes=1048576",
    "transaction.state.log.segment.bytes=1048576",
    "log.cleaner.backoff.ms=500",
    "log.cleaner.min.cleanable.ratio=0.01",
)
"""So that topics of the broker's own are compacted all the time, in a long run."""

LOSSES: Final = int(os.environ.get("SEGLOG_LOSSES", "2"))
SECONDS: Final = float(os.environ.get("SEGLOG_LOSS_SECONDS", "4"))
MEGABYTES: Final = float(os.environ.get("SEGLOG_LOSS_MB", "1"))
RETENTION_BYTES: Final = 256 * 1024 * 1024
"""Of each partition of ``bulk``."""

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Told(NamedTuple):
    """An answer of a broker: when it was asked (ns), and what would be lost."""

    when: int
    seconds: float
    records: int

    @property
    def bound(self) -> int:
        """All that was promised before is in the backup."""
        return self.when - math.ceil(self.seconds * NS)


class Found(NamedTuple):
    """What a restored broker has."""

    records: dict[Place, int]
    """Numbers, of ``bulk`` and ``jobs``."""
    latest_ms: int
    """The newest timestamp of a record."""
    starts: dict[tuple[str, int], int]
    """Of logs: what was before has expired."""


class Promises:
    """What the load was promised, as its notes say, and what may no longer be broken of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read = dict.fromkeys(ROLES, 0)
        self._since = 0
        self.acked: dict[Place, tuple[int, int]] = {}
        """Numbers, and when it was promised."""
        self._tried: set[int] = set()
        self._committed: dict[int, int] = {}
        """Transactions, and when."""
        self._done: dict[int, int] = {}
        """Jobs, and when."""
        self._done_for_good: set[int] = set()
        self._ever_done: set[int] = set()
        self._read_up_to: list[tuple[int, int, int]] = []
        """When, partition, offset."""

    def take(self) -> None:
        """Take in what was noted since the last time."""
        for role in ROLES:
            path = self._folder / f"{role}.txt"
            text = path.read_bytes()[self._read[role] :] if path.exists() else b""
            text = text[: text.rfind(b"\n") + 1]
            self._read[role] += len(text)
            for line in text.decode().splitlines():
                word, when, *places = line.split(" ")
                self._note(role, word, int(when), places)

    def _note(self, role: str, word: str, when: int, places: list[str]) -> None:
        if word == "acked":
            begun, topic, *acked = places
            for partition, offset, number in (map(int, each.split(":")) for each in acked):
                if (
                    int(begun) > self._since and offset >= 0
                ):  # else a part of it may have been promised by a lost broker
                    self.acked[topic, partition, offset] = number, when
        elif role == "worker" and word in ("tries", "accepted"):
            numbers = {int(each.partition(":")[2]) for each in places}
            if word == "accepted":
                self._done |= dict.fromkeys(numbers, when)
                self._ever_done |= numbers
            elif when > self._since:
                assert not numbers & self._done_for_good, (
                    "jobs that were done, and told to be in the backup, came again"
                )
        elif role == "pairs" and word == "tries":
            self._tried.add(int(places[0]))
        elif role == "pairs" and word == "committed":
            self._committed[int(places[0])] = when
        elif role == "reader" and word == "committed":
            self._read_up_to += [(when, *map(int, each.split(":"))) for each in places]  # type: ignore[misc]

    def judge(self, running: Daemon, bound: int) -> Found:
        """All that was promised before ``bound`` is there, nothing is twice or elsewhere, nothing is ahead."""
        with seglog.connect(running.address, connect_timeout=60) as client:
            found = self._judge_records(client, bound)
            self._judge_transactions(client, bound)
            ends = {each.partition: each.latest for each in client.offsets(BULK)}
            committed = {each.partition: each.offset or 0 for each in client.group_offsets(READERS)}
            assert all(offset <= ends[partition] for partition, offset in committed.items()), (committed, ends)
            for when, partition, offset in self._read_up_to:
                assert when >= bound or committed.get(partition, -1) >= offset, (partition, offset, committed)
            [jobs_end] = [each.latest for each in client.offsets(JOBS)]
        with Wire(running.kafka_port) as wire:
            asked = {"groups": [{"group_id": WORKERS, "topics": None}]}
            answer = plain(wire.ask(request("DescribeShareGroupOffsets", asked), 1))
        for topic in answer["groups"][0]["topics"]:
            assert all(partition["start_offset"] <= jobs_end for partition in topic["partitions"]), (answer, jobs_end)
        return found

    def _judge_records(self, client: seglog.Client, bound: int) -> Found:
        found: dict[Place, int] = {}
        latest_ms = 0
        for topic in (BULK, JOBS):
            with client.consumer(topic) as consumer:
                for record in consumer:
                    found[topic, record.partition, record.offset] = number_of(record.value)
                    latest_ms = max(latest_ms, record.timestamp)
        starts = {(t, each.partition): each.earliest for t in (BULK, JOBS) for each in client.offsets(t)}
        for (topic, partition), start in starts.items():
            kept = sum(place[:2] == (topic, partition) for place in found)
            assert start == 0 or kept * VALUE_BYTES >= RETENTION_BYTES * 0.9, (topic, partition, start, kept)
        assert len(set(found.values())) == len(found), "a record is there twice"
        for place, (number, when) in self.acked.items():
            is_there = found.get(place) == number
            assert is_there or (when >= bound and place not in found) or place[2] < starts[place[:2]], (place, number)
        return Found(found, latest_ms, starts)

    def _judge_transactions(self, client: seglog.Client, bound: int) -> None:
        ended = {"CompleteCommit", "CompleteAbort", "Empty"}
        wait_until(lambda: {each.state for each in client.transactions()} <= ended, "transactions to end")
        visible: list[dict[int, int]] = [{} for _ in range(PARTITIONS[PAIRS])]
        with client.consumer(PAIRS, isolation="read_committed") as consumer:
            for record in consumer:
                number = number_of(record.value)
                assert visible[record.partition].setdefault(number, record.offset) == record.offset, "twice"
        assert all(each.keys() == visible[0].keys() for each in visible), "half a transaction"
        assert visible[0].keys() <= self._tried, "an aborted transaction"
        assert not [number for number in visible[0] if number % ABORTED == 0]
        lost = [number for number, when in self._committed.items() if when < bound and number not in visible[0]]
        assert not lost, f"committed transactions {lost} are gone"
        [moved] = [each.offset for each in client.group_offsets(MOVED)] or [None]
        assert moved == (max(visible[0].values()) + 1 if visible[0] else None), "an offset without its transaction"

    def lost(self, found: Found, told: Told) -> int:
        """How many records that were acked are gone; of those acked before the last answer it told as many, or more."""
        lost = [
            when
            for place, (_, when) in self.acked.items()
            if place not in found.records and place[2] >= found.starts[place[:2]]
        ]
        known = sum(when < told.when for when in lost)
        assert known <= told.records, f"{known} records were lost, and {told.records} were told"
        return len(lost)

    def go_on(self, found: Found, bound: int) -> None:
        """From now on this is the log: what is there is promised, and what is gone was never."""
        self._since = now = time.monotonic_ns()
        before = self.acked
        self.acked = {
            place: (number, min(now, before.get(place, (0, now))[1])) for place, number in found.records.items()
        }
        self._committed = {number: when for number, when in self._committed.items() if when < bound}
        self._done_for_good |= {number for number, when in self._done.items() if when < bound}
        self._done = {number: when for number, when in self._done.items() if when < bound}
        self._read_up_to = [each for each in self._read_up_to if each[0] < bound]

    @property
    def times(self) -> list[int]:
        """When something was promised, of any kind, in order."""
        self.take()
        acked = (when for _, when in self.acked.values())
        return sorted(
            [*acked, *self._committed.values(), *self._done.values(), *(when for when, *_ in self._read_up_to)]
        )

    @property
    def has_each(self) -> bool:
        """Whether something of each kind was promised."""
        self.take()
        return all((self.acked, self._committed, self._done, self._read_up_to))

    def is_drained(self, found: Found) -> bool:
        """Whether each job that is there was accepted once: none is passed over."""
        self.take()
        return {number for (topic, _, _), number in found.records.items() if topic == JOBS} <= self._ever_done


class Watch:
    """Asks a broker again and again what would be lost, in a thread, until it is gone."""

    def __init__(self, ask: Callable[[], tuple[float, int] | None], pause: float = 0.5) -> None:
        self.told: list[Told] = []
        self._ask = ask
        self._pause = pause
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(self._pause):
            when = time.monotonic_ns()
            with suppress(seglog.SeglogError, OSError):
                answer = self._ask()
                if answer is not None:
                    self.told.append(Told(when, *answer))

    def end(self) -> None:
        """Ask no more."""
        self._is_over.set()
        self._thread.join()


class Load:
    """The roles as processes."""

    def __init__(self, running: Daemon, folder: Path, megabytes: float) -> None:
        given = [running.address, str(running.kafka_port), str(folder), str(megabytes)]
        program = [sys.executable, "-m", "tests.process.faults.lost_load"]
        self.workers = {role: Worker([*program, role, *given], folder / f"{role}-said.txt") for role in ROLES}

    def end(self) -> None:
        """Kill them."""
        for worker in self.workers.values():
            worker.end()


def told_by(address: str) -> Callable[[], tuple[float, int] | None]:
    """Asks the broker what would be lost: seconds and records; None where it has no backup yet."""

    def ask() -> tuple[float, int] | None:
        with seglog.connect(address) as client:
            found = client.ping().backup
        if found is None or found.published_ms is None:
            return None
        return (found.lost_ms + 1) / 1000, found.lost_records  # it was rounded

    return ask


def lose(running: Daemon) -> None:
    """The machine is gone: the broker, the process that backs it up, and their directory."""
    assert running.process is not None
    beside = children(running.process.pid, "seglog_broker.backup.agent")
    running.kill()
    for pid in beside:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(running.directory)


def restored(place: str, to: Path, *more: str, **variables: str) -> None:
    """``seglogd restore``, which has to end well."""
    command = [*SEGLOGD, "restore", place, "--to", str(to), *more]
    done = subprocess.run(command, env=clean_environment(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done


def make_topics(running: Daemon, *, is_small: bool) -> None:
    """The topics of the load; in a long run ``bulk`` expires."""
    config = (
        {"segment.bytes": 1024 * 1024} if is_small else {"retention.bytes": RETENTION_BYTES, "segment.bytes": 16 << 20}
    )
    with seglog.connect(running.address) as client:
        for topic, partitions in PARTITIONS.items():
            client.create_topic(topic, partitions, config if topic == BULK else {})


def _under_load(running: Daemon, chosen: random.Random) -> Watch:
    """Some time under load, at least until the broker has told something; ends with the machine."""
    watch = Watch(told_by(running.address))
    ends = time.monotonic() + chosen.uniform(SECONDS / 2, SECONDS)
    wait_until(lambda: time.monotonic() > ends and len({told.bound for told in watch.told}) > 1, "something to lose")
    lose(running)
    watch.end()
    return watch


def lose_again_and_again(place: str, folder: Path, *more: str) -> None:
    """Losses under load, with a restore behind each; ``more`` are settings of the broker."""
    seed = soak_seed()
    print(f"seed {seed}")
    chosen = random.Random(seed)
    settings = (
        f"seglog.backup.to={place}",
        "seglog.backup.lag.ms=2000",
        "seglog.backup.keep.ms=60000",
        *COMPACTING,
        *more,
    )
    promises = Promises(folder)
    with kafka_daemon(folder / "data", *settings) as running:
        arguments = running.arguments
        make_topics(running, is_small=MEGABYTES * SECONDS < 100)
        load = Load(running, folder, MEGABYTES)
        try:
            for number in range(LOSSES):
                watch = _under_load(running, chosen)
                promises.take()
                told = max(watch.told, key=lambda each: each.bound)
                restored(place, folder / "look")
                with kafka_daemon(folder / "look") as looked_at:
                    found = promises.judge(looked_at, told.bound)
                lost = promises.lost(found, watch.told[-1])
                print(f"loss {number + 1}: {len(found.records):,} there, {lost:,} lost, {watch.told[-1]}")
                shutil.rmtree(folder / "look")
                if number == LOSSES - 1:
                    _judge_an_earlier_moment(place, folder / "until", promises, watch)
                if number % 2:
                    restored(place, running.directory, "--take-over")
                else:
                    running.arguments = (*running.arguments, "--from", place, "--take-over")
                promises.go_on(found, told.bound)
                load.workers["reader"].kill()
                running.start()
                running.arguments = arguments
            wait_until(lambda: promises.is_drained(found), "jobs to be done")
            wait_until(lambda: not any(running.directory.glob("*/*.awaited")), "all segments to come")
        finally:
            load.end()
        assert running.stop() == 0


def _judge_an_earlier_moment(place: str, to: Path, promises: Promises, watch: Watch) -> None:
    """A restore to a moment within the last load has what was safe then, and nothing newer."""
    chosen = watch.told[len(watch.told) // 2]
    now_ms, now = time.time_ns() // 1_000_000, time.monotonic_ns()
    moment_ms = now_ms - (now - chosen.when) // 1_000_000
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
    restored(place, to, "--until", moment)
    with kafka_daemon(to) as looked_at:
        found = promises.judge(looked_at, chosen.bound)
    assert found.latest_ms <= moment_ms
