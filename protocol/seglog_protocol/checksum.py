"""CRC-32C (Castagnoli), the checksum of Kafka's record batches, at memory speed.

The compiled package ``crc32c`` does the work: it uses the processor's own instruction and reads any buffer in place.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are read in place (``collections.abc.Buffer`` needs Python 3.12)."""


def _find() -> Callable[..., int]:
    """The compiled function, without the package around it where it can be had so.

    That looks up its own version through importlib.metadata, which takes 40 ms and a megabyte and a half.
    """
    package = find_spec("crc32c")
    found = package and PathFinder.find_spec("_crc32c", package.submodule_search_locations or ())
    if not found or not found.loader:
        return import_module("crc32c").crc32c  # type: ignore[no-any-return]
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.crc32c  # type: ignore[no-any-return]


crc32c: Final = _find()
"""Computes the CRC-32C of a ``Buffer`` as an unsigned 32-bit int; a second argument is that of the bytes before it.

``crc32c(a + b) == crc32c(b, crc32c(a))``; the check value of ``b"123456789"`` is 0xE3069283. The buffer is not copied
and must be contiguous. The GIL is released for buffers above 32 KiB and kept for smaller ones (the package's default,
gil_release_mode -1): a switch of threads costs more than a small checksum.
"""
