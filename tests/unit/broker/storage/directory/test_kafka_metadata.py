"""What Kafka's metadata log has: directories of real Kafkas, and logs made record by record.

``tests/interop/make_kafka_metadata.py`` has the real one written: a snapshot, and changes behind it.
"""

import json
import tarfile
import uuid
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import pytest
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.config.broker_config import AUTHORIZERS
from seglog_broker.config.topic_overrides import KEPT_FOR_EVER, validate_topic_config
from seglog_broker.security.credentials import from_salted
from seglog_broker.security.sasl import Identity
from seglog_broker.storage.directory.accounts import AccountStore, Change, Credential
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.directory.kafka_metadata import (
    encode_bootstrap,
    read_kafka_metadata,
    record_of_rule,
    records_of_quotas,
)
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io.filenames import ACLS_FILE, new_id, uuid_of
from seglog_broker.storage.io.filesystem import read_file, write_file_atomically
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.access import Operation, Rule, told
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.kafka import Message, messages, read_message, write_message
from seglog_protocol.quotas import Entity
from seglog_protocol.record_batch import iter_batches, rewrite_offset_and_epoch
from seglog_protocol.records import iter_records
from seglog_protocol.scram import salted
from seglog_protocol.steps import finished
from tests.interop.make_kafka_metadata import ACLS, ITERATIONS, PASSWORDS, QUOTAS, SALT
from tests.logs import ManualClock, batch, read_all
from tests.support import each_case
from tests.unit.broker.security.exchanges import plain
from tests.unit.broker.storage.directory.directories import kafka_partition, opened, put

_HERE: Final = Path(__file__).parent
_DATA: Final = "/data"
_LOG: Final = f"{_DATA}/__cluster_metadata-0/00000000000000000000.log"
_FORMATTED_SNAPSHOT: Final = f"{_DATA}/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
_FIRST, _SECOND = uuid.UUID(int=11), uuid.UUID(int=12)


@cache
def _real(name: str = "metadata_4.4.0") -> dict[str, bytes]:
    with tarfile.open(_HERE / f"kafka_{name}.tar.gz") as archive:
        files = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        return {
            f"{_DATA}/{member.name.removeprefix('logs/')}": file.read() for member, file in files if file is not None
        }


def _real_directory(name: str = "metadata_4.4.0") -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load(_real(name))
    return fs


def _facts(version: str = "4.4.0") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((_HERE / f"kafka_metadata_{version}.json").read_text("utf-8"))
    return found


# --- A real one -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "level"), [("4.3.1", 30), ("4.4.0", 33)])
def test_topics_of_a_real_directory_have_the_ids_and_settings_that_kafka_says(version: str, level: int) -> None:
    fs = _real_directory(f"metadata_{version}")
    directory = opened(fs)
    topics = directory.registry.topics
    assert directory.registry.metadata_version == level
    assert topics.keys() == _facts(version).keys()
    for name, fact in _facts(version).items():
        topic = topics[name]
        canonical, _ = validate_topic_config(fact["config"])
        assert uuid_of(topic.id).hex == fact["id"]
        assert topic.config == KEPT_FOR_EVER | canonical, name
        assert topic.kafka_config == fact["config"], name
        assert len(read_all(directory.logs[name, 0])) == 3
    assert directory.logs["compacted", 0].config.cleanup_policy == ("compact",)
    assert directory.logs["stamped", 0].config.message_timestamp_type == "LogAppendTime"
    assert directory.logs["small", 0].config.segment_bytes == 4096
    assert directory.report.kafka_settings == [
        "all brokers: log.retention.ms=86400000, min.insync.replicas=1",
        "broker 1: log.cleaner.threads=2",
    ]
    assert directory.report.problems == []
    assert directory.close() == []
    before = dict(topics)
    again = opened(fs)
    assert (again.registry.topics, again.registry.metadata_version) == (before, level)
    assert again.close() == []
    fs.unlink(again.registry.path)
    assert opened(fs).registry.metadata_version == level, "without the registry"


def test_a_directory_that_kafka_4_4_has_formatted_has_all_in_a_first_snapshot() -> None:
    """It writes no bootstrap file."""
    fs = ForgetfulFileSystem()
    fs.load({path: _real()[path] for path in (_FORMATTED_SNAPSHOT, f"{_DATA}/meta.properties")})
    assert opened(fs).registry.metadata_version == 33


