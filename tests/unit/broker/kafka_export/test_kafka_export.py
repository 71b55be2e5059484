"""A log directory as Kafka gets it, judged by our own loader, which adopts it as it would one of Kafka's.

A real Kafka judges in ``tests/interop/test_kafka_export.py``.
"""

import errno
import uuid
from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.config.topic_overrides import KEPT_FOR_EVER
from seglog_broker.coordinators.share.in_flight import StateBatch
from seglog_broker.coordinators.share.records import Header, PartitionKey, encode_keys, encode_snapshot
from seglog_broker.coordinators.share.runs import ARCHIVED, ARCHIVING
from seglog_broker.kafka_export.cluster import Cluster, make_nodes
from seglog_broker.kafka_export.command import describe_room, write_cluster
from seglog_broker.kafka_export.source import ExportError, read_source
from seglog_broker.storage.directory.accounts import Change, Credential
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.directory.kafka_metadata import KafkaMetadata, read_kafka_metadata
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    Fault,
    ForgetfulFileSystem,
    SimulatedCrash,
)
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.internal_topics import SHARE_GROUPS_TOPIC
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import Record
from tests.logs import append_one, batch, flip_bit, opened_directory, read_all
from tests.soundness import assert_directory_sound
from tests.support import each_case
from tests.unit.broker.storage.steps import create_topic

_DATA, _DESTINATION = "/data", "/kafka/logs"
_CREDENTIAL = Credential("SCRAM-SHA-256", 4096, b"salt of ada!", b"s" * 32, b"t" * 32)


def _config(*flags: str, path: str = _DATA) -> BrokerConfig:
    config, _ = load_config(None, "", {}, [f"log.dir={path}", *flags])
    return config


def _filled(*, is_clean: bool = True) -> ForgetfulFileSystem:
    """A directory of two topics in several segments, with an account and a producer."""
    fs = ForgetfulFileSystem(is_recorded=False)
    fs.load(_content(is_clean=is_clean))
    return fs


@cache
def _content(*, is_clean: bool) -> dict[str, bytes]:
    fs = ForgetfulFileSystem(is_recorded=False)
    directory = opened_directory(fs)
    create_topic(directory, "orders", 3, {"segment.bytes": "1024", "retention.ms": "-1"})
    create_topic(directory, "readings", 1, {"cleanup.policy": "compact", "min.insync.replicas": "2"})
    for number in range(12):
        for (topic, partition), log in directory.logs.items():
            key = b"k%d" % (number % 5) if topic == "readings" else None
            append_one(log, batch(b"%d of %d" % (number, partition) * 20, key=key))
    builder = BatchBuilder(producer_id=77, producer_epoch=0, base_sequence=0)
    builder.append(1_000, None, b"of a producer")
    append_one(directory.logs["orders", 0], builder.build())
    directory.accounts.change([Change("ada", "SCRAM-SHA-256", _CREDENTIAL)])
    for log in directory.logs.values():
        log.flusher.flush()
    if is_clean:
        assert directory.close() == []
    else:
        directory.abandon()
    return fs.snapshot()


def _exported(
    fs: ForgetfulFileSystem, *flags: str, brokers: int = 1, hosts: Sequence[str] = ("localhost",), link: bool = False
) -> Cluster:
    source = read_source(fs, _DATA)
    numbers = iter(range(1, 100))
    nodes = make_nodes(source, _DESTINATION, brokers, hosts, lambda: uuid.UUID(int=next(numbers)))
    cluster = Cluster(source, nodes, _config(*flags))
    write_cluster(fs, cluster, _DESTINATION, 5, link=link)
    return cluster


def _records(directory: LogDirectory) -> dict[tuple[str, int], list[Record]]:
    return {key: read_all(log) for key, log in directory.logs.items()}


def _of_source(fs: ForgetfulFileSystem) -> dict[str, bytes]:
    return {path: data for path, data in fs.snapshot().items() if path.startswith(f"{_DATA}/")}


def _said(fs: ForgetfulFileSystem, path: str = _DESTINATION) -> KafkaMetadata:
    metadata = read_kafka_metadata(fs, path)
    assert metadata.problem is None
    return metadata


