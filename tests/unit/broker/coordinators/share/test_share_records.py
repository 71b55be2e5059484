"""Records of share partitions: bytes as Kafka's messages have them, and what is not as it should be."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from seglog_broker.coordinators.share import records
from seglog_broker.coordinators.share.in_flight import StateBatch
from seglog_broker.coordinators.share.records import (
    NO_COUNT,
    SNAPSHOT,
    UPDATE,
    Header,
    PartitionKey,
    ShareReplay,
    encode_keys,
    encode_snapshot,
    encode_update,
    tombstone,
)
from seglog_broker.coordinators.state_machine import Record, encode_key, encode_record
from seglog_protocol.kafka import messages
from seglog_protocol.steps import finished
from tests.support import examples

KEY = PartitionKey("päy:roll", bytes(range(16)), 7)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
HEADERS = st.builds(Header, INT32, INT32, INT32, INT64, INT32)
BATCHES = st.lists(
    st.builds(StateBatch, INT64, INT64, st.integers(-128, 127), st.integers(-32_768, 32_767)), max_size=200
)


def message_of(name: str, batches: list[StateBatch], **fields: Any) -> Any:
    cls = getattr(messages, name)
    return cls(
        **fields,
        state_batches=[
            cls.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
            for first, last, state, count in batches
        ],
    )


@settings(max_examples=examples(300))
@given(HEADERS, BATCHES, INT64, INT64)
def test_records_are_as_the_codec_of_kafkas_messages_writes_them(
    header: Header, batches: list[StateBatch], created_ms: int, written_ms: int
) -> None:
    said = {
        "snapshot_epoch": header.snapshot_epoch,
        "leader_epoch": header.leader_epoch,
        "start_offset": header.start_offset,
        "delivery_complete_count": header.finished,
    }
    times = {"create_timestamp": created_ms, "write_timestamp": written_ms}
    update = message_of("ShareUpdateValue", batches, **said)
    snapshot = message_of("ShareSnapshotValue", batches, **said, **times, state_epoch=header.state_epoch)
    keys: dict[str, Any] = {"group_id": KEY.group, "topic_id": KEY.topic_id, "partition": KEY.partition}
    expected = [
        finished(encode_record(Record(messages.ShareSnapshotKey(**keys), SNAPSHOT, snapshot))),
        finished(encode_record(Record(messages.ShareUpdateKey(**keys), UPDATE, update))),
    ]
    values = *encode_snapshot(header, (created_ms, written_ms), batches), *encode_update(header, batches)
    assert list(zip(encode_keys(KEY), values, strict=True)) == expected


def test_a_partition_is_looked_for_where_kafka_does() -> None:
    assert KEY.text == "päy:roll:AAECAwQFBgcICQoLDA0ODw:7"
    assert encode_key(tombstone(KEY)) == encode_keys(KEY)[0]


def test_what_one_record_cannot_hold_is_in_updates_behind_it() -> None:
    batches = [StateBatch(2 * number, 2 * number, 2, 1) for number in range(2 * records.BATCHES_MAX + 1)]
    header = Header(1, 0, 0, 0, len(batches))
    snapshot, update = encode_keys(KEY)
    values = encode_snapshot(header, (1, 1), batches)
    written = list(zip([snapshot, update, update], values, strict=True))
    assert states(*written) == (0, len(batches), [tuple(batch) for batch in batches])
    parts = encode_update(header, batches)
    assert len(parts) == 3
    assert states(*written, *((update, part) for part in parts)) == states(*written)


def replayed(*written: tuple[bytes, bytes | None]) -> ShareReplay:
    replay = ShareReplay()
    for key, value in written:
        finished(replay.take(key, value))
    return replay


def states(*written: tuple[bytes, bytes | None]) -> tuple[int, int, list[tuple[int, int, int, int]]]:
    """Start, number of what is finished, and batches of the one partition there is."""
    [(key, state)] = replayed(*written).states.items()
    assert key == KEY
    batches = [(run.first, run.last, run.state, run.count) for run in state.runs]
    return state.header.start_offset, state.header.finished, batches


def snapshot(start: int, *batches: tuple[int, int, int, int], finished: int = 0) -> tuple[bytes, bytes]:
    [value] = encode_snapshot(Header(3, 2, 1, start, finished), (5, 6), [StateBatch(*each) for each in batches])
    return encode_keys(KEY)[0], value


def update(start: int, *batches: tuple[int, int, int, int], finished: int = 0, epoch: int = 3) -> tuple[bytes, bytes]:
    [value] = encode_update(Header(epoch, 0, 1, start, finished), [StateBatch(*each) for each in batches])
    return encode_keys(KEY)[1], value


def test_updates_follow_their_snapshot_and_the_next_one_replaces_all() -> None:
    written = [snapshot(0, (0, 9, 0, 1)), update(0, (3, 5, 2, 2), finished=3), update(4, (8, 9, 4, 2), finished=4)]
    assert states(*written) == (4, 4, [(4, 5, 2, 2), (6, 7, 0, 1), (8, 9, 4, 2)])
    assert states(*written, snapshot(6)) == (6, 0, [])
    assert states(*written, update(-1, finished=5)) == (4, 5, [(4, 5, 2, 2), (6, 7, 0, 1), (8, 9, 4, 2)])


def test_the_epoch_of_an_update_is_not_compared_as_in_kafka() -> None:
    assert states(snapshot(0), update(0, (1, 1, 2, 1), epoch=9)) == (0, 0, [(1, 1, 2, 1)])
    assert states(update(5, (5, 6, 2, 1))) == (5, 0, [(5, 6, 2, 1)]), "its snapshot was lost"


def test_a_tombstone_ends_a_partition_and_one_of_updates_is_not_known() -> None:
    snapshots, updates = encode_keys(KEY)
    assert not replayed(snapshot(0), (snapshots, None)).states
    replay = replayed(snapshot(0), (updates, None))
    assert replay.unknown.total() == 1
    assert replay.states


def test_batches_that_cannot_be_are_left_out_with_a_line_in_the_log() -> None:
    wrong = [(5, 3, 2, 1), (1, 2, 2, 1), (11, 11, 5, 1), (12, 12, -1, 1), (13, 13, 0, -1)]
    with capture_logs() as logs:
        assert states(snapshot(4, *wrong, (2, 5, 2, 1), (14, 15, 1, 2))) == (4, 0, [(4, 5, 2, 1), (14, 15, 0, 2)])
    [line] = logs
    assert (line["event"], line["group"], line["batches"]) == ("share_state_repaired", KEY.group, 6)
    with capture_logs() as logs:
        assert states(snapshot(-1, (0, 5, 2, 1), finished=NO_COUNT)) == (-1, -1, []), "it has no start yet"
    assert len(logs) == 1
