"""Writes ``kafka_accounts.tar.gz``: a directory of a real Kafka with SCRAM users and ACLs in its metadata log.

``python -m tests.interop.make_kafka_accounts`` makes it again. The metadata log begins with a snapshot and goes on
behind it: of the users one is changed and one is deleted there, and one of two ACLs.
"""

import tarfile
import tempfile
from pathlib import Path
from typing import Final

from seglog_protocol.scram import salted
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.peer import Kafka, kafka_script

FOLDER: Final = Path(__file__).parent.parent / "unit" / "broker" / "storage" / "directory" / "kafka_accounts"
ARCHIVE: Final = FOLDER.with_suffix(".tar.gz")

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
_AUTHORIZER: Final = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS",
)


def put(wire: Wire, name: str, mechanism: str, password: str) -> None:
    """Give a user a credential."""
    key = salted(mechanism, password.encode(), SALT, ITERATIONS).hex()
    _alter(wire, upsertions=[
        {
            "name": name, "mechanism": _NUMBERS[mechanism], "iterations": ITERATIONS, "salt": SALT.hex(),
            "salted_password": key,
        }
    ])  # fmt: skip


def delete(wire: Wire, name: str, mechanism: str) -> None:
    """Delete a user's credential."""
    _alter(wire, deletions=[{"name": name, "mechanism": _NUMBERS[mechanism]}])


def _alter(wire: Wire, **changes: list[Plain]) -> None:
    answer = plain(wire.ask(request("AlterUserScramCredentials", {"deletions": [], "upsertions": [], **changes}), 0))
    assert not any(each["error_code"] for each in answer["results"]), answer


def acl(wire: Wire, topic: str, *, deletes: bool = False) -> None:
    """Let alice read a topic, or no more."""
    facts = {"principal": "User:alice", "host": "*", "operation": 3, "permission_type": 3}
    if deletes:
        wanted: dict[str, Plain] = {
            "resource_type_filter": 2, "resource_name_filter": topic, "pattern_type_filter": 3,
            "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        answer = plain(wire.ask(request("DeleteAcls", {"filters": [wanted]}), 3))
        assert answer["filter_results"][0]["matching_acls"], answer
        return
    created = {"resource_type": 2, "resource_name": topic, "resource_pattern_type": 3, **facts}
    answer = plain(wire.ask(request("CreateAcls", {"creations": [created]}), 3))
    assert not answer["results"][0]["error_code"], answer


def write(kafka: Kafka) -> None:
    """Fill the directory of a Kafka that does not run."""
    with kafka.running(*_AUTHORIZER, "metadata.log.max.record.bytes.between.snapshots=1"), Wire(kafka.port) as wire:
        put(wire, "alice", "SCRAM-SHA-256", "first of alice")
        put(wire, "alice", "SCRAM-SHA-512", "first of alice")
        put(wire, "Jürgen 😀", "SCRAM-SHA-256", "pa\u0308ss")
        put(wire, "gone", "SCRAM-SHA-256", "gone")
        acl(wire, "a")
        acl(wire, "b")
    with kafka.running(*_AUTHORIZER), Wire(kafka.port) as wire:
        put(wire, "alice", "SCRAM-SHA-256", "changed later")
        put(wire, "late", "SCRAM-SHA-512", "behind the snapshot")
        delete(wire, "gone", "SCRAM-SHA-256")
        acl(wire, "a", deletes=True)


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without indexes, which are megabytes of zeros."""
    return None if member.name.endswith((".index", ".timeindex", ".deleted")) else member


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = Kafka(kafka_script(), Path(folder) / "kafka")
        kafka.data.mkdir()
        write(kafka)
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            archive.add(kafka.directory, arcname="logs", filter=_wanted)


if __name__ == "__main__":
    main()
