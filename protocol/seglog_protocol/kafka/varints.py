"""Kafka's unsigned varints and tagged fields, as generated functions call them."""

from typing import Final

VARINT_MAX: Final = 5
"""Bytes of a varint at most: it holds 32 bits."""
TEXT_MAX: Final = 0x7FFF
"""Bytes of a string at most."""

ELEMENTS_MAX: Final = 20_000
"""Elements of an array at most: a mebibyte of empty strings took half a second to read, and a number of four bytes gets
an answer of a hundred."""


ELEMENTS_IN_ALL_MAX: Final = 50_000
"""Elements of all arrays of a large message: to free 350,000 of them, a mebibyte, holds up others for 0.05 s."""

DECODED_BYTES_A_BYTE: Final = 60
"""Of memory that a message takes at most for each of its bytes: an entity without names has two bytes, and 112 here."""

DECODED_ELEMENT_BYTES: Final = 350
"""Of memory that an element takes at most, with its texts."""

TAGS_MAX: Final = 1000
"""Tagged fields of a struct at most. To skip a mebibyte of empty ones took 0.2 s."""


class Refused(Exception):  # noqa: N818 - never seen outside: readers make Malformed of it
    """Why bytes are refused, without the place."""


def read_varint(frame: memoryview, p: int) -> tuple[int, int]:
    """The varint at ``p``, and where it ends. Raises IndexError at the frame's end, Refused beyond 32 bits."""
    value = 0
    for shift in range(0, 7 * VARINT_MAX, 7):
        byte = frame[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 32:
                break
            return value, p
    raise Refused("a varint of more than 32 bits")


def varint(value: int) -> bytes:
    """A varint's bytes; ``value`` is 0 or more."""
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_text_varint(frame: memoryview, p: int) -> tuple[int, int]:
    """As ``read_varint``, for one more than the length of a string."""
    value, p = read_varint(frame, p)
    if value > TEXT_MAX + 1:
        raise Refused(f"a string of {value - 1} bytes, which may have {TEXT_MAX}")
    return value, p


def text_varint(value: int) -> bytes:
    """As ``varint``, for one more than the length of a string. Raises ValueError for a string that is too long."""
    if value > TEXT_MAX + 1:
        raise ValueError(f"a string of {value - 1} bytes, which may have {TEXT_MAX}")
    return varint(value)


def read_tag(frame: memoryview, p: int, end: int) -> tuple[int, int, int]:
    """The tag of the tagged field at ``p``, where its value begins, and where it ends, which is not behind ``end``."""
    tag, p = read_varint(frame, p)
    size, p = read_varint(frame, p)
    if size > end - p:
        raise bad_length(size, end - p)
    return tag, p, p + size


def skip_tags(frame: memoryview, p: int, end: int, count: int) -> int:
    """Where ``count`` tagged fields end, none of which is known."""
    check_tags(count, end - p)
    for _ in range(count):
        _, _, p = read_tag(frame, p, end)
    return p


def check_tags(count: int, left: int) -> None:
    """Raise Refused unless a struct may have so many tagged fields, with ``left`` bytes left in the frame."""
    if 2 * count > left:
        raise bad_count(count, left)
    if count > TAGS_MAX:
        raise Refused(f"{count} tagged fields, of which there may be {TAGS_MAX}")


def bad_length(size: int, left: int) -> Refused:
    """For a value of ``size`` bytes, or -1 for null where null is not allowed."""
    return Refused(f"a length of {size}, with {left} bytes left" if size >= 0 else "null, which it cannot be")


def bad_count(count: int, left: int) -> Refused:
    """For an array of ``count`` elements, as for ``bad_length``."""
    return Refused(f"a count of {count}, with {left} bytes left" if count >= 0 else "null, which it cannot be")


def too_many(count: int, limit: int = ELEMENTS_MAX) -> Refused:
    """For an array with more elements than a peer needs, or all arrays of a message together."""
    return Refused(f"a count of {count}, which may be {limit}")


def bad_tag(size: int) -> Refused:
    """For a tagged field whose value is not as long as its size says."""
    return Refused(f"a tagged field whose size is wrong by {size}")
