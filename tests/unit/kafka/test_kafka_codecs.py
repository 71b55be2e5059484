"""Logs that Kafka wrote, from its own and other clients' batches: read and written as Kafka does it."""

import json
import tarfile
from collections.abc import Iterator
from typing import Any

from seglog_protocol.batch_builder import compacted_batch, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import BatchHeader, iter_batches, parse_header, verify_crc
from seglog_protocol.records import decode_records
from tests.support import each_case, shared_data

CASES = ["codecs", "append-time", "compacted", "transactions"]


def logs(case: str) -> Iterator[tuple[str, dict[str, Any], list[tuple[int, bytes]]]]:
    """Every partition of a case: its name, Kafka's facts about it, and (base offset, bytes) of its segments."""
    facts = json.loads(shared_data("kafka-golden", f"{case}.json").read_bytes())["partitions"]
    segments: dict[str, dict[int, bytes]] = {name: {} for name in facts}
    with tarfile.open(shared_data("kafka-golden", f"{case}.tar.gz")) as archive:
        for member in archive:
            partition, _, name = member.name.removeprefix("./").partition("/")
            content = archive.extractfile(member)
            if name.endswith(".log") and content is not None:
                segments[partition][int(name.removesuffix(".log"))] = content.read()
    for name, fact in facts.items():
        yield name, fact, sorted(segments[name].items())


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


def test_compressed_batches_hold_the_same_records_after_our_own_compression() -> None:
    for name, _, segments in logs("codecs"):
        for header, batch in batches(segments):
            records = decode_records(header, batch)
            again = compacted_batch(header, records)
            assert parse_header(again).codec is header.codec
            assert decode_records(parse_header(again), again) == records, name
