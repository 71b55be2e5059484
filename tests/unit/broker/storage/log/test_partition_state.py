"""The state of a partition that is not in Kafka's files."""

import json

from seglog_broker.storage.log.partition_state import (
    PARTITION_STATE_FILE,
    SEGMENTS_REMEMBERED_MAX,
    PartitionState,
    Roll,
)
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from tests.support import each_case

_PATH = f"/t-0/{PARTITION_STATE_FILE}"


def test_everything_is_read_back_after_a_power_cut() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/": b""})
    state = PartitionState(
        read_only="an fsync failed",
        damaged=[DamagedRange(3, 5, 0, 100, 200), DamagedRange(9, 12, 12, 0, 0, reason="missing")],
        first_append_ms=1,
        last_append_ms=2,
        log_start_reason="truncated",
        rolls={0: Roll("size", 17), 2**60: Roll("idle timer", 18)},
        compacted_before=9,
    )
    state.save(fs, "/t-0")
    assert PartitionState.load(fs.found_after(POWER_LOSS), "/t-0") == state


def test_without_a_file_nothing_is_known() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/": b""})
    assert PartitionState.load(fs, "/t-0") == PartitionState()


@each_case(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"\xff",
        b'{"damaged": [{"start": 1}]}',
        b'{"damaged": 5}',
        b'{"compacted_before": "9"}',
        b'{"compacted_before": -1}',
        b'{"compacted_before": null}',
        b'{"damaged": [[1, 2]]}',
        b'{"first_append_ms": "yesterday"}',
        b'{"last_append_ms": 1.5}',
        b'{"active_segment": []}',
        b'{"read_only": true}',
        b'{"log_start_reason": 3}',
        b'{"rolls": []}',
        b'{"rolls": {"0": 3}}',
        b'{"rolls": {"0": ["size"]}}',
        b'{"rolls": {"zero": ["size", 5]}}',
        b'{"damaged": [{"start_offset": "3", "end_offset": 5, "segment": 0, "position": 1, "end_position": 2}]}',
    ],
)
def test_a_file_that_makes_no_sense_is_an_empty_state(content: bytes) -> None:
    fs = ForgetfulFileSystem()
    fs.load({_PATH: content})
    assert PartitionState.load(fs, "/t-0") == PartitionState()


def test_a_field_that_an_older_version_did_not_know_is_empty() -> None:
    fs = ForgetfulFileSystem()
    fs.load({_PATH: json.dumps({"version": 1, "read_only": "because"}).encode()})
    assert PartitionState.load(fs, "/t-0") == PartitionState(read_only="because")


def test_of_very_many_rolls_the_newest_are_remembered() -> None:
    state = PartitionState()
    state.transaction_indexes = {number: (34, number) for number in range(SEGMENTS_REMEMBERED_MAX + 5)}
    for number in range(SEGMENTS_REMEMBERED_MAX + 5):
        state.note_roll(number, "size", number)
    assert sorted(state.rolls) == list(range(5, SEGMENTS_REMEMBERED_MAX + 5))
    assert json.loads(state.encode())["rolls"]["5"] == ["size", 5]
    assert sorted(map(int, json.loads(state.encode())["transaction_indexes"])) == sorted(state.rolls)
