"""What runs the broker: how its Python and its own modules were built, and what is imported when.

A build of Python with profile-guided optimization (PGO) serves small requests faster, and so do compiled modules.
"""

import os
import sys
import sysconfig
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from seglog_broker.runtime.offload import Offload

RARELY_USED: Final = ("asyncio", "cramjam", "hashlib", "hmac", "re2", "scramp", "secrets", "ssl")
"""Modules for snappy, accounts, TLS and clients' expressions, and what structlog imports without need: megabytes."""

IMPORTED_LATER: Final = (
    "ctypes",
    "platform",
    "difflib",
    "tomllib",
    "lz4.frame",
    "seglog_protocol.zstd_library",
    "concurrent.futures.thread",
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


async def run_imports(offload: "Offload") -> None:
    """Import, in a thread, the modules that are needed only later, and return.

    A start should not wait for these imports. But an import opens files: if it were made at the first use, and no
    descriptor was left then, the first compressed batch, or the first misspelt name, would fail.
    """
    for name in IMPORTED_LATER:
        with suppress(ImportError, OSError, RuntimeError):  # reported where the module is used, or the interpreter ends
            await offload.maintenance(import_module, name)


_first_use: Final = threading.Lock()


class Later(ModuleType):
    """Stands for an installed module, and imports it at the first use of one of its names.

    It keeps a descriptor for that: an import opens files, and none may be left by then.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = find_spec(name)
        self.__dict__["_spare"] = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def __getattr__(self, name: str) -> Any:
        with _first_use:  # not while it imports, which has locks of its own
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
                os.close(self.__dict__.pop("_spare"))
        found = import_module(self.__name__)
        self.__dict__.update(found.__dict__)
        return getattr(found, name)


def import_later() -> None:
    """Have something stand for the modules that are rarely used, from now on, where they are not imported yet.

    rich is hidden: structlog would write tracebacks in colours by it, which the daemon's log does not have.
    """
    sys.modules.update({name: Later(name) for name in RARELY_USED if name not in sys.modules})
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type] # how the import system says "there is none"
