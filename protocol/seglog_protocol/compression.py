"""The five codecs of Kafka's record batches: exact stream formats, and bounded decompression.

    0 none    the records as they are
    1 gzip    RFC 1952
    2 snappy  xerial framing (not Google's): 82 "SNAPPY" 00, int32 version 1, int32 compatible 1, then blocks of an
              int32 length and a raw snappy block of up to 32 KiB of input
    3 lz4     one LZ4 frame of independent 64 KiB blocks, without content size and content checksum
    4 zstd    zstd frames, level 3 by default

A few kilobytes can decompress to gigabytes, so no stream is decompressed in one call: output comes in pieces and stops
at the caller's limit, and where a format announces sizes they are added up first. At worst a call holds its limit twice
(the pieces and the result) and a zstd window.

The reader accepts what Kafka's reader accepts: several gzip members, several zstd frames and skippable ones, repeated
xerial headers, and a bare raw snappy block, which librdkafka writes. Bytes after the end of a stream, which Kafka
ignores after gzip and lz4, are an error here.

Each codec's library is imported at its first use.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from struct import Struct
from types import MappingProxyType
from typing import Final

from seglog_protocol.checksum import Buffer
from seglog_protocol.errors import DecompressedTooLargeError, DecompressionError


class Codec(IntEnum):
    """A compression codec, by its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: Final[Mapping[Codec, range]] = MappingProxyType(
    {
        Codec.GZIP: range(-1, 10),  # -1: zlib's choice
        Codec.LZ4: range(1, 18),
        Codec.ZSTD: range(-131072, 23),
    }
)
"""Valid levels of each codec that has levels. Kafka's ``compression.gzip.level`` excludes 0 (no compression)."""

