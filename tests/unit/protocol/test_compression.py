"""The codecs: Kafka's stream formats, refusals of what its readers refuse, and bombs that do not go off."""

import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.compression import LEVELS, Codec, compress, decompress
from seglog_protocol.errors import CorruptRecordError, DecompressedTooLargeError, DecompressionError
from tests.support import each_case

CODECS = list(Codec)
STREAMS = CODECS[1:]
TEXT = b"".join(b"line %d of a text that compresses well\n" % number for number in range(5000))
XERIAL_HEADER = bytes.fromhex("82534e41505059000000000100000001")


@given(data=st.binary(max_size=2000), copies=st.integers(0, 100), codec=st.sampled_from(CODECS))
def test_what_is_compressed_comes_back(data: bytes, copies: int, codec: Codec) -> None:
    whole = data * copies
    assert decompress(codec, compress(codec, whole), len(whole)) == whole


@each_case("codec", STREAMS)
@each_case("size", [0, 1, 32767, 32768, 32769, 65536, 65537, 1_000_003, 20_000_000])
def test_sizes_around_blocks_and_pieces_come_back_from_any_kind_of_buffer(codec: Codec, size: int) -> None:
    data = (TEXT * (size // len(TEXT) + 1))[:size]
    stream = compress(codec, data)
    for buffer in (stream, bytearray(stream), memoryview(b"x" + stream)[1:]):
        assert decompress(codec, buffer, size) == data


@each_case("codec", CODECS)
def test_the_limit_itself_is_allowed_and_one_byte_less_is_not(codec: Codec) -> None:
    stream = compress(codec, TEXT)
    assert decompress(codec, stream, len(TEXT)) == TEXT
    for limit in (len(TEXT) - 1, 70_000, 1, 0):
        with pytest.raises(DecompressedTooLargeError) as caught:
            decompress(codec, stream, limit)
        assert caught.value.limit == limit


@pytest.mark.parametrize("codec", LEVELS)
def test_every_level_is_readable_and_the_others_are_refused(codec: Codec) -> None:
    levels = LEVELS[codec]
    for level in {levels[0], *levels[-30:]}:
        assert decompress(codec, compress(codec, TEXT[:5000], level)) == TEXT[:5000]
    for level in (levels[0] - 1, levels[-1] + 1):
        with pytest.raises(ValueError, match="level"):
            compress(codec, TEXT, level)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_a_codec_without_levels_takes_none(codec: Codec) -> None:
    with pytest.raises(ValueError, match="level"):
        compress(codec, TEXT, 1)


# --- What the streams look like ---------------------------------------------------------------------------------------


def test_gzip_is_one_plain_member() -> None:
    stream = compress(Codec.GZIP, TEXT)
    assert stream[:4] == b"\x1f\x8b\x08\x00"
    assert stream[-4:] == len(TEXT).to_bytes(4, "little")


def test_snappy_is_xerial_framing_around_blocks_of_32_kib() -> None:
    stream = compress(Codec.SNAPPY, TEXT[:70_000])
    assert stream[:16] == XERIAL_HEADER
    sizes, position = [], 16
    while position < len(stream):
        length = int.from_bytes(stream[position : position + 4], "big")
        position += 4
        sizes.append(cramjam.snappy.decompress_raw_len(stream[position : position + length]))
        position += length
    assert sizes == [32768, 32768, 70_000 - 65536]


def test_lz4_is_a_frame_of_independent_64_kib_blocks_without_checksum_and_size() -> None:
    stream = compress(Codec.LZ4, TEXT)
    assert stream[:7].hex() == "04224d18604082"
    assert stream[-4:] == bytes(4)
    assert compress(Codec.LZ4, TEXT, 9) == stream  # Kafka's default level is the fast compressor
    assert len(compress(Codec.LZ4, TEXT, 8)) < len(stream)


def test_zstd_is_one_frame() -> None:
    stream = compress(Codec.ZSTD, TEXT)
    assert stream[:4].hex() == "28b52ffd"
    assert compress(Codec.ZSTD, TEXT, 3) == stream


# --- What else readers accept -----------------------------------------------------------------------------------------


def test_a_bare_snappy_block_is_read_as_librdkafka_writes_it() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_one_after_another_are_read_as_one_as_in_kafka(codec: Codec) -> None:
    stream = compress(codec, TEXT) + compress(codec, b"") + compress(codec, b"end")
    assert decompress(codec, stream) == TEXT + b"end"
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, stream, len(TEXT) + 2)


def test_many_tiny_gzip_members_are_read() -> None:
    assert decompress(Codec.GZIP, compress(Codec.GZIP, b"x") * 20_000) == b"x" * 20_000


def test_zstd_frames_without_a_size_and_skippable_frames_and_checksums_are_read() -> None:
    streaming = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    sizeless = streaming.compress(TEXT) + streaming.flush()
    assert zstandard.get_frame_parameters(sizeless).content_size == zstandard.CONTENTSIZE_UNKNOWN
    skippable = bytes.fromhex("5f2a4d18") + (3).to_bytes(4, "little") + b"abc"
    assert decompress(Codec.ZSTD, skippable + sizeless + skippable, len(TEXT)) == TEXT
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.ZSTD, sizeless, len(TEXT) - 1)


def test_very_many_zstd_frames_are_as_much_work_as_many_bytes() -> None:
    """Each costs some 25 microseconds, whatever is in it: so a small batch of them must not be opened on the loop."""
    frames = compress(Codec.ZSTD, b"x") * 1000
    assert len(frames) <= 16 * 1024
    assert decompress(Codec.ZSTD, frames, 1024 * 1024) == b"x" * 1000
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.ZSTD, frames, 16 * 1024)