def test_metadata_without_its_snapshot_or_its_log() -> None:
    """Without the snapshot nothing before it is known and without the log nothing behind it."""
    fs = _real_directory()
    whole = read_kafka_metadata(fs, _DATA)
    assert whole.topic_configs["both"]["retention.ms"] == "3600000"
    assert whole.topic_configs["changed"] == {"flush.messages": "7"}
    for name in [path for path in fs.snapshot() if "__cluster_metadata-0/" in path and path.endswith(".log")]:
        fs.unlink(name)
    snapshot = read_kafka_metadata(fs, _DATA)
    assert snapshot.topic_configs["both"]["retention.ms"] == "3600000"
    assert "late" not in snapshot.topic_ids


def test_without_its_metadata_log_topics_keep_everything_and_say_why() -> None:
    fs = ForgetfulFileSystem()
    fs.load({path: data for path, data in _real().items() if "__cluster_metadata-0/" not in path})
    directory = opened(fs)
    for topic in directory.registry.topics.values():
        assert topic.config == KEPT_FOR_EVER
        assert "without its metadata log" in topic.notes[0]


def test_a_topic_id_that_a_partition_lost_is_that_of_the_metadata_log() -> None:
    fs = _real_directory()
    for number in (0, 1):
        put(fs, f"{_DATA}/stamped-{number}/partition.metadata", b"version: 0\ntopic_id: garbage")
    directory = opened(fs)
    assert uuid_of(directory.registry.topics["stamped"].id).hex == _facts()["stamped"]["id"]
    assert directory.logs["stamped", 0].config.message_timestamp_type == "LogAppendTime"
    copies = [problem for problem in directory.report.problems if "partition.metadata.unreadable-" in problem]
    assert len(copies) == 2


# --- Record by record -------------------------------------------------------------------------------------------------


def _text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def _topic(name: str, topic_id: uuid.UUID) -> bytes:
    return bytes([1, 2, 0]) + _text(name) + topic_id.bytes + b"\0"


def _config(name: str, key: str, value: str | None, kind: int = 2) -> bytes:
    return bytes([1, 4, 0, kind]) + _text(name) + _text(key) + _text(value) + b"\0"


def _removed(topic_id: uuid.UUID) -> bytes:
    return bytes([1, 9, 0]) + topic_id.bytes + b"\0"


def _kafkas(*records: bytes, topic_id: uuid.UUID = _FIRST) -> ForgetfulFileSystem:
    """A directory of Kafka's with the topic ``t``, of one partition, and a metadata log of these records."""
    fs = ForgetfulFileSystem()
    fs.load({f"{_DATA}/meta.properties": b"version=1\nnode.id=1\ncluster.id=k\n", _LOG: batch(*records)})
    fs.load({f"{_DATA}/t-0/{name}": content for name, content in kafka_partition(new_id(topic_id)).items()})
    return fs


def _goes_on(fs: ForgetfulFileSystem, *records: bytes) -> None:
    """Kafka has the directory again, and writes these records."""
    more = bytearray(batch(*records))
    rewrite_offset_and_epoch(more, 0, 1000, 0)
    put(fs, _LOG, read_file(fs, _LOG) + bytes(more))
    put(fs, f"{_DATA}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":47}')


_BEGIN: Final = (_topic("t", _FIRST), _config("t", "retention.ms", "5000"), _config("t", "segment.ms", "7000"))


@each_case(
    ("records", "config"),
    [
        ((_topic("t", _FIRST),), {}),
        (_BEGIN, {"retention.ms": "5000", "segment.ms": "7000"}),
        ((*_BEGIN, _config("t", "retention.ms", "6000")), {"retention.ms": "6000", "segment.ms": "7000"}),
        ((*_BEGIN, _config("t", "segment.ms", None)), {"retention.ms": "5000"}),
        ((_topic("t", _SECOND), _config("t", "segment.ms", "1"), _removed(_SECOND), _topic("t", _FIRST)), {}),
        (
            (*_BEGIN, _config("other", "retention.ms", "1"), _config("t", "log.retention.ms", "1", 4)),
            {"retention.ms": "5000", "segment.ms": "7000"},
        ),
        ((*_BEGIN, bytes([1, 4, 0, 2, 9])), {"retention.ms": "5000", "segment.ms": "7000"}),
    ],
)
def test_the_last_word_of_the_log_counts(records: tuple[bytes, ...], config: dict[str, str]) -> None:
    assert opened(_kafkas(*records)).registry.topics["t"].config == KEPT_FOR_EVER | config


