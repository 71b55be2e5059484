"""Directories that change hands between seglog and real Kafkas: by ``seglogd export-kafka``, and as they are.

Records, look-ups by time, committed offsets and configurations are asked of both through the same protocol, and are
equal; new idempotent producers lose nothing; Kafka's own ``dump-log`` has no complaint. SEGLOG_EXPORT_ROUNDS=40 writes
more.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, TopicPartition

from seglog_broker.config.topic_config import SEGMENT_BYTES_MIN_KAFKA, TOPIC_KEYS
from seglog_broker.config.topic_overrides import KEPT_FOR_EVER
from seglog_broker.config.values import Double, Whole
from seglog_protocol.compression import Codec
from tests.interop import make_kafka_metadata
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
from tests.interop.kafka_security_cases import make_users
from tests.interop.kafka_settings import daemon_settings
from tests.interop.kafka_tools import complaints
from tests.interop.kafka_wire import Plain, Wire
from tests.interop.make_kafka_metadata import (
    ACLS,
    AUTHORIZER,
    GONE,
    QUOTAS,
    Acl,
    Entity,
    acl_filter,
    alter,
    alter_quotas,
    create,
    create_acls,
    delete,
    delete_acl,
    settings,
)
from tests.interop.peer import KAFKA_VERSION, Kafka, kafka_script
from tests.processes import clean_environment, daemon, kafka_daemon, seglog_json, wait_until
from tests.soundness import assert_left_sound
from tests.unit.clients.mirror.sides import contents

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
_FEW: Final = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")
_QUIET: Final = ("log.cleaner.enable=false", "log.retention.check.interval.ms=86400000")
"""No retention nor compaction: what is compared would depend on when it is asked."""


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
    with kafka.running(*_QUIET, *more, killed=killed), Wire(kafka.port) as wire:
        yield wire


def voter(kafka: Kafka) -> str:
    """The setting that names this Kafka as the only voter of its quorum."""
    return f"controller.quorum.voters=1@127.0.0.1:{kafka.port + 1}"


def new_kafka(folder: Path) -> Kafka:
    kafka = Kafka(kafka_script(), folder)
    kafka.data.mkdir()
    return kafka


def seglog_has(directory: Path, *, killed: bool) -> dict[str, Any]:
    """Fill a new directory, with compaction and a recovery; what it has when it is stopped, or killed."""
    listener = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")
    with daemon(directory, *listener, "--set", "log.cleaner.backoff.ms=100") as running:
        with Wire(running.kafka_port) as wire:
            create(wire, {name: config | _KEPT for name, config in TOPICS.items()})
            write(wire, "first")
            lose_nothing(wire, "before")
        checkpoint = directory / "cleaner-offset-checkpoint"
        wait_until(lambda: checkpoint.exists() and "compacted 0" in checkpoint.read_text(), "a compaction")
        running.kill()
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


def files_of(directory: Path, pattern: str = "[!_]*-*/*") -> list[Path]:
    """What ``dump-log`` is to read of a log directory; the values of internal topics break its lines."""
    kinds = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    return sorted(path for path in directory.glob(pattern) if path.suffix in kinds)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_kafka_serves_an_export_and_seglog_takes_it_back(tmp_path: Path, *, killed: bool) -> None:
    ours = seglog_has(tmp_path / "data", killed=killed)
    kafka = new_kafka(tmp_path / "kafka")
    told = export(tmp_path / "data", kafka.directory)
    assert "changed: topic small: segment.bytes is 1048576 instead of 6000" in told
    if not killed:
        assert complaints(files_of(kafka.directory)) == []
    with kafka_on(kafka, voter(kafka), killed=killed) as wire:
        assert_same(seen(wire, TIMES), ours)
        for name, config in TOPICS.items():
            expected = _KEPT | config | ({"segment.bytes": "1048576"} if "segment.bytes" in config else {})
            assert settings(wire, name) == expected | ({"min.insync.replicas": "1"} if name == "replicated" else {})
        lose_nothing(wire, "with Kafka")
        write(wire, "Kafka")
        theirs = seen(wire, TIMES)
    with kafka_daemon(kafka.directory, "log.cleaner.enable=false") as running:
        with Wire(running.kafka_port) as wire:
            assert_same(theirs, seen(wire, TIMES))
            lose_nothing(wire, "back in seglog")
        assert running.stop() == 0


@contextmanager
def three_nodes(directory: Path, folder: Path) -> Iterator[str]:
    """The cluster that was exported to ``directory``: the address of one node."""
    nodes = {number: new_kafka(folder / f"node-{number}") for number in (1, 2, 3)}
    voters = ",".join(f"{number}@127.0.0.1:{node.port + 1}" for number, node in nodes.items())
    running = []
    for number, node in nodes.items():
        node.directory.symlink_to(directory / f"broker-{number}")
        running.append(node.running(f"node.id={number}", f"controller.quorum.voters={voters}", *_QUIET))
    stacks = [ExitStack() for _ in running]
    with ThreadPoolExecutor(3) as threads:
        # All at once: none serves before two are there, and the last one would wait for another one to stop.
        try:
            list(threads.map(ExitStack.enter_context, stacks, running))
            yield nodes[1].address
        finally:
            list(threads.map(ExitStack.close, stacks))


def everything(address: str) -> dict[str, Any]:
    """Records and committed offsets, as a client has them that goes to the node which each partition is on."""
    found: dict[str, Any] = {f"{topic}-{n}": contents(address, topic, n) for topic in TOPICS for n in (0, 1)}
    with closing(KafkaConsumer(bootstrap_servers=address, group_id=GROUP, enable_auto_commit=False)) as consumer:
        return found | {topic: consumer.committed(TopicPartition(topic, 0)) for topic in TOPICS}


def test_three_brokers_start_with_an_export(tmp_path: Path) -> None:
    seglog_has(tmp_path / "data", killed=False)
    with kafka_daemon(tmp_path / "data", "log.cleaner.enable=false") as running:
        ours = everything(f"127.0.0.1:{running.kafka_port}")
        assert running.stop() == 0
    export(tmp_path / "data", tmp_path / "cluster", "--brokers", "3")
    with three_nodes(tmp_path / "cluster", tmp_path) as address:
        topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).topics
        placed = {tuple(each.isrs) for topic in TOPICS for each in topics[topic].partitions.values()}
        assert placed == {(1,), (2,), (3,)}
        assert everything(address) == ours


def test_an_open_transaction_is_aborted_by_kafka_after_an_export(tmp_path: Path) -> None:
    """As in a Kafka that is started again: its coordinator has the transaction, and ends it when its time is over."""
    first = new_kafka(tmp_path / "first")
    with kafka_on(first, _FEW[0], "transaction.state.log.num.partitions=3") as wire:
        create(wire, {"ledger": _KEPT})
        transaction(wire, "done", "committed", committed=True)
        begin_transaction(wire, "open", "never ended", timeout_ms=30_000)  # seglog finds it open after a slow stop, too
    with kafka_daemon(first.directory) as running:
        with Wire(running.kafka_port) as wire:
            _, end, stable, _ = fetched(wire, "ledger", 0)
            assert stable < end
        assert running.stop() == 0
    second = new_kafka(tmp_path / "second")
    export(first.directory, second.directory)
    with kafka_on(second, voter(second), "transaction.abort.timed.out.transaction.cleanup.interval.ms=500") as wire:
        wait_until(lambda: fetched(wire, "ledger", 0)[1] == fetched(wire, "ledger", 0)[2], "the end of a transaction")
        records, _, _, aborted = fetched(wire, "ledger", 0, isolation=1)
        assert len(aborted) == 1
        assert b"never ended 0".hex() in records
        transaction(wire, "open", "the next of the same producer", committed=True)
    with kafka_daemon(second.directory) as running, Wire(running.kafka_port) as wire:
        assert fetched(wire, "ledger", 0, isolation=1)[3] == aborted


# --- Accounts and settings of an export -------------------------------------------------------------------------------

_BROKER, _GROUP = 4, 32
"""Kinds of resources, as clients number them."""

_DYNAMIC_BROKER, _ALL_BROKERS, _STATIC_BROKER, _OF_GROUP = 2, 3, 4, 8
"""Where a value comes from, as DescribeConfigs says."""

FILE: Final = {"log.retention.hours": "5", "num.partitions": "3", "log.segment.bytes": "64MiB"}
OF_BROKER: Final = {"log.flush.interval.ms": "12345"}
AT_RUN_TIME: Final = {
    "": {"log.retention.bytes": "77777777", "log.cleaner.min.cleanable.ratio": "0.25"},
    "1": {**OF_BROKER, "log.retention.check.interval.ms": "300001"},
}
OF_GROUPS: Final = {
    "readers": {"consumer.session.timeout.ms": "50000"},
    "grüße": {"consumer.heartbeat.interval.ms": "5001"},
}


def at_edges(*, most: bool) -> dict[str, str]:
    """Of every number that a topic can set, the least value or the largest."""
    found = {}
    for name, key in TOPIC_KEYS.items():
        if isinstance(key.kind, Double):
            found[name] = str(float(most))
        elif isinstance(key.kind, Whole):
            largest = (1 << (key.kind.bits - 1)) - 1 if key.kind.maximum is None else key.kind.maximum
            least = -largest - 1 if key.kind.minimum is None else key.kind.minimum
            found[name] = str(largest if most else least)
    return found


EDGES: Final = {
    "least": at_edges(most=False) | {"min.compaction.lag.ms": "0"},
    "most": at_edges(most=True),
    "words": {
        "cleanup.policy": "compact,delete",
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "leader.replication.throttled.replicas": "*",
        "follower.replication.throttled.replicas": "0:1,1:1",
        "unclean.leader.election.enable": "true",
        "retention.ms": "-1",
    },
}


def described(wire: Wire, kind: int, name: str, *sources: int) -> dict[str, str]:
    """The settings of a resource that come from one of ``sources``."""
    asked = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
    answer = ask(wire, "DescribeConfigs", asked, 4, "results", 0, "error_code")
    return {item["name"]: item["value"] for item in answer["results"][0]["configs"] if item["config_source"] in sources}


def accounts(wire: Wire) -> list[Any]:
    """Who can log in, how, and by how many iterations."""
    return sorted(
        (each["user"], sorted((info["mechanism"], info["iterations"]) for info in each["credential_infos"]))
        for each in ask(wire, "DescribeUserScramCredentials", {"users": None}, 0, "error_code")["results"]
    )


@contextmanager
def kafka_of_export(kafka: Kafka) -> Iterator[Wire]:
    """A Kafka with the ``server.properties`` of an export, but for its ports."""
    text = (kafka.directory / "server.properties").read_text(encoding="iso-8859-1")
    assert "node.id=1\n" in text
    assert f"log.dirs={kafka.directory}\n" in text
    mine = text.replace("localhost:9092", kafka.address).replace("localhost:9093", f"127.0.0.1:{kafka.port + 1}")
    lines = [line for line in mine.splitlines() if not line.startswith("#")]
    with kafka.running(*lines), Wire(kafka.port) as wire:
        yield wire


def test_a_kafka_has_the_accounts_and_all_settings_of_an_export(tmp_path: Path) -> None:
    data = tmp_path / "data"
    file = tmp_path / "broker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in FILE.items()) + "seglog.handles.max=99\n")
    listening = daemon_settings(("PLAINTEXT", "SASL_PLAINTEXT"))
    with daemon(data, "--config", str(file), *listening) as running:
        make_users(running.kafka_port)
        with Wire(running.kafka_port) as wire:
            create(wire, EDGES)
            for broker, changes in AT_RUN_TIME.items():
                alter(wire, _BROKER, broker, *((key, 0, value) for key, value in changes.items()))
            for group, changes in OF_GROUPS.items():
                alter(wire, _GROUP, group, *((key, 0, value) for key, value in changes.items()))
            produce(wire, "words", batch_of("kept", 5))
            commit(wire, {"words": 3, "most": 0})
            ours, users = seen(wire), accounts(wire)
        assert running.stop() == 0
    kafka = new_kafka(tmp_path / "kafka")
    told = export(data, kafka.directory, "--config", str(file))
    assert f"changed: topic least: segment.bytes is {SEGMENT_BYTES_MIN_KAFKA} instead of 1024, the least" in told
    assert "changed: topic most: min.insync.replicas is 1 instead of 2147483647" in told
    assert "changed: broker 1: log.retention.check.interval.ms=300001 is left out, Kafka sets it in its file" in told
    assert "changed: accounts go along, but the listeners in server.properties ask for none" in told
    with kafka_of_export(kafka) as wire:
        assert seen(wire) == ours
        expected = {
            "least": EDGES["least"] | {"segment.bytes": str(SEGMENT_BYTES_MIN_KAFKA)},
            "most": EDGES["most"] | {"min.insync.replicas": "1"},
            "words": EDGES["words"],
        }
        for of_topic in expected.values() if KAFKA_VERSION == "4.3.1" else ():  # which does not know the keys
            for key in ("max.decompressed.message.bytes", "remote.copy.lag.bytes", "remote.copy.lag.ms"):
                of_topic.pop(key, None)
        assert {name: settings(wire, name) for name in EDGES} == expected
        # Kafka itself sets min.insync.replicas for all brokers when it starts with eligible leader replicas.
        assert described(wire, _BROKER, "", _ALL_BROKERS) == AT_RUN_TIME[""] | {"min.insync.replicas": "1"}
        assert described(wire, _BROKER, "1", _DYNAMIC_BROKER) == OF_BROKER
        assert {name: described(wire, _GROUP, name, _OF_GROUP) for name in OF_GROUPS} == OF_GROUPS
        of_file = described(wire, _BROKER, "1", _STATIC_BROKER)
        assert of_file["log.retention.ms"] == "18000000"
        assert of_file["num.partitions"] == "3"
        assert of_file["log.segment.bytes"] == str(64 << 20)
        assert accounts(wire) == users


# --- Permissions and quotas -------------------------------------------------------------------------------------------

_ADDED: Final[Acl] = (2, 4, "added-", "User:late", "127.0.0.1", 5, 3)
_LATE: Final[Entity] = (("user", "late"),)
_EVERYBODY: Final = "super.users=User:ANONYMOUS"


def acls_of(wire: Wire) -> list[Acl]:
    """The ACLs that are described, sorted."""
    resources = ask(wire, "DescribeAcls", acl_filter(), 3, "error_code")["resources"]
    return sorted(
        (each["resource_type"], each["pattern_type"], each["resource_name"], *found.values())
        for each in resources
        for found in each["acls"]
    )


def quotas_of(wire: Wire) -> dict[Entity, dict[str, float]]:
    """The quotas that are described."""
    entries = ask(wire, "DescribeClientQuotas", {"components": [], "strict": False}, 1, "error_code")["entries"]
    return {
        tuple(sorted((each["entity_type"], each["entity_name"]) for each in entry["entity"])): {
            each["key"]: each["value"] for each in entry["values"]
        }
        for entry in entries
    }


def await_access(wire: Wire, acls: Iterable[Acl], quotas: Mapping[Entity, Mapping[str, float]]) -> None:
    """Wait until a Kafka, which applies its metadata log behind its answers, describes these."""
    wait_until(lambda: acls_of(wire) == sorted(acls) and quotas_of(wire) == quotas, "permissions and quotas")


def test_permissions_and_quotas_go_to_seglog_and_back_and_are_the_same(tmp_path: Path) -> None:
    """As they are adopted, in an export, adopted again from it, and changed by a Kafka in the same directory."""
    first, second = new_kafka(tmp_path / "first"), new_kafka(tmp_path / "second")
    with kafka_on(first, *AUTHORIZER) as wire:
        create_acls(wire, ACLS)
        alter_quotas(wire, QUOTAS)
        await_access(wire, ACLS, QUOTAS)
    quotas = QUOTAS | {_LATE: {"producer_byte_rate": 10.0, "consumer_byte_rate": 8.0}}
    with kafka_daemon(first.directory, _EVERYBODY) as running:
        with Wire(running.kafka_port) as wire:
            assert (acls_of(wire), quotas_of(wire)) == (sorted(ACLS), QUOTAS)
            delete_acl(wire, ACLS[0])
            create_acls(wire, [_ADDED])
            alter_quotas(wire, {_LATE: quotas[_LATE]})
        assert running.stop() == 0
    told = export(first.directory, second.directory)
    assert f"{len(ACLS)} permissions, " in told
    assert "changed: permissions go along, but are not in force until server.properties has authorizer.class.n" in told
    acls = [*ACLS[1:], _ADDED]
    for changed in (acls, [*ACLS[2:], _ADDED, GONE]):
        with kafka_on(second, voter(second), *AUTHORIZER) as wire:
            await_access(wire, acls, quotas)
            if changed != acls:  # the first time it is adopted from what Kafka made of the export
                delete_acl(wire, ACLS[1])
                create_acls(wire, [GONE])
                alter_quotas(wire, {_LATE: {"producer_byte_rate": None, "consumer_byte_rate": 9.0}})
                quotas = quotas | {_LATE: {"consumer_byte_rate": 9.0}}
                await_access(wire, changed, quotas)
        with kafka_daemon(second.directory, _EVERYBODY) as running:
            with Wire(running.kafka_port) as wire:
                assert (acls_of(wire), quotas_of(wire)) == (sorted(changed), quotas)
            assert running.stop() == 0
        acls = changed


# --- As it is ---------------------------------------------------------------------------------------------------------

HANDED: Final = {
    name: config | _KEPT for name, config in make_kafka_metadata.TOPICS.items() if name not in ("again", "gone")
}


def change(wire: Wire, who: str, turn: int) -> None:
    """Append to each topic, and commit."""
    for topic in (*HANDED, *CODECS):
        codec = Codec[topic.removeprefix("codec-").upper()] if topic in CODECS else Codec.NONE
        produce(wire, topic, batch_of(f"{who} {turn}", 6, codec))
    commit(wire, dict.fromkeys((*HANDED, "ledger"), turn + 1))
    for number, committed in enumerate((True, False, True)):
        transaction(wire, f"{who}-{number}", f"transaction {turn} of {who}", committed=committed)


def test_a_directory_goes_to_seglog_and_back_twice_and_stays_equal(tmp_path: Path) -> None:
    """Kafka's metadata log stays in it, so nothing is exported; the second time Kafka is killed."""
    kafka = new_kafka(tmp_path / "kafka")
    topics = HANDED | dict.fromkeys((*CODECS, "ledger", "gone"), _KEPT)
    with kafka_on(kafka, *_FEW) as wire:
        create(wire, topics)
        change(wire, "kafka", 0)
        theirs = seen(wire)
        configs = {name: settings(wire, name) for name in topics}
    assert_left_sound(kafka.directory)
    assert len(theirs["ledger-0"]["committed records"][-1]) == 1, "there is an aborted transaction"
    for turn in (1, 2):
        with kafka_daemon(kafka.directory) as running:
            with Wire(running.kafka_port) as wire:
                assert seen(wire) == theirs
                for name, config in configs.items():
                    ours = settings(wire, name)
                    expected = {key.removeprefix("internal."): value for key, value in config.items()}
                    assert ours == KEPT_FOR_EVER | expected, name
                assert seglog_json(running.address, "ping")["problems"] == []
                change(wire, "seglog", turn)
                mine = seen(wire)
            assert running.stop() == 0
        if turn == 2:
            return
        ledgers = [path for path in files_of(kafka.directory, "ledger-*/*") if path.suffix != ".txnindex"]
        assert complaints(ledgers) == []
        with kafka_on(kafka, *_FEW, killed=True) as wire:
            assert seen(wire) == mine
            assert {name: settings(wire, name) for name in topics} == configs
            change(wire, "kafka", turn)
            create(wire, {"late": _KEPT})
            produce(wire, "late", batch_of("late", 6))
            delete(wire, "gone")
            topics = {name: config for name, config in topics.items() if name != "gone"} | {"late": {}}
            alter(wire, 2, "changed", ("retention.ms", 0, "777777777777"), ("segment.ms", 1, None))
            alter(wire, 2, "plain", ("max.message.bytes", 0, "77777"))
            theirs = seen(wire)
            configs = {name: settings(wire, name) for name in topics}
        assert_left_sound(kafka.directory)
