"""CRC-32C (Castagnoli), the checksum of Kafka's record batches, at memory speed.

The compiled package ``crc32c`` does the work: it uses the processor's own instruction and reads any buffer in place. It
is imported at the first checksum, because its ``__init__`` looks up its own version through importlib.metadata, which
takes 40 ms that a command without records need not pay.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are read in place (``collections.abc.Buffer`` needs Python 3.12)."""

_compiled: Callable[[Buffer, int], int] | None = None


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C of ``data`` as an unsigned 32-bit int; ``value`` is the checksum of the bytes before it.

    ``crc32c(a + b) == crc32c(b, crc32c(a))``; the check value of ``b"123456789"`` is 0xE3069283. ``data`` is not
    copied and must be contiguous. The GIL is released for buffers above 32 KiB and kept for smaller ones (the package's
    default, gil_release_mode -1): a switch of threads costs more than a small checksum.
    """
    return (_compiled or _load())(data, value)


def crc32c_of_ranges(data: Buffer, ranges: Iterable[tuple[int, int]]) -> list[int]:
    """CRC-32C of ``data[start:end]`` for every (start, end); for many ranges faster than a ``crc32c`` call each."""
    compiled, view = _compiled or _load(), memoryview(data)
    return [compiled(view[start:end], 0) for start, end in ranges]


def _load() -> Callable[[Buffer, int], int]:
    """Import the compiled function, once."""
    global _compiled
    from crc32c import crc32c as compiled  # noqa: PLC0415 - 40 ms, see the module's first lines

    _compiled = compiled
    return compiled