def test_settings_of_groups_are_named() -> None:
    settings = (
        _config("g", "share.auto.offset.reset", "earliest", 32),
        _config("g", "share.delivery.count.limit", "3", 32),
    )
    assert opened(_kafkas(*_BEGIN, *settings)).report.kafka_settings == [
        "group g: share.auto.offset.reset=earliest, share.delivery.count.limit=3"
    ]


def test_settings_of_another_topic_of_that_name_are_not_taken() -> None:
    topic = opened(_kafkas(*_BEGIN, topic_id=_SECOND)).registry.topics["t"]
    assert (topic.config, topic.kafka_config) == (KEPT_FOR_EVER, {})


def test_settings_that_cannot_be_used_are_kept_and_named() -> None:
    fs = _kafkas(*_BEGIN, _config("t", "future.key", "on"), _config("t", "flush.ms", "never"))
    directory = opened(fs)
    topic = directory.registry.topics["t"]
    assert topic.config == KEPT_FOR_EVER | {"retention.ms": "5000", "segment.ms": "7000"}
    assert topic.kafka_config["future.key"] == "on"
    assert any("future.key=on" in note for note in topic.notes)
    assert any("flush.ms=never" in note for note in topic.notes)
    directory.close()
    assert opened(fs).registry.topics["t"] == topic


def test_what_kafka_changed_is_taken_over_and_what_was_altered_here_stays() -> None:
    fs = _kafkas(*_BEGIN, _config("t", "flush.ms", "10"))
    directory = opened(fs)
    topics = directory.topics
    before = directory.registry.topics["t"]
    altered = topics.plan_alteration(before, 1, before.config | {"flush.ms": "20", "index.interval.bytes": "100"})
    altered.run()
    topics.finish_alteration(before, altered, None)
    directory.close()
    _goes_on(
        fs,
        _config("t", "segment.ms", "8000"),
        _config("t", "retention.ms", None),
        _config("t", "cleanup.policy", "compact"),
    )
    directory = opened(fs)
    assert directory.registry.topics["t"].config == {
        "cleanup.policy": "compact",
        "flush.ms": "20",
        "index.interval.bytes": "100",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.ms": "8000",
    }
    assert directory.report.kafka_changes == [
        "topic t: cleanup.policy is compact, it was delete",
        "topic t: retention.ms is -1, it was 5000",
        "topic t: segment.ms is 8000, it was 7000",
    ]
    assert directory.logs["t", 0].config.segment_ms == 8000
    directory.close()
    assert opened(fs).report.kafka_changes == []


def test_an_unreadable_metadata_log_changes_nothing() -> None:
    """Of a metadata log that cannot be read to its end no change is taken and that is said."""
    fs = _kafkas(*_BEGIN)
    opened(fs).close()
    put(fs, _LOG, bytes(100) + read_file(fs, _LOG))
    put(fs, f"{_DATA}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":47}')
    directory = opened(fs)
    assert directory.registry.topics["t"].config["retention.ms"] == "5000"
    assert any("cannot be read further" in problem for problem in directory.report.problems)


# --- Written ----------------------------------------------------------------------------------------------------------

_FORMATTED: Final = bytes.fromhex(
    "0000000000000000000000470000000002fd88f59c002000000000000001a21b56f2c3000001a21b56f2c3ffffffffffffffffffffffffff"
    "ff000000012a0000000800000003160000000000000000000000000000000000000001000000f100000000029023803f0000000000050000"
    "01a21b56f2dc000001a21b56f2dcffffffffffffffffffffffffffff000000063a000000012e010c00116d657461646174612e7665727369"
    "6f6e001e00005a000002014e010c0021656c696769626c652e6c65616465722e7265706c696361732e76657273696f6e0001000034000004"
    "0128010c000e67726f75702e76657273696f6e00010000340000060128010c000e73686172652e76657273696f6e0001000038000008012c"
    "010c001073747265616d732e76657273696f6e000100004000000a0134010c00147472616e73616374696f6e2e76657273696f6e00020000"
    "00000000000000070000003f00000000020a82c945002000000000000001a21b56f2dd000001a21b56f2ddffffffffffffffffffffffffff"
    "ff000000011a00000008000000040600000000"
)
"""``bootstrap.checkpoint`` as ``kafka-storage format`` of Kafka 4.3.1 wrote it."""


