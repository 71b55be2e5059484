"""Imports behind the start: what is needed only later is imported as soon as the broker serves.

A start should not wait for it, and later is too late: an import opens files, and where no descriptor is left by then
the first compressed batch, or the first name with a typing error, would fail for want of a module.
"""

from contextlib import suppress
from importlib import import_module
from typing import Final, Protocol

from seglog_broker.runtime.offload import Offload

LATER: Final = (
    "crc32c",
    "ctypes",
    "platform",
    "difflib",
    "tomllib",
    "lz4.frame",
    "cramjam",
    "seglog_protocol.zstd_library",
    "concurrent.futures.thread",
)
"""Modules that the daemon imports inside functions, in the order in which they are likely to be needed."""


class Services(Protocol):
    """What this task uses of the broker."""

    offload: Offload


async def run_imports(broker: Services) -> None:
    """Import them in a thread, one after the other, and return."""
    for name in LATER:
        with suppress(ImportError, OSError):  # it will be missed where it is used, with its name
            await broker.offload.maintenance(import_module, name)