DECOMPRESSED_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default limit for the decompressed size of one batch."""

_FIRST_PIECE: Final = 64 * 1024
_LAST_PIECE: Final = 8 * 1024 * 1024
_INT32: Final = Struct(">i")


def compress(codec: Codec, data: bytes, level: int | None = None) -> bytes:
    """``data`` compressed as one stream of ``codec``; ``level`` None is the codec's default.

    Raises ValueError for a level outside ``LEVELS``.
    """
    if level is not None and level not in LEVELS.get(codec, ()):
        raise ValueError(f"{codec.name.lower()} has no level {level}")
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Codec, data: Buffer, limit: int = DECOMPRESSED_BATCH_BYTES_MAX) -> bytes:
    """The decompressed content of a whole stream of ``codec``, at most ``limit`` bytes.

    Raises DecompressionError for an invalid or truncated stream or trailing bytes, and DecompressedTooLargeError for
    more than ``limit`` bytes, detected without producing them all.
    """
    return _DECOMPRESSORS[codec](data, limit)


def _invalid(codec: Codec, what: str) -> DecompressionError:
    return DecompressionError(f"This is not a valid {codec.name.lower()} stream: {what}.")


def _too_large(limit: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"The compressed records decompress to more than {limit} bytes.", limit=limit)


class _Output:
    """Collects pieces of output, at most one byte over the limit.

    That byte shows that a stream exceeds its limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pieces: list[bytes] = []
        self.size = 0

    def piece_max(self, input_size: int) -> int:
        """Bytes to ask for next: grows with the output, so that small batches stay cheap and large ones fast."""
        guess = min(max(_FIRST_PIECE, 4 * input_size, self.size), _LAST_PIECE)
        return min(guess, self.limit + 1 - self.size)

    def add(self, piece: bytes) -> None:
        """Keep a piece. Raises DecompressedTooLargeError beyond the limit."""
        self.size += len(piece)
        if self.size > self.limit:
            raise _too_large(self.limit)
        if piece:
            self.pieces.append(piece)

    def join(self) -> bytes:
        """The whole output."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


def _store(data: bytes, _level: int | None) -> bytes:
    return data


def _unstore(data: Buffer, limit: int) -> bytes:
    if len(data) > limit:
        raise _too_large(limit)
    return bytes(data)


_GZIP_WBITS: Final = 31  # the largest window, with a gzip header and trailer
_GZIP_INPUT_PIECE: Final = 64 * 1024  # zlib copies what it leaves of its input: small pieces keep many members linear


def _gzip(data: bytes, level: int | None) -> bytes:
    return zlib.compress(data, -1 if level is None else level, _GZIP_WBITS)


def _gunzip(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    output = _Output(limit)
    position, size = 0, len(view)
    while True:
        position = _gunzip_member(view, position, output)
        if position == size:
            return output.join()


def _gunzip_member(view: memoryview, position: int, output: _Output) -> int:
    """Decompress the member at ``position`` into ``output`` and return the position after it."""
    member = zlib.decompressobj(_GZIP_WBITS)
    size = len(view)
    try:
        while position < size:
            pending: Buffer = view[position : position + _GZIP_INPUT_PIECE]
            position += len(pending)
            while True:
                piece_max = output.piece_max(size)
                piece = member.decompress(pending, piece_max)
                output.add(piece)
                if member.eof:
                    return position - len(member.unused_data)
                pending = member.unconsumed_tail
                # A full piece may have left output inside zlib even when all of the input is taken.
                if not pending and len(piece) < piece_max:
                    break
    except zlib.error as error:
        raise _invalid(Codec.GZIP, str(error)) from error
    raise _invalid(Codec.GZIP, "it is cut short")


_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + _INT32.pack(1) + _INT32.pack(1)
_XERIAL_BLOCK: Final = 32 * 1024
_XERIAL_VERSION_MIN: Final = 1


def _snap(data: bytes, _level: int | None) -> bytes:
    from cramjam import snappy  # noqa: PLC0415 - imported by those who use it

    parts: list[Buffer] = [_XERIAL_HEADER]
    for position in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(data[position : position + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _unsnap(data: Buffer, limit: int) -> bytes:
    from cramjam import DecompressionError as SnappyError  # noqa: PLC0415 - imported by those who use it
    from cramjam import snappy  # noqa: PLC0415

    view = memoryview(data)
    try:
        blocks = list(_xerial_blocks(view)) if view[: len(_XERIAL_MAGIC)].tobytes() == _XERIAL_MAGIC else [view]
        # A raw block announces its size and the library allocates it: add up before decompressing.
        if sum(snappy.decompress_raw_len(block) for block in blocks) > limit:
            raise _too_large(limit)
        return b"".join([snappy.decompress_raw(block) for block in blocks])
    except SnappyError as error:
        raise _invalid(Codec.SNAPPY, str(error)) from error


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of a xerial stream; the header repeats where streams were concatenated."""
    position, size = 0, len(view)
    while position < size:
        if view[position : position + len(_XERIAL_MAGIC)].tobytes() == _XERIAL_MAGIC:
            if size - position < len(_XERIAL_HEADER):
                raise _invalid(Codec.SNAPPY, "its header is cut short")
            _version, compatible = _INT32.unpack_from(view, position + 8)[0], _INT32.unpack_from(view, position + 12)[0]
            if compatible > _XERIAL_VERSION_MIN:
                raise _invalid(Codec.SNAPPY, f"its framing needs a reader of version {compatible}")
            position += len(_XERIAL_HEADER)
            continue
        if size - position < _INT32.size:
            raise _invalid(Codec.SNAPPY, "a block's length is cut short")
        (length,) = _INT32.unpack_from(view, position)
        position += _INT32.size
        if not 0 < length <= size - position:
            raise _invalid(Codec.SNAPPY, f"a block of {length} bytes where {size - position} are left")
        yield view[position : position + length]
        position += length


_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_VERSION_1: Final = 0x40
_LZ4_VERSION_MASK: Final = 0xC0
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_DICTIONARY: Final = 0x01
_LZ4_FAST_LEVEL: Final = 9  # Kafka's default level stands for the fast compressor, every other for the high one


