"""``python -m benchmarks --peers``: cases measured in turns, rows handed out as they come."""

import itertools
import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from benchmarks import group_commits, transactions
from benchmarks.batches import FIRST_TIMESTAMP, batch_of, dated
from benchmarks.harness import MIB, Bench, BenchmarkError, deadline, take_turns
from benchmarks.peers import compaction, firehose, java, librdkafka
from benchmarks.peers.cases import (
    APPENDS,
    COMMIT_GOALS,
    COMPACTION_GOALS,
    FETCHES,
    GROUPS,
    JOB_GOALS,
    NATIVE,
    OURS,
    SEEK_GOALS,
    TRANSACTION_GOALS,
    Ack,
    Goals,
)
from benchmarks.peers.field import Asked, Field, start
from benchmarks.peers.jobs import Pace
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import BARE, KAFKA, RABBITMQ, REDIS, Measure, PeerRow, Results
from benchmarks.peers.sides import Finder, KafkaServer, agree, talked
from benchmarks.queues.common import Queue
from benchmarks.queues.kafka import KafkaQueue
from benchmarks.queues.rabbitmq import RabbitQueue
from benchmarks.queues.redis import RedisQueue
from seglog_protocol.errors import SeglogError

TITLES: Final[Mapping[str, str]] = {
    "small": "appends, one record of 100 bytes a batch, ack os",
    "large": "appends, batches of records of 100 bytes, ack os",
    "disk": "appends, one record of 100 bytes a batch, ack disk",
    "fetch": "fetches of warm data, one at a time",
    "seeks": "offsets looked up by time, one at a time",
    "commits": "commits of one offset, each committer one at a time, on the disk",
    "transactions": "transactions of one record of 100 bytes, each producer one at a time, on the disk",
    "jobs": "jobs of 100 bytes, taken from a queue and acknowledged, each worker one request at a time",
    "compaction": "compaction, one worker, 210 B records, 10 % keys, batches of 16 KiB",
    "firehose": "others at 50 requests/s beside a flood of appends; processor time of the longest turn",
    "kafka": "clients of Kafka's, records of 100 bytes: librdkafka, and the tools that come with Kafka",
}
_READ_BATCH_BYTES: Final = 16 * 1024
_GROUP_SECONDS_MAX: Final = 1200

ResultT = TypeVar("ResultT")


def measure(
    bench: Bench, asked: Asked, groups: Collection[str], results: Results, show: Callable[[str | PeerRow], None]
) -> None:
    """Add rows to ``results``, and ``show`` each, and before the rows of a group its title."""
    with ExitStack() as stack:
        bench.group = "peers"
        field = start(bench, asked, results, stack)
        show("")
        if set(groups) - {"firehose"}:
            _warm_up(bench, field)
        for group in GROUPS:
            if group in groups:
                bench.group = group
                show(f"{group}: {TITLES[group]}")
                try:
                    with deadline(_GROUP_SECONDS_MAX, group):
                        for row in _GROUPS[group](bench, field):
                            results.rows.append(row)
                            show(row)
                except (BenchmarkError, SeglogError, OSError) as error:
                    bench.report(f"could not be measured: {error}")
                    show(f"    ({error})")


def _warm_up(bench: Bench, field: Field) -> None:
    """Java compiles what runs often: without this the first cases would measure that."""
    pace, short = Pace(bench), Pace(bench)
    pace.seconds, short.seconds = bench.pick(5.0, 0.2), bench.pick(0.4, 0.05)
    for kafka in field.kafkas.values():
        for case in (APPENDS[3], APPENDS[1], APPENDS[0]):
            kafka.append(case, pace)
    for case in (APPENDS[3], APPENDS[1], APPENDS[0]):
        for native in field.natives.values():
            native.append(case, short)
        for listener in field.listeners.values():
            listener.append(case, short)


# --- Turns ------------------------------------------------------------------------------------------------------------


def in_turns(bench: Bench, sides: Mapping[str, Callable[[], ResultT]]) -> tuple[dict[str, list[ResultT]], list[str]]:
    """Each side's rounds, and a note for each peer that failed, which has none. An error of seglog's is raised."""
    failed: dict[str, str] = {}

    def once(name: str, side: Callable[[], ResultT]) -> ResultT | None:
        if name in failed:
            return None
        try:
            return side()
        except (BenchmarkError, OSError) as error:
            if name in OURS:
                raise
            failed[name] = f"{name} could not be measured: {error}"
            bench.report(failed[name])
            return None

    rounds = take_turns(bench.rounds, *(partial(once, name, side) for name, side in sides.items()))
    measured = {
        name: [one for one in values if one is not None]
        for name, values in zip(sides, rounds, strict=True)
        if name not in failed
    }
    return measured, list(failed.values())


def _after_sync(side: Callable[[], ResultT]) -> ResultT:
    """Sync the disk before a measurement: writing back what the last server wrote would slow this one down."""
    os.sync()
    return side()


# --- Groups -----------------------------------------------------------------------------------------------------------


