"""Directories that Apache Kafka wrote, shown with the same values as by its own dump-log."""

from pathlib import Path
from typing import Any

import pytest

from seglog_broker.inspect.dump.kinds import DumpOptions, facts_of
from seglog_broker.inspect.facts import (
    AbortedFound,
    Batch,
    EpochFound,
    Fact,
    IndexTotals,
    OffsetEntryFound,
    ProducerFound,
    RecordFound,
    TimeEntryFound,
)
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.interop.golden import AS_KAFKA_LEFT_THEM, LARGE, load_case, unpack
from tests.unit.broker.inspect.dump.support import damage, only

UNFINISHED = {("unclean", "preallocated-0"), ("unclean", "flip-in-active-0")}
"""Kafka was killed while it wrote to their logs: one was allocated in advance, one ends in half a batch."""

SPOILT = {
    # (partition, file): what its edits did to it, in words of our own
    ("index-ahead-0", "00000000000000000210.index"): "entry 4: no batch begins at 900000, the log ends at 6435",
    ("index-odd-length-0", "00000000000000000126.index"): "half an entry",
    ("timeindex-odd-length-0", "00000000000000000126.timeindex"): "half an entry",
    ("snapshot-garbage-0", "00000000000000000240.snapshot"): "its checksum does not match",
}


def told(path: Path, **options: bool) -> list[Fact]:
    return list(facts_of(PosixFileSystem(), str(path), DumpOptions(**options)))


def segment_files(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.suffix == suffix and path.stat().st_size)


def batch_row(segment: int, fact: Batch) -> list[Any]:
    """A batch in the columns of ``batch_columns``."""
    return [
        *(segment, fact.base_offset, fact.last_offset, fact.record_count, fact.position, fact.size, fact.codec),
        *(fact.timestamp_type, fact.max_timestamp, fact.base_sequence, fact.last_sequence),
        *(fact.producer_id, fact.producer_epoch, fact.leader_epoch, fact.is_transactional, fact.is_control),
        *(fact.delete_horizon, fact.crc, fact.crc_ok),
    ]


def producer_row(fact: ProducerFound) -> dict[str, Any]:
    """A producer as dump-log prints it: without its batch if none is known."""
    row = {
        "producerId": fact.producer_id,
        "producerEpoch": fact.producer_epoch,
        "coordinatorEpoch": fact.coordinator_epoch,
        "currentTxnFirstOffset": fact.current_txn_first_offset,
        "lastTimestamp": fact.timestamp,
    }
    if fact.last_offset >= 0:
        row |= {
            "firstSequence": fact.first_sequence,
            "lastSequence": fact.last_sequence,
            "lastOffset": fact.last_offset,
            "offsetDelta": fact.offset_delta,
            "timestamp": fact.timestamp,
        }
    return row


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name in LARGE else []) for name in AS_KAFKA_LEFT_THEM]
)
def test_every_file_is_shown_as_kafka_shows_it(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    unpack(case, tmp_path)
    for partition, facts in case.partitions.items():
        disk, directory = facts["disk"], tmp_path / partition
        batches, markers, entries = [], [], {}
        for path in segment_files(directory, ".log"):
            found = told(path, records=True)
            batches += [batch_row(int(path.stem), fact) for fact in only(found, Batch)]
            markers += [
                [fact.offset, fact.marker, fact.coordinator_epoch] for fact in only(found, RecordFound) if fact.marker
            ]
            assert not damage(found) or (name, partition) in UNFINISHED, path
        assert batches == disk["batches"]
        assert markers == disk.get("control_records", [])
        for path in (*segment_files(directory, ".index"), *segment_files(directory, ".timeindex")):
            found = told(path, verify=True)
            assert damage(found) == [], path
            assert not any(fact.problem for fact in found if isinstance(fact, OffsetEntryFound | TimeEntryFound)), path
            entries[path.name] = only(found, IndexTotals)[0].entries
        if (name, partition) != ("unclean", "preallocated-0"):  # where its dump-log gave up before the indexes
            expected = disk.get("index_entries", {})
            assert {file: count for file, count in entries.items() if count or file in expected} == expected
        snapshots = {path.name: told(path) for path in segment_files(directory, ".snapshot")}
        if (name, partition) != ("unclean", "preallocated-0"):
            assert {
                file: [producer_row(fact) for fact in only(found, ProducerFound)] for file, found in snapshots.items()
            } == disk.get("snapshots", {})
        aborted = {path.name: only(told(path), AbortedFound) for path in segment_files(directory, ".txnindex")}
        assert {
            file: [
                {
                    "version": 0,
                    "producerId": fact.producer_id,
                    "firstOffset": fact.first_offset,
                    "lastOffset": fact.last_offset,
                    "lastStableOffset": fact.last_stable_offset,
                }
                for fact in found
            ]
            for file, found in aborted.items()
        } == disk.get("aborted_transactions", {})
        epochs = only(told(directory / "leader-epoch-checkpoint"), EpochFound)
        assert [[fact.epoch, fact.start_offset] for fact in epochs] == disk["leader_epochs"]


@pytest.mark.parametrize("name", ["unclean-recovered", "damaged-clean-start"])
def test_what_was_spoilt_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    case = load_case(name)
    unpack(case, tmp_path)
    for partition, facts in case.partitions.items():
        edited = {edit["file"] for edit in facts.get("edits") or () if edit["do"] not in ("delete", "create")}
        files = [path for path in (tmp_path / partition).iterdir() if path.name[:20].isdigit()]
        for path in files:
            reasons = [reason for _, _, reason in damage(told(path, verify=True))]
            if (partition, path.name) in SPOILT:
                assert reasons == [SPOILT[partition, path.name]], path
            elif reasons and path.suffix in (".index", ".timeindex"):
                # Spoilt itself, or it has entries for what its log lost.
                assert path.name in edited or path.with_suffix(".log").name in edited, (path, reasons)
            elif reasons and path.suffix == ".log":
                assert path.name in edited or ("unclean", partition) in UNFINISHED, (path, reasons)
