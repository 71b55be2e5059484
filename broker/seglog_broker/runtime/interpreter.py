"""What runs the broker: how its Python and its own modules were built, and what is imported as soon as it serves.

A build of Python with profile-guided optimization (PGO) serves small requests faster, and so do compiled modules.
"""

import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, Final, Literal

from seglog_broker.runtime.offload import Offload

IMPORTED_LATER: Final = (
    "crc32c",
    "ctypes",
    "platform",
    "difflib",
    "tomllib",
    "lz4.frame",
    "cramjam",
    "seglog_protocol.kafka.error_codes",
    "seglog_protocol.zstd_library",
    "concurrent.futures.thread",
    "scramp.utils",
    "seglog_broker.security.scram",
    "h11",
    "prometheus_client",
    "seglog_broker.listeners.http.wire",
)
"""Modules that the daemon imports inside functions, those that are likely to be needed first at the beginning."""


def is_profile_optimized(variables: Mapping[str, Any] | None = None) -> bool | None:
    """Whether this Python was built with PGO; None if its build does not say so.

    ``variables`` are those of ``sysconfig``. Debian and Ubuntu train their Python outside of configure and empty the
    variable that would tell: for these the answer is None.
    """
    variables = sysconfig.get_config_vars() if variables is None else variables
    arguments = variables.get("CONFIG_ARGS")
    if not arguments:
        return None
    if "--enable-optimizations" in arguments:
        return True
    return False if variables.get("PGO_PROF_USE_FLAG") else None


def describe_interpreter(variables: Mapping[str, Any] | None = None) -> str:
    """Version of this Python for the log, with a note if it was built without PGO."""
    version = sys.version.split()[0]
    if is_profile_optimized(variables) is not False:
        return version
    return f"{version}, built without PGO: one with it is faster, see 'Which Python' in docs/OPERATIONS.md"


def build_of(file: str | None) -> Literal["compiled", "sources"]:
    """Whether a module with this ``__file__`` is an extension, as in a wheel with compiled modules, or a source."""
    return "compiled" if file is not None and file.endswith(tuple(EXTENSION_SUFFIXES)) else "sources"


async def run_imports(offload: Offload) -> None:
    """Import, in a thread, the modules that are needed only later, and return.

    A start should not wait for these imports. But an import opens files: if it were made at the first use, and no
    descriptor was left then, the first compressed batch, or the first misspelt name, would fail.
    """
    for name in IMPORTED_LATER:
        with suppress(ImportError, OSError, RuntimeError):  # reported where the module is used, or the interpreter ends
            await offload.maintenance(import_module, name)
