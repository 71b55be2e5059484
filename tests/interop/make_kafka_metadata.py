"""Writes directories of a real Kafka with its metadata log, which begins with a snapshot and goes on behind it.

``python -m tests.interop.make_kafka_metadata`` makes those of 4.4.0 again; ``KAFKA_VERSION=4.3.1`` before it, that
one's. Beside ``kafka_metadata_VERSION.tar.gz`` a JSON file has what Kafka said of each topic in the end: its id in hex,
and the settings of its own. ``kafka_accounts.tar.gz`` has SCRAM users, ACLs and quotas: of each kind one is made and
one is deleted behind the snapshot.
"""

import json
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.scram import salted
from tests.interop.handover import produce
from tests.interop.kafka_cases import create_topics, topic_ids
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.peer import JUDGE, KAFKA_VERSION, Kafka, kafka_script

FOLDER: Final = Path(__file__).parent.parent / "unit" / "broker" / "storage" / "directory"
ARCHIVE: Final = FOLDER / f"kafka_metadata_{KAFKA_VERSION}.tar.gz"
FACTS: Final = FOLDER / f"kafka_metadata_{KAFKA_VERSION}.json"
ACCOUNTS: Final = FOLDER / "kafka_accounts.tar.gz"

TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "86400000",
    },
    "both": {"cleanup.policy": "compact,delete", "retention.ms": "3600000", "retention.bytes": "1000000"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"},
    "limited": {"max.message.bytes": "2000000", "message.timestamp.after.max.ms": "9223372036854775807"},
    "small": {"internal.segment.bytes": "4096", "index.interval.bytes": "512", "segment.index.bytes": "65520"},
    "remote": {"leader.replication.throttled.replicas": "*", "min.insync.replicas": "1"},
    "changed": {"retention.ms": "1000000", "segment.ms": "5000000"},
    "again": {"cleanup.policy": "compact"},
    "gone": {"cleanup.policy": "compact"},
}
_SET, _DELETE = 0, 1
_TOPIC, _BROKER = 2, 4


