"""What the tests of a change of hands have in common: records and commits of all kinds, and everything that is seen."""

from collections.abc import Sequence
from typing import Any, Final

from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.record_batch import iter_batches
from tests.interop.kafka_cases import topic_ids
from tests.interop.kafka_wire import Plain, Wire, plain, request

BASE_TIME: Final = 1_700_000_000_000
GROUP: Final = "readers"
TIMES: Final = (BASE_TIME - 1, *range(BASE_TIME, BASE_TIME + 60, 7))
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


def produce(wire: Wire, topic: str, batch: bytes, transactional_id: str | None = None, partition: int = 0) -> int:
    """Append a batch; the offset of its first record."""
    data = {"index": partition, "records": batch.hex()}
    asked = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [data]}],
    }
    answer = ask(wire, "Produce", asked, 9, "responses", 0, "partition_responses", 0, "error_code")
    offset: int = answer["responses"][0]["partition_responses"][0]["base_offset"]
    return offset


def find_coordinator(wire: Wire, key: str, kind: int) -> None:
    """Kafka makes the topic of committed offsets (0) or of transactions (1) when it is first asked."""
    asked: dict[str, Plain] = {"key_type": kind, "coordinator_keys": [key]}
    ask(wire, "FindCoordinator", asked, 4, "coordinators", 0, "error_code")


def batch_of(prefix: str, count: int, codec: Codec = Codec.NONE, **more: Any) -> bytes:
    """Records from BASE_TIME on, ten milliseconds apart, with keys and headers; ``more`` is for the builder."""
    builder = BatchBuilder(**more)
    for number in range(count):
        builder.append(BASE_TIME + number * 10, b"k%d" % number, f"{prefix} {number} ".encode() * 9, (("h", b"v"),))
    return builder.build(codec)


def begin_transaction(wire: Wire, transactional_id: str, prefix: str, *, timeout_ms: int = 60_000) -> dict[str, Plain]:
    """Five records in each partition of ``ledger`` in a transaction; its producer, as EndTxn names it."""
    find_coordinator(wire, transactional_id, 1)
    asked: dict[str, Plain] = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    producer = ask(wire, "InitProducerId", asked, 4, "error_code")
    who = {"producer_id": producer["producer_id"], "producer_epoch": producer["producer_epoch"]}
    added = {"transactional_id": transactional_id, **who, "topics": [{"name": "ledger", "partitions": [0, 1]}]}
    named = {"v3_and_below_" + name: value for name, value in added.items()}
    place = ("results_by_topic_v3_and_below", 0, "results_by_partition", 0, "partition_error_code")
    ask(wire, "AddPartitionsToTxn", named, 3, *place)
    for partition in (0, 1):
        batch = batch_of(prefix, 5, transactional=True, base_sequence=0, **who)
        produce(wire, "ledger", batch, transactional_id, partition)
    return who


def transaction(wire: Wire, transactional_id: str, prefix: str, *, committed: bool) -> None:
    """Five records in each partition of ``ledger``, and the end of their transaction."""
    who = begin_transaction(wire, transactional_id, prefix)
    ask(wire, "EndTxn", {"transactional_id": transactional_id, **who, "committed": committed}, 3, "error_code")
    for partition in (0, 1):
        while True:  # the markers are written after the answer
            _, end, stable, _ = fetched(wire, "ledger", partition)
            if end == stable:
                break


def commit(wire: Wire, offsets: dict[str, int]) -> None:
    """Commit offsets of the first partitions for GROUP."""
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


def seen(wire: Wire, times: Sequence[int] = TIMES) -> dict[str, Any]:
    """What a client gets of everything there is: records, look-ups of offsets by ``times``, and what was committed.

    Every topic has the partitions 0 and 1.
    """
    ids = {name: topic_id for name, topic_id in topic_ids(wire).items() if not name.startswith("__")}
    found: dict[str, Any] = {"ids": ids}
    for topic in ids:
        for partition in (0, 1):
            found[f"{topic}-{partition}"] = {
                "records": fetched(wire, topic, partition),
                "committed records": fetched(wire, topic, partition, isolation=1),
                "look-ups": [listed(wire, topic, partition, at) for at in (-1, -2, -3, *times)],
            }
    asked: dict[str, Plain] = {"group_id": GROUP, "topics": None}
    committed = ask(wire, "OffsetFetch", asked, 7, "error_code")["topics"]
    found["offsets"] = {
        topic["name"]: [(each["committed_offset"], each["metadata"]) for each in topic["partitions"]]
        for topic in committed
    }
    return found


def listed(wire: Wire, topic: str, partition: int, at: int) -> tuple[int, int]:
    """The offset and the timestamp that ListOffsets has for a time, or for -1 and its like."""
    item = {"partition_index": partition, "timestamp": at}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [item]}]}
    answer = ask(wire, "ListOffsets", asked, 7, "topics", 0, "partitions", 0, "error_code")
    told = answer["topics"][0]["partitions"][0]
    return told["offset"], told["timestamp"]


def fetched(wire: Wire, topic: str, partition: int, isolation: int = 0) -> tuple[str, int, int, list[Plain]]:
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