@each_case("is_clean", [True, False])
@each_case("link", [True, False])
def test_an_export_has_the_topics_settings_records_and_accounts_and_changes_nothing(
    *, is_clean: bool, link: bool
) -> None:
    fs = _filled(is_clean=is_clean)
    before = _of_source(fs)
    cluster = _exported(fs, link=link)
    assert _of_source(fs) == before
    left = fs.found_after(POWER_LOSS)
    names = {path.rpartition("/")[2] for path in left.snapshot() if path.startswith(_DESTINATION)}
    assert not any(name.startswith("seglog") or name.endswith((".checksum", ".tmp")) for name in names)
    assert (".kafka_cleanshutdown" in names) == is_clean
    theirs = opened_directory(left, _DESTINATION)
    ours = opened_directory(left)
    assert theirs.report.problems == []
    assert theirs.cluster_id == ours.cluster_id
    assert _records(theirs) == _records(ours)
    assert {name: topic.id for name, topic in theirs.registry.topics.items()} == {
        name: topic.id for name, topic in ours.registry.topics.items()
    }
    assert theirs.registry.topics["orders"].kafka_config == {"retention.ms": "-1", "segment.bytes": "1048576"}
    assert theirs.registry.topics["readings"].kafka_config == {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    assert theirs.accounts.account("ada") == {"SCRAM-SHA-256": _CREDENTIAL}
    orders, readings = cluster.changes[:2]
    assert orders == "topic orders: segment.bytes is 1048576 instead of 1024, the least that Kafka 4 starts with"
    assert readings.startswith("topic readings: min.insync.replicas is 1 instead of 2, because each partition has one")


def test_only_closed_segments_are_linked() -> None:
    fs = _filled()
    original = fs.snapshot()
    _exported(fs, link=True)
    logs = sorted(path for path in fs.snapshot() if path.startswith("/kafka") and path.endswith(".log"))
    for path in logs:
        flip_bit(fs, path, 70)
    changed = [path for path, data in fs.snapshot().items() if path.startswith("/data") and data != original[path]]
    last = {path.rpartition("/")[0]: path for path in sorted(original) if path.endswith(".log")}
    assert len(changed) == len(logs) - len(last)
    assert not set(changed) & set(last.values())


def test_producer_ids_begin_above_all_that_were_given_or_are_in_a_snapshot() -> None:
    fs = _filled()
    _exported(fs)
    assert _said(fs).next_producer_id == 78
    fs = _filled()
    ids = ProducerIds(fs, f"{_DATA}/seglog-producer-ids.json", highest_seen=77)
    ids.next_block().run()
    _exported(fs)
    assert _said(fs).next_producer_id == 1_078


def test_the_leader_epoch_is_the_highest_of_the_partition() -> None:
    fs = _filled(is_clean=False)
    directory = opened_directory(fs)
    append_one(directory.logs["orders", 1], batch(b"of epoch 1"))
    directory.close()
    source = read_source(fs, _DATA)
    assert {key: partition.leader_epoch for key, partition in source.partitions.items()} == {
        ("orders", 0): 1,
        ("orders", 1): 1,
        ("orders", 2): 1,
        ("readings", 0): 1,
    }


def test_partitions_are_spread_over_brokers_that_have_one_cluster() -> None:
    fs = _filled()
    cluster = _exported(fs, brokers=3, hosts=["one", "two", "two"])
    found = {}
    for node in cluster.nodes:
        assert _said(fs, node.directory).partitions == set(cluster.placed)
        here = [name for name in fs.list_directory(node.directory) if name.startswith(("orders-", "readings-"))]
        found[node.node_id] = here
        properties = fs.snapshot()[f"{node.directory}/server.properties"].decode().splitlines()
        assert "controller.quorum.voters=1@one:9093,2@two:9093,3@two:9095" in properties
        assert f"node.id={node.node_id}" in properties
        assert "min.insync.replicas=2" not in properties
    assert found == {1: ["orders-0"], 2: ["orders-1", "readings-0"], 3: ["orders-2"]}
    assert [node.port for node in cluster.nodes] == [9092, 9092, 9094]
    with pytest.raises(ExportError, match="3 brokers need as many hosts, or one for all: 2 are given by --host"):
        make_nodes(cluster.source, _DESTINATION, 3, ["one", "two"], uuid.uuid4)


def test_settings_of_file_and_run_time_go_along_where_kafka_has_them() -> None:
    fs = _filled()
    dynamic = DynamicConfig(
        {
            "": {"log.segment.bytes": "2048", "log.retention.ms": "9"},
            "1": {"log.retention.bytes": "7", "seglog.partitions.max": "5", "advertised.listeners": "PLAINTEXT://h:1"},
        },
        {
            "readers": {"consumer.session.timeout.ms": "46000"},
            "workers": {"errors.deadletterqueue.topic.name": "dead"},
        },
        {(("client-id", None), ("user", "ada")): {"producer_byte_rate": 9.0, "request_percentage": 50.5}},
    )
    write_file_atomically(fs, f"{_DATA}/seglog-configs.json", encode_dynamic_configs(dynamic))
    source = read_source(fs, _DATA)
    nodes = make_nodes(source, _DESTINATION, 1, ["::1"], uuid.uuid4)
    flags = ("log.retention.hours=3", "num.partitions=4", "listeners=PLAINTEXT://127.0.0.1:1", "seglog.handles.max=99")
    cluster = Cluster(source, nodes, _config(*flags))
    write_cluster(fs, cluster, _DESTINATION, 5)
    assert _said(fs).broker_configs == {
        "": {"log.retention.ms": "9", "log.segment.bytes": "1048576"},
        "1": {"log.retention.bytes": "7"},
    }
    assert _said(fs).quotas == dynamic.clients
    lines = cluster.properties(nodes[0]).splitlines()
    assert {"log.retention.ms=10800000", "num.partitions=4"} <= set(lines)
    assert "listeners=PLAINTEXT://[::1]:9092,CONTROLLER://[::1]:9093" in lines
    assert not any("seglog.handles" in line for line in lines)
    changes = "\n".join(cluster.changes)
    assert "all brokers: log.segment.bytes is 1048576 instead of 2048" in changes
    assert "broker 1: seglog.partitions.max=5 is left out, Kafka has no such key" in changes
    assert "broker 1: advertised.listeners is left out, it is chosen anew for Kafka" in changes
    assert "share group workers and 0 others have a topic for dead letters, to which Kafka 4.3 writes none" in changes
    assert "dead letters" not in "\n".join(Cluster(source, nodes, _config(*flags), 33).changes)


def test_permissions_go_along_and_what_puts_them_in_force_is_said() -> None:
    fs = _filled()
    rules = [
        Rule(Kind.TOPIC, PatternType.PREFIXED, "orders-", "User:ada", "*", Operation.READ, Permission.ALLOW),
        Rule(Kind.USER, PatternType.LITERAL, "ada", "User:*", "10.0.0.7", Operation.CREATE_TOKENS, Permission.DENY),
    ]
    AclStore(fs, f"{_DATA}/seglog-acls.json").change(rules)
    flags = ("super.users=User:root", "authorizer.class.name=kafka.security.authorizer.AclAuthorizer")
    cluster = _exported(fs, *flags, "allow.everyone.if.no.acl.found=true")
    assert _said(fs).rules == rules
    assert cluster.changes[-1].startswith(
        "permissions go along, but are not in force until server.properties has authorizer.class.name="
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer, allow.everyone.if.no.acl.found=true and super.users"
    )
    properties = cluster.properties(cluster.nodes[0])
    assert not any(key in properties for key in ("authorizer", "allow.everyone", "super.users"))
    theirs = opened_directory(fs, _DESTINATION)
    assert sorted(theirs.acls.rules) == rules
    theirs.abandon()


def test_records_that_wait_for_dead_letters_are_named_where_a_kafka_may_get_them_that_writes_none() -> None:
    fs = ForgetfulFileSystem(is_recorded=False)
    directory = opened_directory(fs)
    create_topic(directory, SHARE_GROUPS_TOPIC, 2, dict(KEPT_FOR_EVER))
    batches = [StateBatch(5, 7, ARCHIVING, 2), StateBatch(9, 9, ARCHIVED, 2), StateBatch(11, 11, ARCHIVING, 1)]
    for (_, number), log in directory.logs.items():
        of_snapshots, _ = encode_keys(PartitionKey("workers", bytes(16), number))
        [value] = encode_snapshot(Header(0, 1, 0, 5, 1), (1, 1), batches[number:])
        append_one(log, batch(value, key=of_snapshots))
    assert directory.close() == []
    source = read_source(fs, _DATA)
    assert source.archiving == 5
    nodes = make_nodes(source, _DESTINATION, 1, ["localhost"], uuid.uuid4)
    [told] = Cluster(source, nodes, _config()).changes
    assert told.startswith("5 records of share groups wait until their dead letters are written: in Kafka 4.3")
    assert Cluster(source, nodes, _config(), 33).changes == []


def test_damage_and_an_unclean_stop_are_noted() -> None:
    fs = _filled(is_clean=False)
    [note] = read_source(fs, _DATA).notes
    assert note == "/data was not stopped cleanly: Kafka recovers what is behind the recovery points when it starts"


def test_damage_that_a_crash_may_have_torn_is_left_out() -> None:
    fs = _filled(is_clean=False)
    directory = opened_directory(fs)
    log = directory.logs["orders", 0]
    offset, path, ends = log.log_end_offset, log.active.log_path, [log.active.size]
    for number in range(3):
        append_one(log, batch(b"%d" % number * 9, timestamp=1_000))
        ends.append(log.active.size)
    assert log.active.log_path == path
    directory.abandon()
    flip_bit(fs, path, ends[1] + 70)
    assert opened_directory(fs).close() == []
    whole = fs.snapshot()[path]
    assert [f"offsets {offset + 1} to {offset + 1}" in note for note in read_source(fs, _DATA).notes] == [True]
    _exported(fs, link=True)
    assert fs.snapshot()[path.replace(_DATA, _DESTINATION)] == whole[: ends[1]] + whole[ends[2] :]
    adopted = opened_directory(fs, _DESTINATION)
    assert [record.offset for record in read_all(adopted.logs["orders", 0], offset)] == [offset, offset + 2]
    adopted.abandon()


@pytest.mark.parametrize("is_clean", [True, False])
def test_holes_in_what_a_kafka_fetched_from_another_one_are_of_compaction(*, is_clean: bool) -> None:
    """Its cleaner's checkpoint does not name them: the other Kafka's cleaner made them."""
    fs = _filled(is_clean=is_clean)
    _exported(fs)
    directory = f"{_DESTINATION}/readings-0"
    path = f"{directory}/00000000000000000000.log"
    log = fs.snapshot()[path]
    batches = [bytes(data) for _, data in iter_batches(log)]
    write_file_atomically(fs, path, b"".join(batches[:3] + batches[5:]))
    for suffix in ("index", "timeindex"):
        fs.unlink(path.replace(".log", f".{suffix}"))
    theirs = opened_directory(fs, _DESTINATION)
    assert [record.offset for record in read_all(theirs.logs["readings", 0])] == [*range(3), *range(5, len(batches))]
    assert theirs.report.problems == []
    assert theirs.close() == []
    assert_directory_sound(fs, _DESTINATION, _config(path=_DESTINATION))


# --- Refused ----------------------------------------------------------------------------------------------------------


def test_a_directory_is_refused_until_seglog_knows_what_is_in_it() -> None:
    fs = _filled()
    once = "start seglogd on it once, stop it, and run this again"
    fs.rename("/data/orders-1", "/data/orders-7")
    with pytest.raises(ExportError, match=f"/data/orders-1 is gone: {once}"):
        read_source(fs, _DATA)
    fs.rename("/data/orders-7", "/data/orders-1")
    write_file_atomically(fs, "/data/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":14}')
    with pytest.raises(ExportError, match=f"Kafka used /data after seglog .*brokerEpoch|epoch 14.*: {once}"):
        read_source(fs, _DATA)
    fs.unlink("/data/.kafka_cleanshutdown")
    PartitionState(transaction_indexes={0: (34, 5)}).save(fs, "/data/orders-1")
    with pytest.raises(ExportError, match=f"/data/orders-1/0+.txnindex is not as it was written, .*: {once}"):
        read_source(fs, _DATA)
    fs.unlink("/data/seglog-topics.json")
    with pytest.raises(ExportError, match=f"seglog has not served it yet: {once}"):
        read_source(fs, _DATA)


@pytest.mark.parametrize("place", ["/data", "/data/kafka"])
def test_a_destination_in_the_directory_itself_is_refused(place: str) -> None:
    fs = _filled()
    source = read_source(fs, _DATA)
    cluster = Cluster(source, make_nodes(source, place, 1, ["localhost"], uuid.uuid4), _config())
    before = fs.snapshot()
    with pytest.raises(ExportError, match="lies in the log directory itself"):
        write_cluster(fs, cluster, place, 5)
    assert fs.snapshot() == before


def test_a_destination_that_has_something_is_refused_and_stays_as_it_is() -> None:
    fs = _filled()
    fs.load({f"{_DESTINATION}/precious": b"1"})
    with pytest.raises(ExportError, match="/kafka/logs is not empty"):
        _exported(fs)
    assert fs.snapshot()[f"{_DESTINATION}/precious"] == b"1"
    fs.load({"/file": b""})
    source = read_source(fs, _DATA)
    cluster = Cluster(source, make_nodes(source, "/file", 1, ["localhost"], uuid.uuid4), _config())
    with pytest.raises(ExportError, match="/file is a file"):
        write_cluster(fs, cluster, "/file", 5)


def test_too_little_room_is_said_beforehand() -> None:
    fs = _filled()
    source = read_source(fs, _DATA)
    assert "needs --link" not in describe_room(fs, source, _DESTINATION)
    fs.limit_free_bytes(5)
    assert describe_room(fs, source, _DESTINATION).endswith(
        "5 B are free at /: it needs --link, or a file system that shares blocks"
    )


# --- Ended in the middle ----------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing_behind_and_the_source_as_it_was() -> None:
    fs = _filled()
    before = fs.snapshot()
    fs.limit_free_bytes(3_000)
    with pytest.raises(OSError, match=r"ENOSPC|No space"):
        _exported(fs)
    assert _but_for_parents(fs) == before
    fs.limit_free_bytes(None)
    fs.inject(Fault("fdatasync", lambda path: path.startswith("/kafka"), error=errno.EIO))
    with pytest.raises(OSError, match=r"EIO|Input/output"):
        _exported(fs)
    fs.heal()
    assert _but_for_parents(fs) == before
    _exported(fs)


def _but_for_parents(fs: ForgetfulFileSystem) -> dict[str, bytes]:
    return {path: data for path, data in fs.snapshot().items() if path != "/kafka/"}


def _crashed(brokers: int, number: int) -> tuple[ForgetfulFileSystem, bool]:
    """The disk after a crash at its operation ``number``; whether the export had ended before."""
    fs = _filled()
    fs.crash_after(number)
    try:
        _exported(fs, brokers=brokers, link=True)
    except SimulatedCrash:
        return fs, False
    return fs, True


@each_case("policy", [PROCESS_KILL, POWER_LOSS, RANDOM(1), RANDOM(2)], ids=str)
@each_case("brokers", [1, 2])
@pytest.mark.soak
def test_a_crash_at_any_moment_leaves_no_directory_that_starts_and_is_not_whole(
    brokers: int, policy: CrashPolicy
) -> None:
    whole: Mapping[tuple[str, int], list[Record]] = _records(opened_directory(_filled()))
    source = _of_source(_filled())
    for number in range(2_000):
        fs, has_ended = _crashed(brokers, number)
        left = fs.found_after(policy)
        assert _of_source(left) == source
        places = [_DESTINATION] if brokers == 1 else [f"{_DESTINATION}/broker-{each}" for each in (1, 2)]
        there = [place for place in places if left.exists(f"{place}/meta.properties")]
        found: dict[tuple[str, int], list[Record]] = {}
        for place in there:
            here = set(left.list_directory(place))
            directory = opened_directory(
                left, place, "seglog.missing.partitions=empty"
            )  # there are those of the other brokers
            found |= {key: records for key, records in _records(directory).items() if f"{key[0]}-{key[1]}" in here}
        assert len(there) == len(places) or not has_ended
        assert found.items() <= whole.items()
        if there == places:
            assert found == whole
        if has_ended:
            return
    pytest.fail("it never ended")
