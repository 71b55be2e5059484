"""A start with many groups: until other topics answer, until all groups do, and the memory that they take.

The groups commit through Kafka's listener, as their consumers would; a tenth of them has a member. The daemon is
killed with SIGKILL and started again: once with one commit for each group and partition, which is what compaction
leaves, and once more when each was committed ten times.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.batches import batch_of
from benchmarks.group_wire import TOPIC, Member, Replies, commit_frame, prepare
from benchmarks.harness import MIB, Bench, Benchmark, BenchmarkError, Row
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.raw_client import Connection, append_frame, connect, encode, open_socket, time_frame
from benchmarks.talks import Repeated, converse
from seglog_broker.coordinators.topic import partition_of
from seglog_protocol.errors import CoordinatorLoadingError
from seglog_protocol.messages import CommittedOffsetsRequest

PARTITIONS: Final = 10
"""Of the topic: how many offsets each group commits."""

COMMITTED_TIMES: Final = 10
COMMITTERS: Final = 64
"""Connections over which they are committed."""

WITH_MEMBER: Final = 10
"""Every tenth group has a member."""

OTHER: Final = "bench-other"
_OFFSETS_PARTITIONS: Final = 50
_PAUSE_SECONDS: Final = 0.005


class Started(NamedTuple):
    """What one start took. Seconds count from starting the process."""

    ready: float
    other_answers: float
    groups_answer: float
    other_slowest: float
    """The slowest answer about the other topic while groups were loaded."""
    cpu: float
    """Processor seconds of the process until all groups answered."""
    resident: int
    resident_before: int
    """Before it was killed, in bytes."""


def _run(bench: Bench) -> Iterator[Row]:
    count = bench.pick(10_000, 200)
    groups = [f"bench-{number}" for number in range(count)]
    with daemon_with_door(bench, "--set", "group.initial.rebalance.delay.ms=0") as opened:
        with connect(opened.running.port) as native:
            native.create_topic(TOPIC, PARTITIONS)
            native.create_topic(OTHER)
            batch, _ = batch_of(16 * 1024)
            for number in range(PARTITIONS):  # a commit beyond the end of a log would be corrected at the start
                native.ask_frame(append_frame(TOPIC, [batch], "disk", number))
        prepare(opened.port, groups[:1])
        empty = [_start_again(opened, groups[:1], 1) for _ in range(bench.rounds)]
        with open_socket(opened.port) as sock:
            members = _members(Replies(sock), groups)
        yield _commit(opened, groups, members, 1)
        for times in (1, COMMITTED_TIMES):
            if times > 1:
                yield _commit(opened, groups, members, times - 1)
            starts = [_start_again(opened, groups, PARTITIONS) for _ in range(bench.rounds)]
            yield from _rows(f"{count * PARTITIONS * times:,} commits", starts, empty)


def _rows(name: str, starts: Sequence[Started], empty: Sequence[Started]) -> Iterator[Row]:
    beside = "one group"
    columns: Mapping[str, tuple[str, float]] = {
        "ready": ("s", 1),
        "other_answers": ("s", 1),
        "groups_answer": ("s", 1),
        "other_slowest": ("ms", 1e3),
        "cpu": ("s", 1),
        "resident": ("MiB", 1 / MIB),
        "resident_before": ("MiB", 1 / MIB),
    }
    titles = (
        "it serves",
        "another topic answers",
        "all groups answer",
        "slowest answer about another topic",
        "processor time until all groups answer",
        "memory then",
        "memory before the kill",
    )
    for index, ((unit, factor), title) in enumerate(zip(columns.values(), titles, strict=True)):
        ours, others = ([float(each[index]) * factor for each in side] for side in (starts, empty))
        yield Row(f"{name}: {title}", unit, ours, others, beside)


def _members(replies: Replies, groups: Sequence[str]) -> dict[str, Member]:
    """A member in every tenth group."""
    members = {}
    for group in groups[::WITH_MEMBER]:
        member = members[group] = Member(group, replies)
        member.join()
        while not all([member.take(reply) for reply in replies.receive()] or [False]):
            pass
    return members


def _commit(opened: Door, groups: Sequence[str], members: Mapping[str, Member], times: int) -> Row:
    """Have every group commit all partitions so many times; how fast that went."""
    frames: list[list[bytes]] = [[] for _ in range(COMMITTERS)]
    for offset in range(times):
        for number, group in enumerate(groups):
            member = members.get(group)
            who = ("", -1) if member is None else (member.member_id, member.generation)
            frames[number % COMMITTERS].append(commit_frame(group, offset, PARTITIONS, *who))
    _, seconds = converse(opened.port, [Repeated(iter(own)) for own in frames], float("inf"))
    rate = len(groups) * times * PARTITIONS / seconds
    return Row(f"commits of {PARTITIONS} offsets, {COMMITTERS} committers", "offsets/s", [rate])


def _start_again(opened: Door, groups: Sequence[str], offsets: int) -> Started:
    running = opened.running
    before = resident_bytes(running.pid)
    running.kill()
    began = time.perf_counter()
    running.start()
    with connect(running.port) as native:
        native.ask_frame(time_frame(OTHER, None))
        other = time.perf_counter() - began
        slowest = 0.0
        for group in _one_for_each_partition(groups):
            while not _answers(native, group, offsets):
                asked = time.perf_counter()
                native.ask_frame(time_frame(OTHER, None))
                slowest = max(slowest, time.perf_counter() - asked)
                time.sleep(_PAUSE_SECONDS)
        ended = time.perf_counter() - began
    cpu, resident = cpu_seconds(running.pid), resident_bytes(running.pid)
    return Started(running.ready_seconds, other, ended, slowest, cpu, resident, before)


def _one_for_each_partition(groups: Sequence[str]) -> list[str]:
    """Groups whose records are in different partitions of ``__consumer_offsets``; partitions are loaded in order."""
    by_partition = {partition_of(group, _OFFSETS_PARTITIONS): group for group in groups}
    return [by_partition[number] for number in sorted(by_partition)]


def _answers(native: Connection, group: str, offsets: int) -> bool:
    """Whether a group is loaded. BenchmarkError when it lacks offsets."""
    try:
        header, _ = native.ask_frame(encode(CommittedOffsetsRequest(group)))
    except BenchmarkError as error:
        if CoordinatorLoadingError.code not in str(error):
            raise
        return False
    if len(header["offsets"]) != offsets:
        raise BenchmarkError(f"group {group} has {len(header['offsets'])} offsets and had {offsets}")
    return True


BENCHMARK: Final = Benchmark(
    "group-loading", "SIGKILL, and started again with 10,000 groups: until they answer, and memory", "", _run, 900
)
