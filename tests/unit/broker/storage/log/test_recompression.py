"""Recompression: which batches get which codec, what of them stays, and what is refused."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig, load_config
from seglog_broker.storage.log import recompression as recompressing
from seglog_broker.storage.log.recompression import (
    IN_LINE_BYTES_MAX,
    Recompression,
    recompress,
    recompress_small,
    recompression,
)
from seglog_protocol import record_batch
from seglog_protocol.batch_builder import NewRecord, encode_batch
from seglog_protocol.compression import LEVELS, Codec, compress
from seglog_protocol.errors import InvalidRecordError, MessageTooLargeError
from seglog_protocol.records import decode_records
from tests.support import each_case, examples, memory_taken

CODECS: Final = list(Codec)
LIMIT: Final = 1_048_588
MIB: Final = 1024 * 1024
PLAIN: Final = Recompression(Codec.NONE, None, LIMIT)


def view(batch: bytes) -> memoryview:
    return memoryview(bytearray(batch))


def topic(**settings: str | int) -> TopicConfig:
    named = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    return load_config(None, "", {}, named)[0].topic_defaults


# --- What a topic wants -----------------------------------------------------------------------------------------------


def test_batches_stay_as_they_were_sent_unless_the_topic_says_otherwise() -> None:
    assert recompression(TopicConfig()) is None
    assert recompression(topic(compression_type="producer", compression_gzip_level=1)) is None


@each_case(
    ("name", "codec", "level"),
    [
        ("uncompressed", Codec.NONE, None),
        ("gzip", Codec.GZIP, -1),
        ("snappy", Codec.SNAPPY, None),
        ("lz4", Codec.LZ4, 9),
        ("zstd", Codec.ZSTD, 3),
    ],
)
def test_a_topic_names_the_codec_and_kafkas_level_of_it_holds(name: str, codec: Codec, level: int | None) -> None:
    assert recompression(topic(compression_type=name)) == Recompression(codec, level, LIMIT)


def test_every_codec_has_its_own_level_and_the_size_of_the_topic_is_the_limit() -> None:
    levels = {"compression_gzip_level": 1, "compression_lz4_level": 17, "compression_zstd_level": -7}
    for name, level in (("gzip", 1), ("lz4", 17), ("zstd", -7), ("snappy", None), ("uncompressed", None)):
        wanted = recompression(topic(compression_type=name, message_max_bytes=5_000, **levels))
        assert wanted is not None
        assert (wanted.level, wanted.batch_bytes_max) == (level, 5_000)


# --- What becomes of a batch ------------------------------------------------------------------------------------------

_FIELD = st.none() | st.binary(max_size=200)
_HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3)
_RECORDS = st.lists(st.tuples(st.integers(-1, 2**50), _FIELD, _FIELD, _HEADERS), min_size=1, max_size=20)
_LEVELS = {codec: st.sampled_from([level for level in levels if level >= -10]) for codec, levels in LEVELS.items()}


@given(
    records=_RECORDS,
    copies=st.integers(1, 40),
    codec=st.sampled_from(CODECS),
    target=st.sampled_from(CODECS),
    producer=st.none() | st.tuples(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
    data=st.data(),
)
@settings(max_examples=examples(300), deadline=None)
def test_records_and_what_the_header_says_of_them_stay(
    records: list[NewRecord],
    copies: int,
    codec: Codec,
    target: Codec,
    producer: tuple[int, int, int] | None,
    data: st.DataObject,
) -> None:
    producer_id, epoch, sequence = producer or (
        record_batch.NO_PRODUCER_ID,
        record_batch.NO_PRODUCER_EPOCH,
        record_batch.NO_SEQUENCE,
    )
    batch = view(
        encode_batch(
            records * copies, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
    )
    header = record_batch.parse_header(batch)
    level = data.draw(_LEVELS[target]) if target in _LEVELS else None
    wanted = Recompression(target, level, LIMIT)
    new = recompress(header, batch, wanted)
    now = record_batch.parse_header(new)
    assert decode_records(now, new) == decode_records(header, batch)
    assert record_batch.verify_crc(new, 0, now)
    assert now.size == len(new)
    assert now.codec is target
    assert now == header._replace(batch_length=now.batch_length, crc=now.crc, attributes=int(target))
    assert recompress_small(header, batch, wanted) in (None, new)
    opened = len(recompress(header, batch, PLAIN)) - record_batch.HEADER_SIZE
    if max(opened, len(batch) - record_batch.HEADER_SIZE) <= recompressing._LEVEL_IN_LINE_BYTES_MAX:
        assert recompress_small(header, batch, wanted) == new, "the smallest ones are done at once, whatever the level"


def test_bits_other_than_the_codec_stay() -> None:
    """Producers may not set them today; a batch of a transaction will have one."""
    plain = encode_batch([(5, b"k", b"v", ())], codec=Codec.LZ4, transactional=True)
    new = recompress(record_batch.parse_header(plain), view(plain), Recompression(Codec.ZSTD, 3, LIMIT))
    assert record_batch.parse_header(new).is_transactional
    assert record_batch.parse_header(new).codec is Codec.ZSTD


def test_the_level_is_used() -> None:
    records: list[NewRecord] = [
        (number, b"%d" % number, b"%d" % (number * 7919 % 10_007), ()) for number in range(3_000)
    ]
    batch = view(encode_batch(records))
    for codec, low, high in ((Codec.GZIP, 1, 9), (Codec.LZ4, 9, 17), (Codec.ZSTD, -7, 19)):
        sizes = [
            len(recompress(record_batch.parse_header(batch), batch, Recompression(codec, level, LIMIT)))
            for level in (low, high)
        ]
        assert sizes[1] < sizes[0], codec


# --- Bounds -----------------------------------------------------------------------------------------------------------


def bomb(size: int = 8 * MIB) -> bytes:
    """Some kilobytes that decompress to megabytes."""
    return encode_batch([(-1, b"k", bytes(size), ())], codec=Codec.GZIP)


@each_case(
    ("name", "level", "size"),
    [
        ("uncompressed", None, IN_LINE_BYTES_MAX),
        ("snappy", None, IN_LINE_BYTES_MAX),
        ("lz4", 9, IN_LINE_BYTES_MAX),
        ("zstd", 3, IN_LINE_BYTES_MAX),
        ("gzip", -1, IN_LINE_BYTES_MAX // 4),
        ("lz4", 17, 1024),
        ("zstd", 22, 1024),
        ("gzip", 9, 1024),
    ],
)
def test_only_what_is_quick_is_done_on_the_loop(name: str, level: int | None, size: int) -> None:
    named = {"compression_type": name} | ({} if level is None else {f"compression_{name}_level": level})
    wanted = recompression(topic(**named))
    assert wanted is not None
    source = Codec.NONE if name != "uncompressed" else Codec.LZ4
    around = (
        len(encode_batch([(-1, None, bytes(size), ())])) - record_batch.HEADER_SIZE - size
    )  # what a record has besides
    for value_size, is_small in ((size - around, True), (size + 1 - around, False)):
        batch = view(encode_batch([(-1, None, bytes(value_size), ())], codec=source))
        assert (recompress_small(record_batch.parse_header(batch), batch, wanted) is not None) is is_small


def test_of_a_batch_that_opens_to_much_no_more_than_the_bound_is_opened() -> None:
    batch = view(bomb())
    wanted = Recompression(Codec.ZSTD, 3, LIMIT)
    with memory_taken() as taken:
        assert recompress_small(record_batch.parse_header(batch), batch, wanted) is None, "a process does it"
    assert taken() < 2 * IN_LINE_BYTES_MAX + MIB


def test_a_batch_that_opens_to_more_than_any_may_is_refused() -> None:
    batch = view(bomb())
    with pytest.raises(InvalidRecordError, match=f"cannot be read: .* more than {4 * MIB} bytes"):
        recompress(record_batch.parse_header(batch), batch, Recompression(Codec.ZSTD, 3, LIMIT), 4 * MIB)


def test_records_that_nobody_would_open_again_are_not_compressed() -> None:
    batch = view(encode_batch([(-1, None, bytes(5 * MIB), ())]))
    with pytest.raises(MessageTooLargeError, match="to be compressed they may have 4194304: send less") as caught:
        recompress(record_batch.parse_header(batch), batch, Recompression(Codec.ZSTD, 3, 100 * MIB), 4 * MIB)
    assert caught.value.facts == {"size": len(batch) - record_batch.HEADER_SIZE, "limit": 4 * MIB}


def test_a_batch_that_is_too_large_afterwards_is_refused_as_kafka_does() -> None:
    batch = view(encode_batch([(-1, None, bytes(LIMIT), ())], codec=Codec.ZSTD))
    assert len(batch) < 1_000
    plain = len(encode_batch([(-1, None, bytes(LIMIT), ())]))
    with pytest.raises(
        MessageTooLargeError, match=f"has {plain} bytes, more than max.message.bytes = {LIMIT}"
    ) as caught:
        recompress(record_batch.parse_header(batch), batch, PLAIN)
    assert caught.value.facts == {"size": plain, "limit": LIMIT}
    exact = Recompression(Codec.NONE, None, plain)
    assert len(recompress(record_batch.parse_header(batch), batch, exact)) == plain, "the limit itself is not too much"


@each_case("codec", [codec for codec in Codec if codec])
@each_case("damage", ["cut", "other bytes", "more bytes"])
def test_a_stream_that_cannot_be_opened_is_refused_on_the_loop_and_in_a_process(codec: Codec, damage: str) -> None:
    batch = encode_batch([(-1, b"k", b"v" * 100, ())], codec=codec)
    stored = batch[record_batch.HEADER_SIZE :]
    streams = {"cut": stored[:-3], "other bytes": b"\xfe" * 30, "more bytes": stored + b"\xfe" * 3}
    sealed = view(record_batch.seal_batch(record_batch.parse_header(batch), streams[damage]))
    header, wanted = record_batch.parse_header(sealed), Recompression(Codec.NONE, None, LIMIT)
    for attempt in (recompress, recompress_small):
        with pytest.raises(InvalidRecordError, match="the batch's records cannot be read: "):
            attempt(header, sealed, wanted)


def test_the_raw_snappy_block_of_librdkafka_becomes_a_stream_that_kafka_reads() -> None:
    from cramjam import snappy  # noqa: PLC0415

    records: list[NewRecord] = [(-1, b"k", b"v" * 100, ())]
    plain = encode_batch(records)
    raw = record_batch.seal_batch(
        record_batch.parse_header(plain)._replace(attributes=int(Codec.SNAPPY)),
        bytes(snappy.compress_raw(plain[record_batch.HEADER_SIZE :])),
    )
    new = recompress(record_batch.parse_header(raw), view(raw), Recompression(Codec.LZ4, 9, LIMIT))
    assert new[record_batch.HEADER_SIZE :] == compress(Codec.LZ4, plain[record_batch.HEADER_SIZE :])
