"""Jobs that many workers share while workers and the broker are killed: what was accepted is never delivered again.

``SEGLOG_SHARE_JOBS``, ``SEGLOG_SHARE_KILLS`` and ``SEGLOG_SHARE_WORKER_KILLS`` make it longer; 500,000, 10 and 50 are
what was run by hand.
"""

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import seglog
from seglog_protocol.dead_letters import read_origin
from tests.copying import Worker
from tests.interop.kafka_cases import Fields
from tests.interop.kafka_wire import Wire, plain, request
from tests.process.faults.share_worker import GROUP, TOPIC, is_poison
from tests.processes import Daemon, kafka_daemon
from tests.support import soak_seed

JOBS: Final = int(os.environ.get("SEGLOG_SHARE_JOBS", "6000"))
KILLS: Final = int(os.environ.get("SEGLOG_SHARE_KILLS", "2"))
WORKER_KILLS: Final = int(os.environ.get("SEGLOG_SHARE_WORKER_KILLS", "10"))
WORKERS: Final = 16
AT_ONCE: Final = 100
LOCK_MS: Final = 2_000
DEAD: Final = "dlq.jobs"
SLOW_SECONDS: Final = LOCK_MS * 1.2 / 1000
"""What the slow worker takes for one job: its lock has run out."""

MEMORY_BYTES: Final = 4 * 1024 * 1024
"""The bound of what share groups keep."""

RESIDENT_BYTES_MAX: Final = 160 * 1024 * 1024
"""Of the broker: half of it is Python and the broker, whatever it does."""

pytestmark = pytest.mark.timeout(600 + 60 * (KILLS + WORKER_KILLS) + JOBS // 100)

SETTINGS: Final = (
    f"group.share.record.lock.duration.ms={LOCK_MS}",
    f"group.share.min.record.lock.duration.ms={LOCK_MS}",
    "group.share.session.timeout.ms=10000",
    "group.share.min.session.timeout.ms=10000",
    f"seglog.share.memory.bytes={MEMORY_BYTES}",
)


class Told(NamedTuple):
    """A line of a worker: what, when, and of which offsets."""

    what: str
    when: int
    first: int
    last: int


def told(folder: Path) -> Iterator[Told]:
    """Everything that workers have told of offsets."""
    for path in folder.glob("worker-*.txt"):
        for line in path.read_text().splitlines():
            what, when, first, last, *_ = [*line.split(), ""]
            if what in ("got", "accepts", "accepted"):
                yield Told(what, int(when), int(first), int(last))


def ask(running: Daemon, api: str, version: int, fields: Fields) -> Any:
    """The answer to one request on a connection of its own."""
    with Wire(running.kafka_port) as wire:
        return plain(wire.ask(request(api, fields), version))


def lag(running: Daemon) -> int:
    """Jobs that are not done."""
    answer = ask(running, "DescribeShareGroupOffsets", 1, {"groups": [{"group_id": GROUP, "topics": None}]})
    found = [part["lag"] for topic in answer["groups"][0]["topics"] for part in topic["partitions"]]
    return found[0] if found and found[0] >= 0 else JOBS


def resident_peak(running: Daemon) -> int:
    """Bytes of memory that the broker has had at once since its start."""
    assert running.process is not None
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def wait_until_left(running: Daemon, count: int) -> None:
    """Return when no more jobs are left. There is no deadline but the test's."""
    while lag(running) > count:
        time.sleep(0.02)


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[Daemon]:
    """A broker with all jobs."""
    with kafka_daemon(tmp_path / "data", *SETTINGS) as running:
        with seglog.connect(running.address) as client:
            client.create_topic(TOPIC, 1)
            client.create_topic(DEAD, 1, {"errors.deadletterqueue.group.enable": "true"})
            with client.producer(TOPIC) as producer:
                for number in range(JOBS):
                    producer.send(str(number))
        values = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": DEAD}
        configs = [{"name": name, "config_operation": 0, "value": value} for name, value in values.items()]
        resource = {"resource_type": 32, "resource_name": GROUP, "configs": configs}
        answer = ask(running, "IncrementalAlterConfigs", 1, {"resources": [resource]})
        assert not answer["responses"][0]["error_code"], answer
        yield running


def test_jobs_survive_the_death_of_workers_and_of_the_broker(prepared: Daemon, tmp_path: Path) -> None:
    seed = soak_seed()
    print(f"seed {seed}")
    chosen = random.Random(seed)
    program = [sys.executable, "-m", "tests.process.faults.share_worker", str(prepared.kafka_port)]
    workers: list[Worker] = []
    peaks: list[int] = []
    try:
        for number in range(WORKERS):
            pace = ["1", str(SLOW_SECONDS)] if number == 0 else [str(AT_ONCE), "0"]
            name = f"worker-{number}"
            workers.append(Worker([*program, name, *pace], tmp_path / f"{name}.txt"))
        deaths = [*[True] * KILLS, *[False] * WORKER_KILLS]
        chosen.shuffle(deaths)
        for number, is_brokers in enumerate(deaths, 1):
            left = JOBS - JOBS * number // (len(deaths) + 1)
            wait_until_left(prepared, left)
            if is_brokers:
                peaks.append(resident_peak(prepared))
                prepared.kill()
                prepared.start()
            else:
                chosen.choice(workers).kill()
        wait_until_left(prepared, 0)
        peaks.append(resident_peak(prepared))
    finally:
        for worker in workers:
            worker.end()
    with seglog.connect(prepared.address) as client, client.consumer(DEAD) as consumer:
        origins = [read_origin(record.headers) for record in consumer]
    assert max(peaks) <= RESIDENT_BYTES_MAX, peaks
    check([*told(tmp_path)], Counter(origin.offset for origin in origins if origin is not None))
    print(f"at most {max(peaks) >> 20} MiB of memory")


def check(lines: list[Told], dead: Counter[int]) -> None:
    """Each job was accepted, perhaps without an answer, or has a dead letter; none came after its answer."""
    answered: dict[int, int] = {}
    tried: set[int] = set()
    for each in lines:
        for offset in range(each.first, each.last + 1):
            if not is_poison(offset) and each.what == "accepted":
                answered[offset] = min(each.when, answered.get(offset, each.when))
            elif not is_poison(offset) and each.what == "accepts":
                tried.add(offset)
    late = [
        (each, offset)
        for each in lines
        if each.what == "got"
        for offset in range(each.first, each.last + 1)
        if each.when > answered.get(offset, each.when)
    ]
    assert not late, late[:10]
    assert tried | dead.keys() == set(range(JOBS))
    assert not answered.keys() & dead.keys()
    assert {offset for offset in range(JOBS) if is_poison(offset)} <= dead.keys()
    unanswered = len(tried - answered.keys() - dead.keys())
    twice = sum(count - 1 for count in dead.values())
    print(
        f"{len(answered):,} accepted, {unanswered} without an answer, {len(dead)} dead letters, {twice} of them again"
    )
