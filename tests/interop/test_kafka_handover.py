"""One directory goes Kafka -> seglog -> Kafka -> seglog, by stopping one and starting the other on it.

Kafka's metadata log stays in the directory, so nothing is exported. After each change of hands records, look-ups,
committed offsets, topic ids and configurations are asked of both, through the same protocol, and are equal.
Transactions are committed and aborted, every codec is there, and both write and commit while they have it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from seglog_broker.storage.directory.adoption import ADOPTED_CONFIG
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.record_batch import iter_batches
from tests.interop.kafka_cases import topic_ids
from tests.interop.kafka_wire import Plain, Wire, plain, request
from tests.interop.make_kafka_metadata import TOPICS, alter, create, settings
from tests.interop.peer import Kafka, kafka_script
from tests.processes import kafka_daemon

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

BASE_TIME: Final = 1_700_000_000_000
KEPT: Final = {
    name: config | {"retention.ms": "-1"} for name, config in TOPICS.items() if name not in ("again", "gone")
}
CODECS: Final = {f"codec-{codec.name.lower()}": {"retention.ms": "-1"} for codec in Codec}
LEDGER: Final = {"ledger": {"retention.ms": "-1"}}
GROUP: Final = "readers"
_RETRIED: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)


def ask(wire: Wire, api: str, fields: dict[str, Plain], version: int, *place: str | int) -> Any:
    """The answer, asked again while its error code, which is at ``place``, tells that something is on its way."""
    while True:
        answer = plain(wire.ask(request(api, fields), version))
        code = answer
        for step in place:
            code = code[step]
        if code not in _RETRIED:
            assert code == ErrorCode.NONE, (api, answer)
            return answer


def produce(wire: Wire, topic: str, batch: bytes, transactional_id: str | None = None, partition: int = 0) -> None:
    data = {"index": partition, "records": batch.hex()}
    asked = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [data]}],
    }
    ask(wire, "Produce", asked, 9, "responses", 0, "partition_responses", 0, "error_code")


def find_coordinator(wire: Wire, key: str, kind: int) -> None:
    """Kafka makes the topic of committed offsets (0) or of transactions (1) when it is first asked."""
    asked: dict[str, Plain] = {"key_type": kind, "coordinator_keys": [key]}
    ask(wire, "FindCoordinator", asked, 4, "coordinators", 0, "error_code")


def batch_of(prefix: str, count: int, codec: Codec = Codec.NONE, **more: Any) -> bytes:
    builder = BatchBuilder(**more)
    for number in range(count):
        builder.append(BASE_TIME + number * 10, b"k%d" % number, f"{prefix} {number} ".encode() * 9, (("h", b"v"),))
    return builder.build(codec)


def transaction(wire: Wire, transactional_id: str, prefix: str, *, committed: bool) -> None:
    """Five records in each partition of ``ledger``, then the end of their transaction."""
    find_coordinator(wire, transactional_id, 1)
    asked: dict[str, Plain] = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
    producer = ask(wire, "InitProducerId", asked, 4, "error_code")
    who = {"producer_id": producer["producer_id"], "producer_epoch": producer["producer_epoch"]}
    added = {"transactional_id": transactional_id, **who, "topics": [{"name": "ledger", "partitions": [0, 1]}]}
    named = {"v3_and_below_" + name: value for name, value in added.items()}
    place = ("results_by_topic_v3_and_below", 0, "results_by_partition", 0, "partition_error_code")
    ask(wire, "AddPartitionsToTxn", named, 3, *place)
    for partition in (0, 1):
        batch = batch_of(prefix, 5, transactional=True, base_sequence=0, **who)
        produce(wire, "ledger", batch, transactional_id, partition)
    ask(wire, "EndTxn", {"transactional_id": transactional_id, **who, "committed": committed}, 3, "error_code")
    for partition in (0, 1):
        while True:  # the markers are written after the answer
            _, end, stable, _ = _fetched(wire, "ledger", partition)
            if end == stable:
                break


def commit(wire: Wire, offsets: dict[str, int]) -> None:
    topics = [
        {
            "name": topic,
            "partitions": [{"partition_index": 0, "committed_offset": at, "committed_metadata": f"at {at}"}],
        }
        for topic, at in offsets.items()
    ]
    find_coordinator(wire, GROUP, 0)
    place = ("topics", 0, "partitions", 0, "error_code")
    ask(wire, "OffsetCommit", {"group_id": GROUP, "topics": topics}, 8, *place)


def seen(wire: Wire) -> dict[str, Any]:
    """What a client gets of everything there is."""
    ids = {name: topic_id for name, topic_id in topic_ids(wire).items() if not name.startswith("__")}
    found: dict[str, Any] = {"ids": ids}
    for topic in ids:
        for partition in (0, 1):
            found[f"{topic}-{partition}"] = {
                "records": _fetched(wire, topic, partition),
                "committed records": _fetched(wire, topic, partition, isolation=1),
                "look-ups": [
                    _listed(wire, topic, partition, at)
                    for at in (-1, -2, -3, BASE_TIME - 1, *range(BASE_TIME, BASE_TIME + 60, 7))
                ],
            }
    asked: dict[str, Plain] = {"group_id": GROUP, "topics": None}
    committed = ask(wire, "OffsetFetch", asked, 7, "error_code")["topics"]
    found["offsets"] = {
        topic["name"]: [(each["committed_offset"], each["metadata"]) for each in topic["partitions"]]
        for topic in committed
    }
    return found


def _listed(wire: Wire, topic: str, partition: int, at: int) -> tuple[int, int]:
    item = {"partition_index": partition, "timestamp": at}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [item]}]}
    answer = ask(wire, "ListOffsets", asked, 7, "topics", 0, "partitions", 0, "error_code")
    told = answer["topics"][0]["partitions"][0]
    return told["offset"], told["timestamp"]


def _fetched(wire: Wire, topic: str, partition: int, isolation: int = 0) -> tuple[str, int, int, list[Plain]]:
    """The bytes of all records, in hex; the high watermark, the last stable offset, the aborted transactions named."""
    records, offset = "", 0
    aborted: list[Plain] = []
    while True:
        item = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "log_start_offset": -1}
        asked = {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "isolation_level": isolation,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [item]}],
        }
        answer = ask(wire, "Fetch", asked, 11, "responses", 0, "partitions", 0, "error_code")
        told = answer["responses"][0]["partitions"][0]
        if not told["records"]:
            return records, told["high_watermark"], told["last_stable_offset"], aborted
        records += told["records"]  # of one segment at most
        aborted += [each for each in told["aborted_transactions"] or () if each not in aborted]
        offset = max(header.last_offset for header, _ in iter_batches(bytes.fromhex(told["records"]))) + 1


def write(wire: Wire, who: str, turn: int) -> None:
    """Append to each topic, and commit."""
    for topic in (*KEPT, *CODECS):
        codec = Codec[topic.removeprefix("codec-").upper()] if topic in CODECS else Codec.NONE
        produce(wire, topic, batch_of(f"{who} {turn}", 6, codec))
    commit(wire, dict.fromkeys((*KEPT, "ledger"), turn + 1))


@contextmanager
def kafka_on(kafka: Kafka) -> Iterator[Wire]:
    # No retention nor compaction: what is compared would depend on when it is asked.
    settled = ("log.cleaner.enable=false", "log.retention.check.interval.ms=86400000")
    few = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")
    with kafka.running(*settled, *few), Wire(kafka.port) as wire:
        yield wire


def test_a_directory_goes_to_seglog_and_back_twice_and_stays_equal(tmp_path: Path) -> None:
    kafka = Kafka(kafka_script(), tmp_path / "kafka")
    kafka.data.mkdir()
    topics = KEPT | CODECS | LEDGER
    with kafka_on(kafka) as wire:
        create(wire, topics)
        write(wire, "kafka", 0)
        for number, committed in enumerate((True, False, True)):
            transaction(wire, f"t-{number}", f"transaction {number}", committed=committed)
        theirs = seen(wire)
        configs = {name: settings(wire, name) for name in topics}
    assert len(theirs["ledger-0"]["committed records"][-1]) == 1, "there is an aborted transaction"
    for turn in (1, 2):
        with kafka_daemon(kafka.directory) as running:
            with Wire(running.kafka_port) as wire:
                assert seen(wire) == theirs
                for name, config in configs.items():
                    ours = settings(wire, name)
                    expected = {key.removeprefix("internal."): value for key, value in config.items()}
                    assert ours == ADOPTED_CONFIG | expected, name
                write(wire, "seglog", turn)
                mine = seen(wire)
            assert running.stop() == 0
        if turn == 2:
            return
        with kafka_on(kafka) as wire:
            assert seen(wire) == mine
            assert {name: settings(wire, name) for name in topics} == configs
            write(wire, "kafka", turn)
            transaction(wire, "t-back", "after the return", committed=False)
            alter(wire, 2, "changed", ("retention.ms", 0, "777777777777"), ("segment.ms", 1, None))
            alter(wire, 2, "plain", ("max.message.bytes", 0, "77777"))
            theirs = seen(wire)
            configs = {name: settings(wire, name) for name in topics}