def alter(wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
    """Change settings; each change is a key, 0 to set or 1 to delete it, and a value."""
    configs: list[Plain] = [{"name": key, "config_operation": what, "value": value} for key, what, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = plain(wire.ask(request("IncrementalAlterConfigs", {"resources": [resource]}), 1))
    assert answer["responses"][0]["error_code"] == 0, answer


def settings(wire: Wire, topic: str) -> dict[str, str]:
    """The settings of the topic's own, as Kafka describes them."""
    asked = {"resources": [{"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}]}
    answer = plain(wire.ask(request("DescribeConfigs", asked), 4))
    return {item["name"]: item["value"] for item in answer["results"][0]["configs"] if item["config_source"] == 1}


def delete(wire: Wire, *topics: str) -> None:
    """Delete topics."""
    asked = {"topics": [{"name": name} for name in topics], "timeout_ms": 30_000}
    answer = plain(wire.ask(request("DeleteTopics", asked), 6))
    assert not any(each["error_code"] for each in answer["responses"]), answer


def create(wire: Wire, topics: dict[str, dict[str, str]]) -> None:
    """Make topics of two partitions."""
    create_topics(
        wire,
        [
            {
                "name": name,
                "num_partitions": 2,
                "replication_factor": 1,
                "configs": [{"name": key, "value": value} for key, value in config.items()],
            }
            for name, config in topics.items()
        ],
    )


def fill(wire: Wire, topic: str) -> None:
    """Three records into partition 0, of the present, so that none expires."""
    now = time.time_ns() // 1_000_000
    produce(wire, topic, encode_batch([(now + number, b"k%d" % number, b"v", ()) for number in range(3)]))


def write(kafka: Kafka) -> dict[str, dict[str, Plain]]:
    """Fill the directory of a Kafka that does not run; return what it says of its topics."""
    with kafka.running("metadata.log.max.record.bytes.between.snapshots=1"), Wire(kafka.port) as wire:
        create(wire, TOPICS)
        alter(wire, _TOPIC, "changed", ("retention.ms", _SET, "2000000"), ("segment.ms", _DELETE, None))
        for topic in TOPICS:
            fill(wire, topic)
    with kafka.running(), Wire(kafka.port) as wire:
        alter(wire, _TOPIC, "changed", ("retention.ms", _DELETE, None), ("flush.messages", _SET, "7"))
        alter(wire, _TOPIC, "plain", ("segment.jitter.ms", _SET, "9"))
        alter(wire, _BROKER, "", ("log.retention.ms", _SET, "86400000"))
        alter(wire, _BROKER, "1", ("log.cleaner.threads", _SET, "2"))
        delete(wire, "again", "gone")
        create(wire, {"again": {"retention.ms": "5000000"}, "late": {"cleanup.policy": "compact"}})
        for topic in ("again", "late"):
            fill(wire, topic)
        return {name: {"id": found, "config": settings(wire, name)} for name, found in topic_ids(wire).items()}


# --- Users and ACLs ---------------------------------------------------------------------------------------------------

SALT: Final = b"salt-of-sixteen-"
ITERATIONS: Final = 4096

PASSWORDS: Final = {
    ("alice", "SCRAM-SHA-256"): "changed later",
    ("alice", "SCRAM-SHA-512"): "first of alice",
    ("Jürgen 😀", "SCRAM-SHA-256"): "pa\u0308ss",
    ("late", "SCRAM-SHA-512"): "behind the snapshot",
}
"""The passwords of the accounts in the end."""

_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
AUTHORIZER: Final = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)


def put_user(wire: Wire, name: str, mechanism: str, password: str) -> None:
    """Give a user a credential."""
    key = salted(mechanism, password.encode(), SALT, ITERATIONS).hex()
    _alter_users(wire, upsertions=[
        {
            "name": name, "mechanism": _NUMBERS[mechanism], "iterations": ITERATIONS, "salt": SALT.hex(),
            "salted_password": key,
        }
    ])  # fmt: skip


def delete_user(wire: Wire, name: str, mechanism: str) -> None:
    """Delete a user's credential."""
    _alter_users(wire, deletions=[{"name": name, "mechanism": _NUMBERS[mechanism]}])


def _alter_users(wire: Wire, **changes: list[Plain]) -> None:
    answer = plain(wire.ask(request("AlterUserScramCredentials", {"deletions": [], "upsertions": [], **changes}), 0))
    assert not any(each["error_code"] for each in answer["results"]), answer


Acl = tuple[int, int, str, str, str, int, int]
"""Kind of resource, kind of pattern, name, principal, host, operation and permission, by Kafka's numbers."""

GONE: Final[Acl] = (2, 3, "a", "User:alice", "*", 3, 3)
"""Deleted behind the snapshot."""

ACLS: Final[tuple[Acl, ...]] = (
    (2, 3, "b", "User:alice", "*", 3, 3),
    (2, 4, "orders-", "User:Jürgen 😀", "10.0.0.7", 4, 3),
    (2, 3, "*", "User:*", "*", 8, 3),
    (2, 3, "orders-secret", "User:alice", "*", 2, 2),
    (3, 4, "workers", "User:alice", "*", 3, 3),
    (4, 3, "kafka-cluster", "User:alice", "*", 12, 3),
    (5, 4, "pay-", "User:alice", "*", 4, 3),
    (6, 3, "token", "User:alice", "*", 8, 3),
    (7, 3, "alice", "User:late", "*", 13, 3),
    (2, 3, "late", "User:late", "*", 3, 2),
)
"""The ACLs in the end; the last one is made behind the snapshot."""

Entity = tuple[tuple[str, str | None], ...]
"""What a quota is for: types and names, None for the default."""

QUOTAS: Final[dict[Entity, dict[str, float]]] = {
    (("user", "alice"),): {"producer_byte_rate": 1048576.0, "consumer_byte_rate": 2097152.0},
    (("user", None),): {"request_percentage": 200.0},
    (("client-id", "loader"), ("user", "Jürgen 😀")): {"controller_mutation_rate": 0.5},
    (("client-id", None), ("user", None)): {"consumer_byte_rate": 77.0},
    (("client-id", "loader"),): {"producer_byte_rate": 4096.0},
    (("ip", "127.0.0.1"),): {"connection_creation_rate": 50.0},
    (("ip", None),): {"connection_creation_rate": 5000.0},
    (("user", "late"),): {"producer_byte_rate": 9.0},
}
"""The quotas in the end; alice's consumer_byte_rate and the last one are made behind the snapshot."""


def acl_filter(acl: Acl | None = None) -> dict[str, Plain]:
    """The filter of one ACL, or of all."""
    kind, pattern, name, principal, host, operation, permission = acl or (1, 1, None, None, None, 1, 1)
    return {
        "resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": pattern,
        "principal_filter": principal, "host_filter": host, "operation": operation, "permission_type": permission,
    }  # fmt: skip


def create_acls(wire: Wire, acls: Iterable[Acl]) -> None:
    """Make ACLs."""
    facts = ("resource_type", "resource_pattern_type", "resource_name", "principal", "host", "operation")
    creations = [dict(zip((*facts, "permission_type"), acl, strict=True)) for acl in acls]
    answer = plain(wire.ask(request("CreateAcls", {"creations": creations}), 3))
    assert not any(each["error_code"] for each in answer["results"]), answer


def delete_acl(wire: Wire, acl: Acl) -> None:
    """Delete an ACL."""
    answer = plain(wire.ask(request("DeleteAcls", {"filters": [acl_filter(acl)]}), 3))
    assert len(answer["filter_results"][0]["matching_acls"]) == 1, answer


def alter_quotas(wire: Wire, quotas: Mapping[Entity, Mapping[str, float | None]]) -> None:
    """Set quotas, or remove those of which the value is None."""
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
        }
        for entity, values in quotas.items()
    ]
    answer = plain(wire.ask(request("AlterClientQuotas", {"entries": entries, "validate_only": False}), 1))
    assert not any(each["error_code"] for each in answer["entries"]), answer


def write_users(kafka: Kafka) -> None:
    """Fill the directory of a Kafka that does not run."""
    alice, late = (("user", "alice"),), (("user", "late"),)
    with kafka.running(*AUTHORIZER, "metadata.log.max.record.bytes.between.snapshots=1"), Wire(kafka.port) as wire:
        put_user(wire, "alice", "SCRAM-SHA-256", "first of alice")
        put_user(wire, "alice", "SCRAM-SHA-512", "first of alice")
        put_user(wire, "Jürgen 😀", "SCRAM-SHA-256", "pa\u0308ss")
        put_user(wire, "gone", "SCRAM-SHA-256", "gone")
        create_acls(wire, [GONE, *ACLS[:-1]])
        before: dict[Entity, dict[str, float | None]] = {of: {**quota} for of, quota in QUOTAS.items() if of != late}
        before[alice] = {"producer_byte_rate": 1048576.0, "request_percentage": 7.0}
        alter_quotas(wire, before | {(("client-id", "gone"),): {"producer_byte_rate": 1.0}})
    with kafka.running(*AUTHORIZER), Wire(kafka.port) as wire:
        put_user(wire, "alice", "SCRAM-SHA-256", "changed later")
        put_user(wire, "late", "SCRAM-SHA-512", "behind the snapshot")
        delete_user(wire, "gone", "SCRAM-SHA-256")
        delete_acl(wire, GONE)
        create_acls(wire, ACLS[-1:])
        alter_quotas(
            wire,
            {
                alice: {"consumer_byte_rate": 2097152.0, "request_percentage": None},
                late: {"producer_byte_rate": 9.0},
                (("client-id", "gone"),): {"producer_byte_rate": None},
            },
        )


# --- Files ------------------------------------------------------------------------------------------------------------


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Nothing of deleted topics, and no index that is megabytes of zeros."""
    is_left_out = "-delete" in member.name or member.name.endswith(".deleted") or member.size > 1 << 20
    return None if is_left_out else member


@contextmanager
def _packed(archive: Path) -> Iterator[Kafka]:
    """A Kafka whose directory is filled in the block, and put into the archive behind it."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = Kafka(kafka_script(), Path(folder) / "kafka")
        kafka.data.mkdir()
        yield kafka
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(kafka.directory, arcname="logs", filter=_wanted)


def main() -> None:
    """Write all files."""
    with _packed(ARCHIVE) as kafka:
        FACTS.write_text(json.dumps(write(kafka), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if KAFKA_VERSION == JUDGE:
        with _packed(ACCOUNTS) as kafka:
            write_users(kafka)


if __name__ == "__main__":
    main()
