"""Logs that Kafka wrote, from its own and other clients' batches: read and written as Kafka does it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

import pytest

from seglog_broker.storage.producers.producer_snapshots import ReplayedBatch
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_protocol.batch_builder import compacted_batch, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import BatchHeader, iter_batches, verify_crc
from seglog_protocol.records import decode_records
from seglog_protocol.segment_files import LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, parse_segment_file_name
from seglog_protocol.transaction_files import (
    AbortedTransaction,
    ProducerEntry,
    decode_end_marker,
    decode_snapshot,
    encode_aborted_transaction,
    encode_snapshot,
)
from tests.interop.golden import AS_KAFKA_LEFT_THEM, load_case, packed_bytes, packed_names
from tests.support import each_case

CASES = ["codecs", "append-time", "compacted", "transactions"]


Files: TypeAlias = dict[str, dict[int, bytes]]
"""The files of a partition: suffix -> base offset -> bytes."""


def partitions(name: str, suffix: str = SNAPSHOT_SUFFIX) -> dict[str, Files]:
    """Those in the archive that have files with ``suffix``."""
    archive = load_case(name).archive
    found: dict[str, Files] = {}
    for path in packed_names(archive):
        partition, _, file = path.rpartition("/")
        parsed = parse_segment_file_name(file)
        if parsed is not None and parsed[1] in {LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX}:
            found.setdefault(partition, {}).setdefault(parsed[1], {})[parsed[0]] = packed_bytes(archive, path)
    return {partition: files for partition, files in found.items() if suffix in files}


def logs(case: str) -> Iterator[tuple[str, dict[str, Any], list[tuple[int, bytes]]]]:
    """Every partition of a case: its name, Kafka's facts about it, and (base offset, bytes) of its segments."""
    files = partitions(case, LOG_SUFFIX)
    for name, facts in load_case(case).partitions.items():
        yield name, facts, sorted(files[name][LOG_SUFFIX].items())


def batches(segments: list[tuple[int, bytes]]) -> Iterator[tuple[BatchHeader, bytes]]:
    for _, log in segments:
        for header, view in iter_batches(log):
            yield header, bytes(view)


@each_case("case", CASES)
def test_every_batch_header_says_what_kafkas_dump_tool_says(case: str) -> None:
    seen = 0
    for name, facts, segments in logs(case):
        columns = facts["disk"]["batch_columns"]
        told = [dict(zip(columns, row, strict=True)) for row in facts["disk"]["batches"]]
        found = []
        for base, log in segments:
            position = 0
            for header, view in iter_batches(log):
                found.append(
                    {
                        "segment": base,
                        "baseOffset": header.base_offset,
                        "lastOffset": header.last_offset,
                        "count": header.record_count,
                        "position": position,
                        "size": header.size,
                        "compresscodec": header.codec.name.lower(),
                        "timestampType": "LogAppendTime" if header.is_log_append_time else "CreateTime",
                        "timestamp": header.max_timestamp,
                        "baseSequence": header.base_sequence,
                        "lastSequence": header.last_sequence,
                        "producerId": header.producer_id,
                        "producerEpoch": header.producer_epoch,
                        "partitionLeaderEpoch": header.leader_epoch,
                        "isTransactional": header.is_transactional,
                        "isControl": header.is_control,
                        "deleteHorizonMs": header.delete_horizon,
                        "crc": header.crc,
                        "isvalid": verify_crc(view, 0, header),
                    }
                )
                position += header.size
            assert position == len(log)
        assert found == told, name
        seen += len(found)
    assert seen


