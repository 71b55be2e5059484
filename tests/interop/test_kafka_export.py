"""What ``seglogd export-kafka`` writes, judged by real Kafkas: one node, three, and back.

Records, look-ups by time and committed offsets are asked of both through the same protocol, and are equal; new
idempotent producers lose nothing; Kafka's own ``dump-log`` has no complaint. SEGLOG_EXPORT_ROUNDS=40 writes more.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_protocol.compression import Codec
from seglog_protocol.kafka import Request, Response, messages
from tests.interop.handover import (
    BASE_TIME,
    GROUP,
    ask,
    batch_of,
    begin_transaction,
    commit,
    fetched,
    produce,
    seen,
    transaction,
)
from tests.interop.kafka_wire import Plain, Wire
from tests.interop.make_kafka_metadata import create, settings
from tests.interop.peer import Kafka, kafka_script
from tests.interop.test_dump_log import dump
from tests.processes import clean_environment, daemon, kafka_daemon, wait_until

pytestmark = [pytest.mark.timeout(1800)]

ROUNDS: Final = int(os.environ.get("SEGLOG_EXPORT_ROUNDS") or 6)
TIMES: Final = tuple(range(BASE_TIME - 5, BASE_TIME + 320, 2))
CODECS: Final = tuple(f"codec-{codec.name.lower()}" for codec in Codec)
TOPICS: Final[dict[str, dict[str, str]]] = {
    **{name: {} for name in CODECS},
    "plain": {},
    "small": {"segment.bytes": "6000", "index.interval.bytes": "512"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "6000"},
    "compacted-and-small": {"cleanup.policy": "compact,delete", "segment.bytes": "5000", "segment.index.bytes": "24"},
    "limited": {"max.message.bytes": "2000000", "message.timestamp.after.max.ms": "9223372036854775807"},
    "replicated": {"min.insync.replicas": "2"},
    "flushed": {"flush.messages": "1", "flush.ms": "1000"},
    "a.name_with-all": {"segment.ms": "3600000"},
    "idempotent": {"segment.bytes": "8192"},
    "kept": {"retention.bytes": "-1"},
}
_KEPT: Final = {"retention.ms": "-1"}
_QUIET: Final = ("log.cleaner.enable=false", "log.retention.check.interval.ms=86400000")
"""No retention nor compaction: what is compared would depend on when it is asked."""

_DUMPED_AT_ONCE: Final = 500
"""Files whose names fit on a command line."""


def idempotent(wire: Wire, topic: str, prefix: str, batches: int = 1, partition: int = 0) -> list[int]:
    """Batches of three records of a new idempotent producer; the offsets that it was told."""
    asked: dict[str, Plain] = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    producer = ask(wire, "InitProducerId", asked, 4, "error_code")
    who = {"producer_id": producer["producer_id"], "producer_epoch": producer["producer_epoch"]}
    return [
        produce(wire, topic, batch_of(f"{prefix} {number}", 3, base_sequence=number * 3, **who), partition=partition)
        for number in range(batches)
    ]


def lose_nothing(wire: Wire, who: str) -> None:
    """20 new idempotent producers, each of whose first records is written at the offset that it is told."""
    for number in range(20):
        topic = sorted(TOPICS)[number % len(TOPICS)]
        _, end, _, _ = fetched(wire, topic, 0)
        assert idempotent(wire, topic, f"{who} {number}") == [end]
        records, after, _, _ = fetched(wire, topic, 0)
        assert after == end + 3
        if topic not in CODECS and topic != "stamped":
            assert f"{who} {number} 0".encode().hex() in records


def write(wire: Wire, who: str) -> None:
    """Append to both partitions of every topic, and commit."""
    for number in range(ROUNDS):
        for topic in TOPICS:
            codec = Codec[topic.removeprefix("codec-").upper()] if topic in CODECS else Codec.NONE
            for partition in (0, 1):
                produce(wire, topic, batch_of(f"{who} {number}", 25, codec), partition=partition)
    for partition in (0, 1):
        idempotent(wire, "idempotent", who, ROUNDS, partition)
    commit(wire, {topic: number + 1 for number, topic in enumerate(TOPICS)})


def export(source: Path, to: Path, *arguments: str) -> str:
    """Run the command; what it printed."""
    command = [sys.executable, "-m", "seglog_broker", "export-kafka", str(source), "--to", str(to), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def kafka_on(kafka: Kafka, *more: str, killed: bool = False) -> Iterator[Wire]:
    voter = f"controller.quorum.voters=1@127.0.0.1:{kafka.port + 1}"
    with kafka.running(voter, *_QUIET, *more, killed=killed), Wire(kafka.port) as wire:
        yield wire


def seglog_has(directory: Path, *, killed: bool) -> dict[str, Any]:
    """Fill a new directory, with compaction and a restart; what it has when it is stopped, or killed."""
    listener = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")
    with daemon(directory, *listener, "--set", "log.cleaner.backoff.ms=100") as running:
        with Wire(running.kafka_port) as wire:
            create(wire, {name: config | _KEPT for name, config in TOPICS.items()})
            write(wire, "first")
            lose_nothing(wire, "before")
        checkpoint = directory / "cleaner-offset-checkpoint"
        wait_until(lambda: checkpoint.exists() and "compacted 0" in checkpoint.read_text(), "a compaction")
        assert running.stop() == 0
    with daemon(directory, *listener, "--set", "log.cleaner.enable=false") as running:
        with Wire(running.kafka_port) as wire:
            write(wire, "second")
            found = seen(wire, TIMES)
        if killed:
            running.kill()
        else:
            assert running.stop() == 0
    return found


def assert_same(kafkas: dict[str, Any], ours: dict[str, Any]) -> None:
    """A Kafka and seglog see the same.

    By time Kafka looks only into the first segment whose largest timestamp is late enough. Where compaction has left
    that one without the record it finds none, and seglog the one that is there.
    """
    assert kafkas.keys() == ours.keys()
    for name, found in kafkas.items():
        if not name.startswith("compacted"):
            assert found == ours[name], name
            continue
        assert found["records"] == ours[name]["records"], name
        pairs = zip(found["look-ups"], ours[name]["look-ups"], strict=True)
        assert [(his, mine) for his, mine in pairs if his not in (mine, (-1, -1))] == [], name


def files_of(directory: Path) -> list[Path]:
    """What ``dump-log`` is to read of a log directory; the values of internal topics break its lines."""
    kinds = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    return sorted(path for path in directory.glob("[!_]*-*/*") if path.suffix in kinds)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_kafka_serves_an_export_seglog_takes_it_back_and_exports_it_again(tmp_path: Path, *, killed: bool) -> None:
    script = kafka_script()
    ours = seglog_has(tmp_path / "data", killed=killed)
    kafka = Kafka(script, tmp_path / "kafka")
    kafka.data.mkdir()
    told = export(tmp_path / "data", kafka.directory)
    assert "changed: topic small: segment.bytes is 1048576 instead of 6000" in told
    if not killed:
        files = files_of(kafka.directory)
        for first in range(0, len(files), _DUMPED_AT_ONCE):
            assert dump(script, files[first : first + _DUMPED_AT_ONCE], with_gaps=True).complaints == []
    with kafka_on(kafka, killed=killed) as wire:
        assert_same(seen(wire, TIMES), ours)
        for name, config in TOPICS.items():
            expected = _KEPT | config | ({"segment.bytes": "1048576"} if "segment.bytes" in config else {})
            assert settings(wire, name) == expected | ({"min.insync.replicas": "1"} if name == "replicated" else {})
        lose_nothing(wire, "with Kafka")
        write(wire, "Kafka")
        theirs = seen(wire, TIMES)
    with kafka_daemon(kafka.directory) as running:
        with Wire(running.kafka_port) as wire:
            assert_same(theirs, seen(wire, TIMES))
            lose_nothing(wire, "back in seglog")
            again = seen(wire, TIMES)
        assert running.stop() == 0
    second = Kafka(script, tmp_path / "again")
    second.data.mkdir()
    export(kafka.directory, second.directory)
    with kafka_on(second) as wire:
        assert_same(seen(wire, TIMES), again)
        lose_nothing(wire, "with the second Kafka")


class Routed(Wire):
    """A connection to each node of a cluster: a request goes to the leader, or the coordinator, that it is for."""

    def __init__(self, ports: dict[int, int]) -> None:
        super().__init__(next(iter(ports.values())))
        self._nodes = {node: Wire(port) for node, port in ports.items()}
        self.leaders: dict[tuple[str, int], int] = {}
        self.coordinator = next(iter(ports))

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.__exit__()
        super().__exit__()

    def learn(self) -> dict[tuple[str, int], list[int]]:
        """Ask who leads what; the replicas in sync of each partition."""
        answer = self.ask(messages.MetadataRequest(topics=None), 12)
        assert isinstance(answer, messages.MetadataResponse)
        found = {(topic.name or "", each.partition_index): each for topic in answer.topics for each in topic.partitions}
        self.leaders = {key: each.leader_id for key, each in found.items()}
        told = self.ask(messages.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4)
        assert isinstance(told, messages.FindCoordinatorResponse)
        self.coordinator = told.coordinators[0].node_id
        return {key: each.isr_nodes for key, each in found.items()}

    def ask(self, request: Request, version: int) -> Response | None:
        """From the node that is responsible."""
        key = None
        if isinstance(request, messages.FetchRequest):
            key = request.topics[0].topic, request.topics[0].partitions[0].partition
        elif isinstance(request, messages.ListOffsetsRequest):
            key = request.topics[0].name, request.topics[0].partitions[0].partition_index
        elif isinstance(request, messages.ProduceRequest):
            key = request.topic_data[0].name, request.topic_data[0].partition_data[0].index
        elif isinstance(request, messages.OffsetFetchRequest | messages.OffsetCommitRequest):
            return self._nodes[self.coordinator].ask(request, version)
        return super().ask(request, version) if key is None else self._nodes[self.leaders[key]].ask(request, version)


@contextmanager
def three_nodes(script: Path, directory: Path, folder: Path) -> Iterator[Routed]:
    """The cluster that was exported to ``directory``, each node with a port of its own."""
    nodes = {number: Kafka(script, folder / f"node-{number}") for number in (1, 2, 3)}
    voters = ",".join(f"{number}@127.0.0.1:{node.port + 1}" for number, node in nodes.items())
    running = []
    for number, node in nodes.items():
        node.data.mkdir()
        node.directory.symlink_to(directory / f"broker-{number}")
        running.append(node.running(f"node.id={number}", f"controller.quorum.voters={voters}", *_QUIET))
    stacks = [ExitStack() for _ in running]
    with ThreadPoolExecutor(3) as threads:
        # All at once: none serves before two are there, and the last one would wait for another one to stop.
        try:
            list(threads.map(ExitStack.enter_context, stacks, running))
            with Routed({number: node.port for number, node in nodes.items()}) as wire:
                yield wire
        finally:
            list(threads.map(ExitStack.close, stacks))


def test_three_brokers_start_with_an_export(tmp_path: Path) -> None:
    script = kafka_script()
    ours = seglog_has(tmp_path / "data", killed=False)
    export(tmp_path / "data", tmp_path / "cluster", "--brokers", "3")
    with three_nodes(script, tmp_path / "cluster", tmp_path) as wire:
        assert {tuple(isr) for isr in wire.learn().values()} == {(1,), (2,), (3,)}
        assert_same(seen(wire, TIMES), ours)
        lose_nothing(wire, "with three Kafkas")


def test_an_open_transaction_is_aborted_by_kafka_after_an_export(tmp_path: Path) -> None:
    """As in a Kafka that is started again: its coordinator has the transaction, and ends it when its time is over."""
    script = kafka_script()
    first = Kafka(script, tmp_path / "first")
    first.data.mkdir()
    few = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=3")
    with first.running(*_QUIET, *few), Wire(first.port) as wire:
        create(wire, {"ledger": _KEPT})
        transaction(wire, "done", "committed", committed=True)
        begin_transaction(wire, "open", "never ended", timeout_ms=30_000)  # seglog finds it open after a slow stop, too
    with kafka_daemon(first.directory) as running:
        with Wire(running.kafka_port) as wire:
            _, end, stable, _ = fetched(wire, "ledger", 0)
            assert stable < end
        assert running.stop() == 0
    second = Kafka(script, tmp_path / "second")
    second.data.mkdir()
    export(first.directory, second.directory)
    with kafka_on(second, "transaction.abort.timed.out.transaction.cleanup.interval.ms=500") as wire:
        wait_until(lambda: fetched(wire, "ledger", 0)[1] == fetched(wire, "ledger", 0)[2], "the end of a transaction")
        records, _, _, aborted = fetched(wire, "ledger", 0, isolation=1)
        assert len(aborted) == 1
        assert b"never ended 0".hex() in records
        transaction(wire, "open", "the next of the same producer", committed=True)
    with kafka_daemon(second.directory) as running, Wire(running.kafka_port) as wire:
        assert fetched(wire, "ledger", 0, isolation=1)[3] == aborted
