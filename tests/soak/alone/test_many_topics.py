"""Ten thousand topics: no request and no background task blocks the loop for long.

Measured as in ``test_hostile_requests``: in processor time of the loop between two polls of the network.
"""

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import File, PosixFileSystem
from seglog_broker.storage.log.partition_files import make_partition
from seglog_protocol.frames import encode_frame
from tests.process.faults.hostile_peer import Peer, plain_batch
from tests.process.faults.large_requests import Places, native_requests
from tests.processes import daemon
from tests.turns import judge_turn, judges_turns, reference_seconds

SETTINGS: Final = {
    "log.initial.task.delay.ms": 1000,
    "log.flush.offset.checkpoint.interval.ms": 1000,
    "log.retention.check.interval.ms": 1000,
    "producer.id.expiration.check.interval.ms": 1000,
    "seglog.scrub.interval.ms": 1000,
    "log.cleaner.backoff.ms": 1000,
    "log.segment.delete.delay.ms": 0,
}
"""Every task in the background is at work all the time."""

CONFIGS: Final[Sequence[dict[str, str]]] = (
    {},
    {"cleanup.policy": "compact"},
    {"retention.bytes": "1000000", "flush.ms": "60000"},
)


PLACES: Final = 2_000
"""In one request: the answers to more would not fit a header."""


class NoSync(PosixFileSystem):
    """A disk without fsyncs."""

    def sync_directory(self, path: str) -> None:
        pass

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        return [None] * len(files)

    def sync_directories(self, paths: Sequence[str]) -> list[OSError | None]:
        return [None] * len(paths)


def topic(number: int) -> str:
    return f"topic-{number:05d}"


def build(path: Path, count: int) -> None:
    """A cleanly stopped directory with so many topics, written to the registry and then created by a start."""
    config, _ = load_config(None, "", {}, [f"log.dir={path}", "seglog.disk.ballast.bytes=0"])
    for may_name in (True, False):
        directory = open_log_directory(NoSync(), SystemClock(), config, str(path))
        if may_name:
            for number in range(count):
                one = Topic(topic(number), filenames.new_id(uuid.uuid4()), 1, dict(CONFIGS[number % len(CONFIGS)]))
                directory.registry.topics[one.name] = one
                make_partition(NoSync(), f"{path}/{filenames.partition_directory_name(one.name, 0)}", one.id)
            directory.registry.save()
            directory.abandon()  # not a clean stop, which would write a state file for each topic
        else:
            assert not directory.close()


def requests(count: int) -> dict[str, Callable[[Peer], object]]:
    """The requests of ``large_requests`` that name topics, and what makes, changes and fills them."""
    batch, many = plain_batch(), min(count, PLACES)
    wide = max(2, count // 10)
    appending = [{"topic": topic(number), "partition": 0, "size": len(batch)} for number in range(many)]

    def ask(header: dict[str, Any], payload: bytes = b"") -> Callable[[Peer], object]:
        return lambda asking: asking.ask(header, payload)

    def answered(header: dict[str, Any]) -> Callable[[Peer], object]:
        return lambda asking: asking.answer(encode_frame({"id": 1, "v": 1} | header))

    places = Places({topic(number): (b"", 1) for number in range(many)})
    return {
        "topics, described": described,
        "create": ask({"api": "create_topic", "topic": "one-more", "partitions": 1}),
        "create, ten times": lambda asking: [
            asking.ask({"api": "create_topic", "topic": f"more-{number}", "partitions": 3}) for number in range(10)
        ],
        "create, many partitions": ask({"api": "create_topic", "topic": "wide", "partitions": wide}),
        "alter": ask({"api": "alter_topic", "topic": topic(0), "config": {"retention.ms": 10**10}}),
        "alter, many partitions": ask({"api": "alter_topic", "topic": "wide", "config": {"retention.ms": 10**10}}),
        "alter, more partitions": ask({"api": "alter_topic", "topic": "wide", "partitions": wide * 3 // 2}),
        "delete": ask({"api": "delete_topic", "topic": "one-more"}),
        "delete, many partitions": ask({"api": "delete_topic", "topic": "wide"}),
        "append": ask({"api": "append", "partitions": appending, "ack": "os"}, batch * many),
        "append to the disk": ask({"api": "append", "partitions": appending, "ack": "disk"}, batch * many),
        **{title: answered(header) for title, header in native_requests(places, many)},
        "nothing, for four seconds": lambda _: time.sleep(4),
    }


def described(asking: Peer) -> None:
    """Every topic with its configuration, in pages."""
    for number in range(0, 10_000, 450):
        asking.ask({"api": "topics", "after": topic(number), "limit": 10_000, "config": True})


@pytest.mark.timeout(3600)
@judges_turns
def test_ten_thousand_topics_delay_no_request(tmp_path: Path) -> None:
    """SEGLOG_SOAK_TOPICS says how many."""
    path, count = tmp_path / "data", int(os.environ.get("SEGLOG_SOAK_TOPICS") or 10_000)
    build(path, count)
    options = [option for key, value in SETTINGS.items() for option in ("--set", f"{key}={value}")]
    options += ["--set", "auto.create.topics.enable=false"]
    with daemon(path, *options) as running:
        references = [reference_seconds()]
        with closing(Peer(running.port)) as asking:

            def busy_seconds() -> float:
                return float(asking.ask({"api": "metrics"})[0]["metrics"]["loop_busy_seconds"])

            longest = busy_seconds(), "the start"
            for kind, ask in requests(count).items():
                began = time.monotonic()
                ask(asking)
                took = time.monotonic() - began
                references.append(reference_seconds())
                longest = max(longest, (busy_seconds(), kind))
                print(f"  {kind}: {took:.3f} s, longest stretch so far {longest[0] * 1000:.1f} ms of processor time")
        logged = running.log_text()
        for bug in ("Traceback", "request_crashed", "connection_crashed", "task_failed"):
            assert bug not in logged, logged[logged.index(bug) - 500 :][:3000]
        assert running.stop() == 0
        judge_turn(*longest, references)