def _without_times(content: bytes) -> list[tuple[Any, list[Any]]]:
    return [
        (
            header._replace(crc=0, base_timestamp=0, max_timestamp=0),
            [(record.offset, record.key, record.value) for record in iter_records(header, content)],
        )
        for header, content in iter_batches(content)
    ]


def test_a_bootstrap_file_without_records_is_what_kafka_formats() -> None:
    ours = _without_times(encode_bootstrap([], 1_795_755_012_803))
    assert len(ours) == 3
    assert ours == _without_times(_FORMATTED)


def test_a_later_metadata_version_is_kept_with_the_directory_that_a_kafka_has_written() -> None:
    """One of a Kafka that is later than those that are known is not told further."""
    for level, known in (30, 30), (33, 33), (34, 33):
        fs = ForgetfulFileSystem()
        fs.load({f"{_DATA}/bootstrap.checkpoint": encode_bootstrap([], 5, level)})
        assert read_kafka_metadata(fs, _DATA).metadata_version == known
    values = [
        record.value
        for header, content in iter_batches(encode_bootstrap([], 5, 33))
        if not header.is_control
        for record in iter_records(header, content)
    ]
    features = [read_message(messages.FeatureLevelRecord, 0, value[3:]) for value in values if value is not None]
    levels = {record.name: record.feature_level for record in features}
    assert (levels["metadata.version"], levels["share.version"]) == (33, 2), "as Kafka 4.4.0 formats a directory"
    fs = ForgetfulFileSystem()
    fs.load({f"{_DATA}/registry.json": b""})
    registry = TopicRegistry(fs, f"{_DATA}/registry.json")
    assert b"metadata_version" not in registry.content()
    registry.metadata_version = 33
    registry.save()
    again = TopicRegistry(fs, registry.path)
    again.load()
    assert again.metadata_version == 33


def test_what_a_bootstrap_file_has_is_read_back_while_kafka_has_no_log() -> None:
    credential = Credential("SCRAM-SHA-512", 4096, b"salt of it..", b"s" * 64, b"t" * 64)
    records = [
        messages.TopicRecord(name="first", topic_id=_FIRST.bytes),
        *(messages.PartitionRecord(partition_id=each, topic_id=_FIRST.bytes) for each in range(2_500)),
        messages.ConfigRecord(resource_type=2, resource_name="first", name="retention.ms", value="7"),
        messages.ConfigRecord(resource_type=4, resource_name="", name="log.cleaner.threads", value="2"),
        messages.ProducerIdsRecord(broker_id=1, next_producer_id=5_000),
        messages.UserScramCredentialRecord(
            name="ada",
            mechanism=2,
            salt=credential.salt,
            stored_key=credential.stored_key,
            server_key=credential.server_key,
            iterations=4096,
        ),
    ]
    fs = ForgetfulFileSystem()
    fs.load({f"{_DATA}/bootstrap.checkpoint": encode_bootstrap(records, 5)})
    found = read_kafka_metadata(fs, _DATA)
    assert found.problem is None
    assert found.topic_ids == {"first": new_id(_FIRST)}
    assert found.partitions == {("first", number) for number in range(2_500)}
    assert found.topic_configs == {"first": {"retention.ms": "7"}}
    assert found.broker_configs == {"": {"log.cleaner.threads": "2"}}
    assert found.next_producer_id == 5_000
    assert found.credentials == {("ada", "SCRAM-SHA-512"): credential}
    voters = read_file(_real_directory("metadata_4.3.1"), _FORMATTED_SNAPSHOT)  # of Kafka 4.3's kafka-storage format
    fs.load({_FORMATTED_SNAPSHOT: voters})
    assert read_kafka_metadata(fs, _DATA) == replace(found, is_there=True)
    fs.load({_LOG: b""})
    assert read_kafka_metadata(fs, _DATA).topic_ids == {}


# --- Accounts, of tests/interop/make_kafka_metadata.py -------------------------------------------------------

_NUMBERED: Final = [told(Rule, *acl) for acl in ACLS]
_ACCEPTED: Final = "seglog.acls.not.enforced=true"


def _broker(fs: ForgetfulFileSystem, *flags: str) -> Broker:
    config, _ = load_config(None, "", {}, [f"log.dir={_DATA}", *flags])
    return Broker.open(config, fs, ManualClock(), InlineOffload())