def _lz4(data: bytes, level: int | None) -> bytes:
    from lz4 import frame  # noqa: PLC0415 - imported by those who use it

    fast = level is None or level == _LZ4_FAST_LEVEL
    compressed: bytes = frame.compress(
        data,
        compression_level=0 if fast else max(level or 0, frame.COMPRESSIONLEVEL_MINHC),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return compressed


def _unlz4(data: Buffer, limit: int) -> bytes:
    from lz4 import frame  # noqa: PLC0415 - imported by those who use it

    _check_lz4_header(data)
    output = _Output(limit)
    stream = frame.LZ4FrameDecompressor()
    pending: Buffer = data
    try:
        while not stream.eof:
            piece_max = output.piece_max(len(data))
            piece = stream.decompress(pending, piece_max)
            pending = b""  # the decompressor keeps what it did not take
            output.add(piece)
            if not stream.eof and stream.needs_input:
                raise _invalid(Codec.LZ4, "it is cut short")
    except (RuntimeError, ValueError) as error:
        raise _invalid(Codec.LZ4, str(error)) from error
    if stream.unused_data:
        raise _invalid(Codec.LZ4, f"{len(stream.unused_data)} bytes follow its end")
    return output.join()


def _check_lz4_header(data: Buffer) -> None:
    """Refuse frames that Kafka's reader cannot read, so that every accepted batch can be read by Kafka clients."""
    if bytes(data[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC or len(data) <= len(_LZ4_MAGIC):
        raise _invalid(Codec.LZ4, "it does not begin with an LZ4 frame")
    flags = data[len(_LZ4_MAGIC)]
    if flags & _LZ4_VERSION_MASK != _LZ4_VERSION_1:
        raise _invalid(Codec.LZ4, "its frame is not of version 1")
    if not flags & _LZ4_INDEPENDENT:
        raise _invalid(Codec.LZ4, "its blocks depend on each other, which Kafka's readers refuse")
    if flags & _LZ4_DICTIONARY:
        raise _invalid(Codec.LZ4, "it needs a dictionary")


_ZSTD_LEVEL: Final = 3
_ZSTD_FRAME_COST: Final = 1024
"""Bytes that each further frame counts for against the limit: to begin a frame takes as long as to open so many."""

_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_ZSTD_SKIPPABLE: Final = frozenset(bytes((first, 0x2A, 0x4D, 0x18)) for first in range(0x50, 0x60))


def _zstd(data: bytes, level: int | None) -> bytes:
    from seglog_protocol.zstd_library import zstd  # noqa: PLC0415 - imported by those who use it

    return zstd.compress(data, level=_ZSTD_LEVEL if level is None else level)


def _unzstd(data: Buffer, limit: int) -> bytes:
    from seglog_protocol.zstd_library import zstd  # noqa: PLC0415 - imported by those who use it

    output = _Output(limit)
    try:
        frames = list(_zstd_frames(memoryview(data)))
        # What frames announce is added up before anything is opened. Kafka writes one frame, which announces nothing.
        if sum(announced for _frame, announced in frames) + (len(frames) - 1) * _ZSTD_FRAME_COST > limit:
            raise _too_large(limit)
        for frame, announced in frames:
            # The largest window is libzstd's own default of 128 MiB: Kafka's levels 20 to 22 announce that even for a
            # small batch. Of a window only what is written gets real memory, and that is bounded by the limit.
            stream = zstd.ZstdDecompressor()
            pending: Buffer = frame
            while not stream.eof:
                output.add(stream.decompress(pending, output.piece_max(max(len(frame), announced // 4 + 1))))
                pending = b""  # the decompressor keeps what it did not take
    except zstd.ZstdError as error:
        raise _invalid(Codec.ZSTD, str(error)) from error
    return output.join()


def _zstd_frames(view: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Each frame that is not skippable, whole, and the bytes it announces to hold, 0 when it announces nothing.

    Raises ZstdError, or DecompressionError where no frame begins.
    """
    from seglog_protocol.zstd_library import zstd  # noqa: PLC0415 - imported by those who use it

    if not view:
        raise _invalid(Codec.ZSTD, "it is empty")
    while view:
        magic = bytes(view[: len(_ZSTD_MAGIC)])
        if magic != _ZSTD_MAGIC and magic not in _ZSTD_SKIPPABLE:  # libzstd may read formats older than zstd 1.0, too
            raise _invalid(Codec.ZSTD, "other bytes stand where a frame should begin")
        size = zstd.get_frame_size(view)
        if magic == _ZSTD_MAGIC:
            yield view[:size], zstd.get_frame_info(view).decompressed_size or 0
        view = view[size:]


_COMPRESSORS: Final[Mapping[Codec, Callable[[bytes, int | None], bytes]]] = MappingProxyType(
    {Codec.NONE: _store, Codec.GZIP: _gzip, Codec.SNAPPY: _snap, Codec.LZ4: _lz4, Codec.ZSTD: _zstd}
)
_DECOMPRESSORS: Final[Mapping[Codec, Callable[[Buffer, int], bytes]]] = MappingProxyType(
    {Codec.NONE: _unstore, Codec.GZIP: _gunzip, Codec.SNAPPY: _unsnap, Codec.LZ4: _unlz4, Codec.ZSTD: _unzstd}
)
