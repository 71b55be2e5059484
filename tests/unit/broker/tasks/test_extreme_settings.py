"""Every task of the broker, with each number of a topic or the broker at its least, at 0, at 1, and at its largest."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config.broker_config import BROKER_KEYS
from seglog_broker.config.keys import Effect, Key
from seglog_broker.config.topic_config import TOPIC_KEYS
from seglog_broker.config.values import LONG_MAX, Whole
from seglog_broker.storage.io.clock import SystemClock
from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import DiskFullError, InvalidConfigError, PolicyViolationError, SeglogError
from seglog_protocol.messages.headers import pack_reply
from tests.appends import append_batch
from tests.logs import read_around
from tests.unit.broker.tasks.living_broker import LoopClock, TimedDisk, living, with_topic

OFTEN: Final = tuple(
    f"{name}=50"
    for name in (
        "log.cleaner.backoff.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.retention.check.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
)
SMALL: Final = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": 1024,
    "segment.ms": 100,
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 100,
    "file.delete.delay.ms": 50,
}
REFUSED: Final = {
    ("seglog.disk.free.hard.bytes", LONG_MAX): DiskFullError,
    ("seglog.disk.ballast.bytes", LONG_MAX): DiskFullError,
    ("seglog.partitions.max", 1): PolicyViolationError,
    ("log.cleaner.threads", 2**31 - 1): InvalidConfigError,
    ("group.share.max.share.sessions", 1): InvalidConfigError,
    ("group.share.session.timeout.ms", 1): InvalidConfigError,
    ("group.share.max.session.timeout.ms", 1): InvalidConfigError,
    ("group.share.heartbeat.interval.ms", 2**31 - 1): InvalidConfigError,
    ("group.share.min.heartbeat.interval.ms", 2**31 - 1): InvalidConfigError,
}
"""What a user is told about settings with which nothing could be done."""


def extremes(keys: Mapping[str, Key]) -> Iterator[Any]:
    """Names of keys with values. ``make test`` has those of 64 bits, which sums with a clock can overflow."""
    for key in keys.values():
        if isinstance(key.kind, Whole) and key.effect is Effect.NOW:
            largest = 2 ** (key.kind.bits - 1) - 1 if key.kind.maximum is None else key.kind.maximum
            least = -largest - 1 if key.kind.minimum is None else key.kind.minimum
            marks = () if key.kind.bits == 64 else pytest.mark.soak
            for value in sorted({least, 0, 1, largest}):
                if value >= least:
                    yield pytest.param(key.name, value, marks=marks)


def with_bounds(name: str, value: int) -> Iterator[str]:
    """A key with a value; a key that bounds another moves it, and what bounds a key leaves room for it."""
    yield f"{name}={value}"
    plain = name.removeprefix("group.share.").removeprefix("min.").removeprefix("max.")
    for bound in ("min.", "", "max."):
        key = BROKER_KEYS.get(f"group.share.{bound}{plain}")
        if key is not None and key.name != name and isinstance(key.kind, Whole):
            largest = key.kind.maximum or 2 ** (key.kind.bits - 1) - 1
            moved = (max if name.startswith("group.share.min.") else min)(key.default, value)
            yield f"{key.name}={({'min.': key.kind.minimum, 'max.': largest}).get(bound, moved)}"


def put(broker: Broker, topic: str, number: int) -> SeglogError | None:
    """A record that replaces the one before, and a tombstone, in a batch; four of them fill a segment."""
    now, filling = broker.clock.now_ms(), (("filling", b"." * 90),)
    encoded = encode_batch([(now, b"k", b"", filling), (now, b"gone %d" % number, None, filling)])
    return append_batch(broker, encoded, topic).result.error


async def walk(clock: LoopClock, topics: Mapping[str, Mapping[str, Any]], *flags: str) -> None:
    """Let every task run over topics that get records, before and after a start; explain and measure them."""
    disk = TimedDisk(clock)
    for has_topics in (False, True):
        async with living(disk, clock, *OFTEN, *flags) as broker, trio.open_nursery() as nursery:
            for task in (broker.groups.run, broker.transactions.run):
                nursery.start_soon(task)
            for name, config in topics.items():
                if not has_topics:
                    await with_topic(broker, name, **config)
            for first in (0, 6):
                for name in topics:
                    sent = (put(broker, name, 12 * has_topics + number) for number in range(first, first + 6))
                    refusals = [error for error in sent if error is not None]
                    assert not refusals or name.startswith("max.message.bytes"), refusals
                await trio.sleep(0.11)
            for name in topics if has_topics else ():
                reply, payload = await broker.explain_segments(messages.ExplainSegmentsRequest(name, 0))
                pack_reply(1, reply)
                messages.decode_segments(payload)
            for family in broker.monitoring.slices():
                list(family.samples)
            assert [problem for part in broker.partitions.in_parts() for one in part for problem in one.problems] == []
            if has_topics:
                check_tombstones(broker)
            nursery.cancel_scope.cancel()


def check_tombstones(broker: Broker) -> None:
    """Topics are compacted whatever ``delete.retention.ms`` is, and at its largest no tombstone goes."""
    for value in (0, LONG_MAX):
        topic = f"delete.retention.ms_{value}"
        if topic in broker.directory.registry.topics:
            records = list(read_around(broker.partitions[topic, 0].log))
            assert sum(record.value is not None for record in records) < 12, topic
            assert (sum(record.value is None for record in records) == 24) is (value == LONG_MAX), topic


@pytest.mark.parametrize("bits", [64, pytest.param(32, marks=pytest.mark.soak)])
async def test_topics(bits: int) -> None:
    cases = [case.values for case in extremes(TOPIC_KEYS) if bool(case.marks) is (bits == 32)]
    topics = {f"{name}_{value}".replace("_-", "_minus"): {**SMALL, name: value} for name, value in cases}
    with capture_logs() as logged:
        await walk(LoopClock(), topics)
    assert [entry for entry in logged if entry["log_level"] in ("error", "critical")] == []


@pytest.mark.parametrize(("name", "value"), list(extremes(BROKER_KEYS)))
@pytest.mark.soak
async def test_a_broker(name: str, value: int) -> None:
    with capture_logs() as logged:
        try:
            await walk(LoopClock(), {"t": SMALL, "u": SMALL}, *with_bounds(name, value))
        except* REFUSED.get((name, value), ()):
            pass
    told = {entry["event"] for entry in logged if entry["log_level"] in ("error", "critical")}
    assert told <= {"disk_full"}, logged


def test_the_clock_stands_at_the_end_of_what_python_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_ns() -> int:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")

    monkeypatch.setattr(time, "time_ns", time_ns)
    assert SystemClock().now_ms() == 9_223_372_036_854