def test_the_metadata_log_has_the_credentials_acls_and_quotas_of_the_end() -> None:
    found = read_kafka_metadata(_real_directory("accounts"), _DATA)
    assert found.problem is None
    assert found.credentials.keys() == PASSWORDS.keys()
    assert {(each.iterations, each.salt) for each in found.credentials.values()} == {(ITERATIONS, SALT)}
    assert sorted(found.rules) == sorted(ACLS)
    assert found.quotas == QUOTAS


async def test_the_accounts_of_a_kafka_log_in_with_the_passwords_that_they_had() -> None:
    fs = _real_directory("accounts")
    with capture_logs() as logged:
        broker = _broker(fs, _ACCEPTED)
    assert [entry["accounts"] for entry in logged if entry["event"] == "kafka_accounts_adopted"] == [3]
    for _ in range(2):
        for (name, mechanism), password in PASSWORDS.items():  # as they are, which Kafka's clients do not prepare
            key = salted(mechanism, password.encode(), SALT, ITERATIONS)
            assert from_salted(mechanism, ITERATIONS, SALT, key) in broker.users.credentials_of(name)
        exchange = broker.authenticator.begin("PLAIN", is_private=True)
        await exchange.respond(plain("Jürgen 😀", PASSWORDS["Jürgen 😀", "SCRAM-SHA-256"]))
        assert exchange.identity == Identity("User:Jürgen 😀")
        assert broker.close() == []
        broker = _broker(fs)
    broker.close()


def test_an_account_that_is_there_already_stays_as_it_is() -> None:
    fs = _real_directory("accounts")
    own = Credential("SCRAM-SHA-256", 4096, b"another salt", b"S" * 32, b"V" * 32)
    accounts = AccountStore(fs, f"{_DATA}/seglog-accounts.json")
    accounts.write(finished(accounts.planned([Change("alice", own.mechanism, own)])))
    broker = _broker(fs, _ACCEPTED)
    assert broker.users.credentials_of("alice") == [own]
    assert broker.users.names() == ["Jürgen 😀", "alice", "late"]
    broker.close()


async def test_an_account_that_is_deleted_does_not_come_back() -> None:
    fs = _real_directory("accounts")
    broker = _broker(fs, _ACCEPTED)
    plan = finished(broker.directory.accounts.planned([Change("late", "SCRAM-SHA-512", None)]))
    broker.directory.accounts.write(plan)
    finished(broker.directory.accounts.adopted(plan))
    broker.close()
    broker = _broker(fs)
    assert broker.users.names() == ["Jürgen 😀", "alice"]
    broker.close()


# --- Permissions and quotas -------------------------------------------------------------------------------------------

_ALICE: Final = _NUMBERED[0]
_OTHER: Final = _ALICE._replace(name="other")
_SWITCH: Final = {"authorizer.class.name": AUTHORIZERS[0]}
_OF_ALICE: Final = (("user", "alice"),)


def _rules(fs: ForgetfulFileSystem) -> set[Rule]:
    store = AclStore(fs, f"{_DATA}/{ACLS_FILE}")
    store.load()
    return set(store.rules)


def _record(number: int, record: Message) -> bytes:
    return bytes([1, number, 0]) + write_message(record, 0)


def _made(rule: Rule) -> bytes:
    return _record(18, record_of_rule(rule))


def _deleted(rule: Rule) -> bytes:
    made = record_of_rule(rule)
    return _record(19, messages.RemoveAccessControlEntryRecord(id=made.id))


def _quota(value: float, entity: Entity = _OF_ALICE, *, removes: bool = False) -> bytes:
    [record] = records_of_quotas(entity, {"producer_byte_rate": value})
    record.remove = removes
    return _record(14, record)


def test_permissions_and_quotas_of_a_kafka_are_in_force_and_said() -> None:
    fs = _real_directory("accounts")
    with capture_logs() as logged:
        broker = _broker(fs)
    [said] = [entry for entry in logged if entry["event"] == "kafka_access_adopted"]
    assert (said["permissions"], said["quotas"]) == (len(ACLS), sum(map(len, QUOTAS.values())))
    for _ in range(2):
        assert sorted(_rules(fs)) == sorted(ACLS)
        dynamic = broker.live_config.dynamic
        assert dynamic.clients == QUOTAS
        assert dynamic.brokers == {"": _SWITCH}
        assert broker.authority.is_enforced
        assert broker.close() == []
        broker = _broker(fs)
    broker.close()