def test_our_encoder_writes_the_bytes_of_every_client() -> None:
    """Of uncompressed batches."""
    seen = 0
    for name, _, segments in logs("codecs"):
        for header, batch in batches(segments):
            if header.codec is not Codec.NONE:
                continue
            seen += 1
            records = [record[1:] for record in decode_records(header, batch)]
            again = encode_batch(
                records,
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
            assert again == batch, name
    assert seen


def test_what_kafka_compacted_comes_out_of_our_compaction_byte_for_byte() -> None:
    rewritten = horizons = emptied = 0
    for name, _, segments in logs("compacted"):
        for header, batch in batches(segments):
            if header.codec is not Codec.NONE:
                continue
            again = compacted_batch(header, decode_records(header, batch))
            assert again == batch, name
            rewritten += header.record_count <= header.last_offset_delta
            horizons += header.has_delete_horizon
            emptied += header.record_count == 0
    assert rewritten
    assert horizons
    assert emptied


# --- Producer snapshots and transaction indexes that Kafka 4.3.1 wrote, against what seglog makes of the same batches -


NEVER_MS: Final = 1 << 60
"""An expiration that keeps everyone: the records are from 2011."""


def batches_of(files: Files) -> Iterator[ReplayedBatch]:
    """Every batch of the partition."""
    for _, content in sorted(files[LOG_SUFFIX].items()):
        with suppress(CorruptRecordError):  # the zeros at the end of a pre-allocated log
            for header, view in iter_batches(content):
                marker = None
                if header.is_control:
                    for record in decode_records(header, view):  # one, or none after compaction
                        marker = decode_end_marker(record.key, record.value)
                yield ReplayedBatch(header, marker)


class Replayed:
    """What seglog makes of a partition, by its batches alone.

    Where the first segments are gone, of what Kafka's oldest snapshot says and the batches behind it.
    """

    def __init__(self, files: Files) -> None:
        self.state = ProducerState(expiration_ms=NEVER_MS)
        self.aborted: list[AbortedTransaction] = []
        self.snapshots: dict[int, list[ProducerEntry]] = {}
        due = sorted(files[SNAPSHOT_SUFFIX])
        if min(files[LOG_SUFFIX]) > 0:
            self.state.restart(due[0], decode_snapshot(files[SNAPSHOT_SUFFIX][due[0]]))
        for header, marker in batches_of(files):
            while due and due[0] <= header.base_offset:
                self.snapshots[due.pop(0)] = sorted(self.state.entries())
            if header.base_offset >= self.state.end_offset:
                aborted = self.state.apply_replayed(header, marker)
                if aborted is not None:
                    self.aborted.append(aborted)
        self.snapshots |= dict.fromkeys(due, sorted(self.state.entries()))


@each_case("name", AS_KAFKA_LEFT_THEM)
def test_every_snapshot_of_kafka_says_what_its_batches_say(name: str) -> None:
    for partition, files in partitions(name).items():
        snapshots = Replayed(files).snapshots
        for offset, content in files[SNAPSHOT_SUFFIX].items():
            assert sorted(decode_snapshot(content)) == snapshots[offset], f"{partition} at {offset}"


@each_case("name", AS_KAFKA_LEFT_THEM)
def test_every_snapshot_of_kafka_that_is_read_is_written_again_byte_for_byte(name: str) -> None:
    for files in partitions(name).values():
        for offset, content in files[SNAPSHOT_SUFFIX].items():
            state = ProducerState(expiration_ms=NEVER_MS)
            state.restart(offset, decode_snapshot(content))
            assert encode_snapshot(state.entries()) == content


@pytest.mark.parametrize("name", ["transactions", "groups"])
def test_aborted_transactions_are_those_of_kafkas_index_byte_for_byte(name: str) -> None:
    """Not so in a compacted log: the records of the aborted transaction are gone, and its beginning with them."""
    count = 0
    for files in partitions(name).values():
        index = b"".join(content for _, content in sorted(files.get(TXN_INDEX_SUFFIX, {}).items()))
        aborted = Replayed(files).aborted
        assert b"".join(map(encode_aborted_transaction, aborted)) == index
        count += len(aborted)
    assert count > 0


@each_case("name", AS_KAFKA_LEFT_THEM)
def test_the_active_producers_are_those_that_kafka_described(name: str) -> None:
    case = load_case(name)
    for partition, files in partitions(name).items():
        described = case.answered.get(partition, {}).get("producers")
        if described is None:
            continue
        ours = [
            {
                "id": entry.producer_id,
                "epoch": entry.producer_epoch,
                "last_sequence": entry.last_sequence,
                "last_timestamp": entry.timestamp,
                "coordinator_epoch": entry.coordinator_epoch,
                "transaction_start": entry.current_txn_first_offset,
            }
            for entry in sorted(Replayed(files).state.entries())
        ]
        assert sorted(described, key=lambda producer: producer["id"]) == ours, partition