def _appends(group: str, bench: Bench, field: Field) -> Iterator[PeerRow]:
    pace, warm = Pace(bench), Pace(bench)
    warm.seconds = bench.pick(0.4, 0.05)
    for case in APPENDS:
        if case.group != group:
            continue
        sides: dict[str, Callable[[], Measure]] = {
            name: partial(side.append, case, pace) for name, side in (*field.natives.items(), *field.speakers())
        }
        for kafka in field.kafkas.values():
            kafka.append(case, warm)
        if field.redis is not None and not case.batch_bytes:
            sides[REDIS] = partial(field.redis.append, case, pace)
        with ExitStack() as stack:
            if field.bare is not None:
                sides[BARE] = stack.enter_context(field.bare.appends(case, pace))
            measured, notes = in_turns(bench, {name: partial(_after_sync, side) for name, side in sides.items()})
        unit = "MB/s" if case.batch_bytes else "appends/s"
        yield PeerRow(group, case.name, unit, measured, case.goals, notes)


def _fetches(bench: Bench, field: Field) -> Iterator[PeerRow]:
    batch, records = _fill(bench, field)
    pace = Pace(bench)
    for case in FETCHES:
        sides: dict[str, Callable[[], Measure]] = {
            name: side.fetches(case, pace, len(batch), records)
            for name, side in (*field.natives.items(), *field.speakers())
        }
        with ExitStack() as stack:
            if field.bare is not None and field.natives:
                segment = next(iter(field.natives.values())).segment()
                sides[BARE] = stack.enter_context(field.bare.fetches(case, pace, segment))
            measured, notes = in_turns(bench, sides)
        yield PeerRow("fetch", case.name, "MB/s", measured, case.goals, notes)