def test_permissions_that_are_not_to_be_enforced_are_kept() -> None:
    fs = _real_directory("accounts")
    broker = _broker(fs, _ACCEPTED)
    assert sorted(_rules(fs)) == sorted(ACLS)
    assert broker.live_config.dynamic.brokers == {}
    broker.close()


def test_of_a_lost_registry_nothing_comes_back_that_was_deleted_here() -> None:
    fs = _kafkas(*_BEGIN, _made(_ALICE), _quota(5.0))
    directory = opened(fs)
    directory.acls.change([], [_ALICE])
    directory.close()
    fs.unlink(directory.registry.path)
    assert opened(fs).report.problems != []
    assert _rules(fs) == set()


def test_what_kafka_changed_of_permissions_and_quotas_is_taken_over_and_what_was_made_here_stays() -> None:
    bob, late = (("user", "bob"),), _ALICE._replace(name="late")
    gone, kept = _ALICE._replace(name="gone"), _ALICE._replace(name="kept")
    fs = _kafkas(*_BEGIN, *map(_made, (_ALICE, gone, kept)), _quota(5.0), _quota(6.0, bob))
    directory = opened(fs)
    directory.acls.change([_OTHER], [kept])
    mine = directory.dynamic_config.with_clients({_OF_ALICE: {"producer_byte_rate": 7.0, "consumer_byte_rate": 8.0}})
    mine = mine.with_broker("", {})
    write_file_atomically(fs, f"{_DATA}/seglog-configs.json", encode_dynamic_configs(mine))
    directory.close()
    _goes_on(fs, _deleted(gone), _made(late), _quota(9.0), _quota(0.0, bob, removes=True))
    before = fs.snapshot()
    directory = opened(fs)
    assert _rules(fs) == {_ALICE, _OTHER, late}
    assert directory.dynamic_config.clients == {_OF_ALICE: {"producer_byte_rate": 9.0, "consumer_byte_rate": 8.0}}
    assert directory.dynamic_config.brokers == {}, "whoever has switched permissions off has them so"
    assert directory.report.kafka_changes == [
        f"permission {late} was made",
        f"permission {gone} was deleted",
        "quota producer_byte_rate=9 of user alice was set",
        "quota producer_byte_rate=5 of user alice was changed or deleted",
        "quota producer_byte_rate=6 of user bob was changed or deleted",
    ]
    directory.close()
    after = {name: fs.snapshot()[name] for name in (f"{_DATA}/seglog-configs.json", f"{_DATA}/{ACLS_FILE}")}
    crashed = ForgetfulFileSystem()
    crashed.load(before | after)  # before the registry is written
    assert opened(crashed).dynamic_config.clients == directory.dynamic_config.clients
    assert _rules(crashed) == {_ALICE, _OTHER, late}
    assert opened(fs).report.kafka_changes == []


def test_a_metadata_log_that_is_gone_or_unreadable_takes_no_permission_away() -> None:
    for content in (None, bytes(100)):
        fs = _kafkas(*_BEGIN, _made(_ALICE), _quota(5.0))
        opened(fs).close()
        if content is None:
            fs.unlink(_LOG)
        else:
            put(fs, _LOG, content)
        put(fs, f"{_DATA}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":47}')
        directory = opened(fs)
        assert _rules(fs) == {_ALICE}
        assert directory.dynamic_config.clients == {_OF_ALICE: {"producer_byte_rate": 5.0}}


def test_permissions_and_quotas_that_are_not_possible_here_are_named() -> None:
    later = _ALICE._replace(operation=cast("Operation", 99))
    fs = _kafkas(*_BEGIN, _made(_ALICE), _made(later), _quota(5.0, (("planet", "mars"),)))
    rule, quota = opened(fs).report.problems
    assert _rules(fs) == {_ALICE}
    assert "1 permission of Kafka's cannot be taken over, such as ALLOW UNKNOWN on TOPIC b for User:alice: Inv" in rule
    assert "1 quota of Kafka's cannot be taken over, such as producer_byte_rate=5 of planet mars: Unhand" in quota


def test_more_permissions_than_are_possible_are_refused() -> None:
    fs = _kafkas(*_BEGIN, *(_made(_ALICE._replace(name=f"{number}")) for number in range(10_001)))
    with pytest.raises(LogDirectoryError, match=r"permissions and quotas of the Kafka that wrote /data cannot be ad"):
        opened(fs)
