"""What bad records and stale clients get on the Kafka port: the error codes that Kafka gives.

Sources: Kafka's ProduceRequest.validateRecords, LogValidator, ReplicaManager and KafkaApis.
"""

from typing import Any

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock

from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.handlers.produce import RECORDS_NAMED_MAX
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.definitions import definition, message_names
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Struct
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import (
    NOW,
    KafkaPeer,
    KafkaServed,
    codes,
    fetch,
    found,
    kafka,
    latest,
    produce,
    results,
)
from tests.unit.protocol.kafka.instances import Instances

BATCH = batch(b"value")
PRODUCED = messages.ProduceResponse

PRODUCE_VERSIONS = [3, 5, 7, 8, 9, 12, 13]


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


BAD: dict[str, tuple[str, Any, ErrorCode]] = {
    "wrong checksum": ("plain", BATCH[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
    "two batches": ("plain", BATCH * 2, ErrorCode.INVALID_RECORD),
    "null": ("plain", None, ErrorCode.INVALID_RECORD),
    "a part of a header": ("plain", BATCH[:40], ErrorCode.INVALID_RECORD),
    "magic 3": ("plain", changed(BATCH, 16, 3), ErrorCode.INVALID_RECORD),
    "a batch that is cut off": ("plain", BATCH[:-3], ErrorCode.CORRUPT_MESSAGE),
    "too large for the topic": ("small", batch(bytes(500)), ErrorCode.MESSAGE_TOO_LARGE),
    "unknown codec": ("plain", changed(BATCH, 22, 7), ErrorCode.CORRUPT_MESSAGE),
    "unknown topic": ("missing", BATCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "very long name": ("m" * 32_000, BATCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
}


@each_case("version", PRODUCE_VERSIONS)
@each_case("what", BAD)
async def test_a_batch_that_cannot_be_appended_has_an_error_and_those_beside_it_have_none(
    served: KafkaServed, peer: KafkaPeer, what: str, version: int
) -> None:
    topic, data, code = BAD[what]
    if version == 13 and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    await peer.send(
        produce(("plain", 0, BATCH), (topic, 1, data), ("keyed", 2, batch(b"v", key=b"k")), served=served), version
    )
    told = sorted(results(await peer.receive(PRODUCED)))
    before = max(offset for _, offset in told)
    assert (sorted(error for error, _ in told), (code, -1) in told) == (sorted([0, 0, code]), True)
    assert served.broker.directory.registry.topics.keys() == {"plain", "keyed", "small", "stamped"}
    await peer.send(produce(("plain", 0, BATCH)), 9)
    assert results(await peer.receive(PRODUCED)) == [(0, before + 1)], "the connection is as good as before"


async def test_a_response_names_no_more_bad_records_than_its_bound_over_all_partitions() -> None:
    keyless = encode_batch([(NOW, None, None, ())] * (RECORDS_NAMED_MAX * 2 // 3))
    async with kafka() as served:
        peer = await served.connect()
        await peer.send(produce(("keyed", 0, keyless), ("keyed", 1, keyless), served=served), 12)
        found = (await peer.receive(PRODUCED)).responses[0].partition_responses
    assert [result.error_code for result in found] == [ErrorCode.INVALID_RECORD] * 2
    assert sum(len(result.record_errors) for result in found) == RECORDS_NAMED_MAX


async def test_a_fetch_of_damage_is_an_error_and_goes_on_behind_what_a_crash_may_have_torn(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    for _ in range(3):
        await peer.ask(produce(("plain", 0, BATCH), served=served), 12)
    log = served.broker.partitions.partition("plain", 0).log
    log.roller.roll(3, RollReason.SIZE)
    log.note_damage([DamagedRange(1, 2, 0, len(BATCH), 2 * len(BATCH))])
    for told, expected in (([], (ErrorCode.CORRUPT_MESSAGE, -1, 0)), ([(1, 2)], (0, 3, len(BATCH)))):
        log.state.unsynced = told
        assert found(await peer.ask(fetch(("plain", 0, 1)), 12)) == [expected]


async def test_offsets_come_with_the_leader_epoch_under_which_their_records_were_written(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    log = served.broker.partitions.partition("plain", 0).log
    for epoch in (0, 3, 7):
        log.epochs.assign(epoch, log.log_end_offset)
        await peer.ask(produce(("plain", 0, batch(b"value", timestamp=NOW + epoch)), served=served), 12)
    for moment, offset, epoch in ((-2, 0, 0), (NOW + 1, 1, 3), (NOW + 7, 2, 7), (-3, 2, 7)):
        request = latest("plain", 0)
        request.topics[0].partitions[0].timestamp = moment
        found = (await peer.ask(request, 11)).topics[0].partitions[0]
        assert (found.offset, found.leader_epoch) == (offset, epoch)


@pytest.mark.parametrize(("version", "code"), [(3, 76), (6, 76), (7, 0), (13, 0)])
async def test_zstd_needs_version_7(served: KafkaServed, peer: KafkaPeer, version: int, code: int) -> None:
    data = encode_batch([(NOW, b"key", bytes(300), ())], codec=Codec.ZSTD)
    assert results(await peer.ask(produce(("plain", 0, data), served=served), version)) == [(code, -1 if code else 0)]


@pytest.mark.parametrize("is_bad_first", [True, False])
@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
async def test_with_acks_0_there_is_no_response(
    served: KafkaServed, peer: KafkaPeer, version: int, is_bad_first: bool
) -> None:
    """With acks 0 there is no response, and a failure closes the connection."""
    await peer.send(produce(("plain", 0, BATCH), acks=0, served=served), version, silent=True)
    assert (await peer.ask(latest("plain", 0), 5)).topics[0].partitions[0].offset == 1
    with capture_logs() as logged:
        parts = [("plain", 0, BATCH), ("plain", 1, encode_batch([(NOW + 10**8, b"key", b"value", ())]))]
        bad = produce(*(reversed(parts) if is_bad_first else parts), acks=0, served=served)
        await peer.send(bad, version, silent=True)
        await peer.send(produce(("plain", 0, BATCH)), 9)
        assert await peer.rest() == b""
    assert [entry["event"] for entry in logged if entry["log_level"] == "warning"] == ["append_failed"]
    ends = [served.broker.partitions["plain", number].log.log_end_offset for number in range(2)]
    assert ends == [2, 0], "what was good is appended, as in Kafka; what came behind it is not"


async def test_the_time_of_an_append_is_told_only_where_it_is_stamped(peer: KafkaPeer) -> None:
    response = await peer.ask(produce(("plain", 0, BATCH), ("stamped", 0, BATCH)), 9)
    assert [t.partition_responses[0].log_append_time_ms for t in response.responses] == [-1, NOW]


# --- Fetch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["an unknown topic", "an unknown id", "an offset out of range"])
async def test_a_response_of_nothing_but_errors_is_held(peer: KafkaPeer, name: str, autojump_clock: MockClock) -> None:
    """Some clients ask again at once: eight thousand times a second."""
    wanted = fetch(("missing" if "topic" in name else "plain", 0, 99), max_wait_ms=5_000)
    began = autojump_clock.current_time()
    [(code, _, _)] = found(await peer.ask(wanted, 13 if "id" in name else 12))
    assert code
    assert 0.1 <= autojump_clock.current_time() - began < 1


async def test_a_session_that_is_named_is_not_found(peer: KafkaPeer) -> None:
    response = await peer.ask(fetch(("plain", 0, 0), session_id=5, session_epoch=3), 12)
    assert (response.error_code, response.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    response = await peer.ask(fetch(("plain", 0, 0), session_epoch=0), 12)
    assert (response.error_code, response.session_id) == (0, 0)
    assert found(response) == [(0, 0, 0)]


async def test_an_older_leader_epoch_is_fenced(served: KafkaServed) -> None:
    for number in range(3):
        served.broker.partitions["plain", number].log.leader_epoch = 4
    peer = await served.connect()
    for epoch, code in ((3, ErrorCode.FENCED_LEADER_EPOCH), (4, 0), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        assert found(await peer.ask(fetch(("plain", 0, 0), epoch=epoch), 12))[0][0] == code
        assert codes((await peer.ask(latest("plain", 0, epoch=epoch), 5)).topics[0].partitions) == [code]
        assert await told_epoch(served, epoch) == code


async def told_epoch(served: KafkaServed, epoch: int) -> Any:
    """The error code of OffsetForLeaderEpoch from a client that knows this epoch."""
    cls = messages.OffsetForLeaderEpochRequest
    peer = await served.connect()
    place = cls.OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=0)
    response = await peer.ask(cls(topics=[cls.OffsetForLeaderTopic(topic="plain", partitions=[place])]), 4)
    return response.topics[0].partitions[0].error_code


# --- Errors of the engine, by api and version -------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, 3, 5])
@pytest.mark.parametrize(
    ("transactional_id", "code"),
    [(None, 0), ("", ErrorCode.INVALID_REQUEST), ("t", ErrorCode.INVALID_TRANSACTION_TIMEOUT)],
)
async def test_a_producer_has_no_empty_transactional_id_and_a_timeout_if_it_has_one(
    peer: KafkaPeer, transactional_id: str | None, code: int, version: int
) -> None:
    with capture_logs() as logged:
        response = await peer.ask(messages.InitProducerIdRequest(transactional_id=transactional_id), version)
    assert response.error_code == code
    assert (response.producer_id >= 0) == (not code)
    told = [entry["reason"] for entry in logged if entry["event"] == "transactional_producer_refused"]
    assert bool(told) == bool(code), "the response has no room for words"
    if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        assert "transaction.max.timeout.ms" in told[0]


LONG = "n" * 32_700


@each_case("api_key", [key for key in apis.APIS if key != messages.ProduceRequest.API_KEY])
async def test_what_is_said_of_very_long_strings_fits_every_response(served: KafkaServed, api_key: int) -> None:
    """All strings at once, in the first and last version: it is answered, by an error or not, and no bug is logged."""
    name = next(name for name in message_names() if name.endswith("Request") and definition(name).api_key == api_key)
    versions = apis.APIS[api_key].versions
    for version in {versions[0], versions[-1]}:
        peer = await served.connect()
        request = Instances(version).message(name, version)
        lengthen(request)
        assert isinstance(request, Request)
        with capture_logs() as logged:
            await peer.stream.send_all(peer.frame(request, version))
            if isinstance(request, messages.FetchRequest):
                await peer.stream.aclose()  # it may wait for long
            else:
                assert await peer.receive_frame()
        assert [entry for entry in logged if entry["log_level"] == "error"] == []


def lengthen(part: Struct) -> None:
    """Make all strings of a request long, but keep it below a mebibyte."""
    for field in part.__slots__:
        value = getattr(part, field)
        if isinstance(value, str):
            setattr(part, field, LONG)
        elif isinstance(value, list):
            del value[2:]
            for item in value:
                if isinstance(item, Struct):
                    lengthen(item)
