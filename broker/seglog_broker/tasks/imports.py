"""Imports modules that are needed only later, as soon as the broker serves.

A start should not wait for these imports. But an import opens files: if it were made at the first use, and no
descriptor was left then, the first compressed batch, or the first misspelt name, would fail.
"""

from contextlib import suppress
from importlib import import_module
from typing import Final, Protocol

from seglog_broker.runtime.offload import Offload

MODULES: Final = (
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
"""Modules that the daemon imports inside functions, those that are likely to be needed first at the beginning."""


class Services(Protocol):
    """What this task uses of the broker."""

    offload: Offload


async def run_imports(broker: Services) -> None:
    """Import the modules in a thread, one after the other, and return."""
    for name in MODULES:
        with suppress(ImportError, OSError):  # reported where the module is used
            await broker.offload.maintenance(import_module, name)