@given(data=st.binary(max_size=2000), copies=st.integers(0, 200), level=st.integers(-5, 19))
def test_zstd_is_that_of_another_library(data: bytes, copies: int, level: int) -> None:
    whole = data * copies
    theirs = zstandard.ZstdCompressor(level=level).compress(whole)
    assert decompress(Codec.ZSTD, theirs, len(whole)) == whole
    ours = compress(Codec.ZSTD, whole, level)
    assert zstandard.ZstdDecompressor().decompress(ours) == whole
    assert zstandard.get_frame_parameters(ours).content_size == len(whole)


def test_zstd_of_before_its_first_release_is_refused() -> None:
    old = bytes.fromhex("25b52ffd") + bytes(20)
    for stream in (old, compress(Codec.ZSTD, TEXT) + old):
        with pytest.raises(DecompressionError, match="where a frame should begin"):
            decompress(Codec.ZSTD, stream)


def zstd_frame(window_log: int) -> bytes:
    """A frame without a size: window 2**window_log, and one raw block "abc"."""
    return bytes.fromhex("28b52ffd00") + bytes((window_log - 10 << 3,)) + (3 << 3 | 1).to_bytes(3, "little") + b"abc"


def test_zstd_windows_are_bounded_by_what_kafka_itself_announces() -> None:
    assert decompress(Codec.ZSTD, zstd_frame(27)) == b"abc"
    with pytest.raises(DecompressionError):
        decompress(Codec.ZSTD, zstd_frame(28))


def test_lz4_with_larger_blocks_sizes_and_checksums_is_read() -> None:
    for block_size in (lz4.frame.BLOCKSIZE_MAX256KB, lz4.frame.BLOCKSIZE_MAX1MB, lz4.frame.BLOCKSIZE_MAX4MB):
        stream = lz4.frame.compress(
            TEXT, block_linked=False, block_size=block_size, content_checksum=True, block_checksum=True
        )
        assert decompress(Codec.LZ4, stream, len(TEXT)) == TEXT


# --- What they refuse -------------------------------------------------------------------------------------------------


def test_lz4_with_linked_blocks_is_refused_with_a_clear_error() -> None:
    with pytest.raises(DecompressionError, match="depend on each other"):
        decompress(Codec.LZ4, lz4.frame.compress(TEXT, block_linked=True))


def test_lz4_with_a_dictionary_or_of_another_version_is_refused_with_a_clear_error() -> None:
    stream = bytearray(compress(Codec.LZ4, TEXT))
    stream[4] |= 0x01
    with pytest.raises(DecompressionError, match="dictionary"):
        decompress(Codec.LZ4, stream)
    stream[4] = 0xA0
    with pytest.raises(DecompressionError, match="version"):
        decompress(Codec.LZ4, stream)


def test_a_xerial_stream_that_needs_a_newer_reader_is_refused() -> None:
    with pytest.raises(DecompressionError, match="version 2"):
        decompress(Codec.SNAPPY, XERIAL_HEADER[:-1] + b"\x02")


@each_case("codec", STREAMS)
def test_bytes_behind_the_end_are_refused(codec: Codec) -> None:
    for garbage in (b"\x00", b"garbage", bytes(100)):
        with pytest.raises(DecompressionError):
            decompress(codec, compress(codec, TEXT) + garbage)


@each_case("codec", STREAMS)
def test_a_stream_cut_at_any_byte_is_refused_or_for_snappy_ends_with_a_block(codec: Codec) -> None:
    data = TEXT[:40_000]
    stream = compress(codec, data)
    ends = {16: b"", 20 + int.from_bytes(stream[16:20], "big"): data[:32768]} if codec is Codec.SNAPPY else {}
    for cut in range(len(stream)):
        if cut in ends:
            assert decompress(codec, stream[:cut]) == ends[cut]
            continue
        with pytest.raises(DecompressionError):
            decompress(codec, stream[:cut])


@pytest.mark.parametrize("codec", STREAMS)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_bytes_or_a_typed_error(codec: Codec, data: bytes) -> None:
    for start in (b"", compress(codec, b"abc" * 100)[:7], compress(codec, b"abc" * 100)):
        try:
            assert len(decompress(codec, start + data, 5000)) <= 5000
        except CorruptRecordError:
            continue


# --- Bombs ------------------------------------------------------------------------------------------------------------


def gzip_bomb() -> bytes:
    """4 GiB: one MiB of zeros, compressed so that it can be repeated inside one stream."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = stream.compress(b"") + stream.flush(zlib.Z_FULL_FLUSH)
    zeros = stream.compress(bytes(1 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)
    return start + zeros * 4096 + stream.flush()


def lz4_bomb() -> bytes:
    """4 GiB: a block of 4 MiB of zeros, many times."""
    frame: bytes = lz4.frame.compress(
        bytes(4 << 20), block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False
    )
    return frame[:7] + frame[7:-4] * 1024 + frame[-4:]


def zstd_bomb(window_log: int) -> bytes:
    """4 GiB in 128 KiB: blocks that say "this byte, 131072 times"."""
    header = bytes.fromhex("28b52ffd00") + bytes((window_log - 10 << 3,))
    block = ((128 * 1024) << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = (1 << 3 | 1).to_bytes(3, "little") + b"\x00"
    return header + block * 32768 + last


def snappy_bomb() -> bytes:
    """300 MiB as it really opens: snappy's best is one byte for twenty-one."""
    block = bytes(cramjam.snappy.compress_raw(bytes(10 << 20)))
    return XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * 30