def _seeks(bench: Bench, field: Field) -> Iterator[PeerRow]:
    batch, records = _fill(bench, field)
    count = _read_bytes(bench) // len(batch) * records
    source = random.Random(7)
    times = [FIRST_TIMESTAMP + source.randrange(count * 9 // 10) for _ in range(bench.pick(2000, 100))]
    pace = Pace(bench)
    finders: dict[str, Finder] = {**field.natives, **dict(field.speakers())}
    agree(finders, times)
    sides: dict[str, Callable[[], Measure]] = {
        name: partial(side.seek, times, pace) for name, side in (*field.natives.items(), *field.speakers())
    }
    measured, notes = in_turns(bench, sides)
    yield PeerRow("seeks", "offset by time, depth 1", "seeks/s", measured, SEEK_GOALS, notes)


def _read_bytes(bench: Bench) -> int:
    return bench.pick(512, 16) * MIB


def _fill(bench: Bench, field: Field) -> tuple[bytes, int]:
    """Fill the topics that are read, once; a batch, and the records in it."""
    batch, records = batch_of(_READ_BATCH_BYTES)
    count = _read_bytes(bench) // len(batch)
    fills: dict[int, Callable[[Iterator[bytes]], None]] = {}
    for ours in field.builds:  # both protocols have the same topics
        filler = field.natives[ours.native] if ours.native is not None else None
        fills[ours.opened.pid] = field.listeners[str(ours.listener)].fill if filler is None else filler.fill
    fills |= {kafka.server.pid: kafka.fill for kafka in field.kafkas.values()}
    for pid, fill in fills.items():
        if pid not in field.filled:
            fill(dated(batch, count))
            field.filled.add(pid)
    return batch, records


def _commits(bench: Bench, field: Field) -> Iterator[PeerRow]:
    for ours in field.builds:
        group_commits.prepare_server(ours.opened)
    notes = [group_commits.prepare_kafka(name, kafka.server) for name, kafka in field.kafkas.items()]
    sizes = {f"{count} committer{'s' * (count > 1)}": count for count in group_commits.COMMITTERS}
    yield from _talks(bench, field, field.servers(), "commits", sizes, COMMIT_GOALS, notes)


def _transactions(bench: Bench, field: Field) -> Iterator[PeerRow]:
    for ours in field.builds:
        transactions.prepare_server(ours.opened)
    notes = []
    with field.synced_servers(bench) as servers:
        for name in field.kafkas:
            with connect_kafka(servers[name].port) as connection:
                missing = connection.not_offered(transactions.NEEDED)
            if missing:
                notes.append(f"{name} was not measured: it does not offer {', '.join(missing)}")
                del servers[name]
            else:
                transactions.prepare_server(servers[name])
        sizes = {f"{count} producer{'s' * (count > 1)}": count for count in transactions.PRODUCERS}
        yield from _talks(bench, field, servers, "transactions", sizes, TRANSACTION_GOALS, notes, 1)


def _jobs(bench: Bench, field: Field) -> Iterator[PeerRow]:
    jobs, seconds = bench.pick((300_000, 2), (30_000, 0.2))
    with field.synced_servers(bench) as synced, field.rabbitmq(bench) as rabbit:
        levels: tuple[tuple[Ack, dict[str, KafkaServer], str], ...]
        levels = (("os", field.servers(), "classic"), ("disk", synced, "quorum"))
        for ack, speakers, kind in levels:
            queues: dict[str, Queue] = {name: KafkaQueue(one, field.load, jobs) for name, one in speakers.items()}
            # Java compiles what runs often.
            in_turns(bench, {name: partial(queues[name].work, 16, 100, seconds) for name in field.kafkas})
            if field.redis is not None:
                queues[REDIS] = RedisQueue(field.redis, jobs, ack)
            if rabbit is not None:
                queues[RABBITMQ] = RabbitQueue(rabbit, field.load, jobs // 2, kind)
            for count, at_once in itertools.product((1, 16), (1, 100)):
                case = f"jobs, {count} worker{'s' * (count > 1)}, {at_once} at once, {ack}"
                sides = {name: partial(queue.work, count, at_once, seconds) for name, queue in queues.items()}
                measured, notes = in_turns(bench, sides)
                yield PeerRow("jobs", case, "jobs/s", measured, JOB_GOALS[ack], notes)


def _talks(
    bench: Bench,
    field: Field,
    servers: Mapping[str, KafkaServer],
    talk: str,
    sizes: Mapping[str, int],
    goals: Goals,
    notes: Sequence[str],
    *arguments: int,
) -> Iterator[PeerRow]:
    """A row for each of ``sizes``, the connections by their name."""
    for name in field.kafkas.keys() & servers.keys():  # Java compiles what runs often
        talked(field.load, f"{talk}, kafka", servers[name], 16, bench.pick(5, 0.2), *arguments)
    for size, connections in sizes.items():
        case: tuple[Any, ...] = (connections, bench.pick(2, 0.2), *arguments)
        sides: dict[str, Callable[[], Measure]] = {
            ours.native: partial(talked, field.load, f"{talk}, native", ours.opened.running, *case)
            for ours in field.builds
            if ours.native is not None
        }
        for name, server in servers.items():
            sides[name] = partial(talked, field.load, f"{talk}, kafka", server, *case)
        measured, failures = in_turns(bench, sides)
        yield PeerRow(talk, f"{talk}, {size}, disk", f"{talk}/s", measured, goals, [*notes, *failures])


def _compaction(bench: Bench, field: Field) -> Iterator[PeerRow]:
    kafka = field.kafkas.get(KAFKA)
    with compaction.cleaners(bench, None if kafka is None else kafka.server) as (ours, theirs):
        sides = {NATIVE: ours.clean}
        if theirs is not None:
            sides[KAFKA] = theirs.clean
        measured, notes = in_turns(bench, sides)
    yield PeerRow("compaction", "compaction", "MB/s", measured, COMPACTION_GOALS, notes)


def _clients(bench: Bench, field: Field) -> Iterator[PeerRow]:
    """Clients of Kafka's, which drive all who speak its protocol."""
    python = librdkafka.python_with_librdkafka(bench.peers_python)
    if python is None:
        yield PeerRow("kafka", "librdkafka", "records/s", {}, notes=[librdkafka.ABSENT])
    else:
        steps = partial(librdkafka.measure, bench, python, librdkafka.STEPS)
        yield from _steps(bench, field.servers(), "librdkafka", steps)
        steps = partial(librdkafka.measure, bench, python, librdkafka.TRANSACTIONS)
        with field.synced_servers(bench) as servers:
            yield from _steps(bench, servers, "librdkafka", steps, "transactions/s")
            steps = partial(librdkafka.measure, bench, python, librdkafka.JOBS)
            yield from _steps(bench, servers, "librdkafka", steps, "jobs/s")
    if field.kafka_script is None:
        yield PeerRow("kafka", "Java", "records/s", {}, notes=[java.ABSENT])
    else:
        yield from _steps(bench, field.servers(), "Java", partial(java.measure, bench, field.kafka_script))


def _steps(
    bench: Bench,
    servers: Mapping[str, KafkaServer],
    client: str,
    measured_by: Callable[[KafkaServer], Mapping[str, Measure]],
    unit: str = "records/s",
) -> Iterator[PeerRow]:
    """A row for each step of a client, which goes through all its steps in a turn."""
    sides = {name: partial(measured_by, server) for name, server in servers.items()}
    found, notes = in_turns(bench, {name: partial(_after_sync, side) for name, side in sides.items()})
    for step in dict.fromkeys(step for rounds in found.values() for one in rounds for step in one):
        measured = {name: [one[step] for one in rounds] for name, rounds in found.items()}
        yield PeerRow("kafka", f"{client}, {step}", unit, measured, notes=notes)


_GROUPS: Final[Mapping[str, Callable[[Bench, Field], Iterator[PeerRow]]]] = {
    "small": partial(_appends, "small"),
    "large": partial(_appends, "large"),
    "disk": partial(_appends, "disk"),
    "fetch": _fetches,
    "seeks": _seeks,
    "commits": _commits,
    "transactions": _transactions,
    "jobs": _jobs,
    "compaction": _compaction,
    "firehose": firehose.rows,
    "kafka": _clients,
}
