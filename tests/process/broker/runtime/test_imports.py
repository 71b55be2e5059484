"""Imports after the start: every module that the daemon imports inside functions, early enough."""

import ast
import subprocess
import sys
from pathlib import Path

from seglog_broker.runtime.interpreter import IMPORTED_LATER, RARELY_USED
from tests.processes import clean_environment, finished
from tests.support import ON_SOURCES, REPOSITORY

ELSEWHERE = {
    "seglog_broker/__main__.py": "before it serves",
    "seglog_broker/backup/configured.py": "before it serves",
    "seglog_broker/listeners/serving.py": "before it serves pages",
    "seglog_broker/runtime/signals.py": "before it serves",
    "seglog_broker/security/authenticator.py": "before it serves, but for scram, which is imported after the start",
    "seglog_broker/security/principals.py": "with the certificate, before it serves, and in a thread at a reload",
    "seglog_broker/security/tls.py": "as above",
    "seglog_protocol/version.py": "before it serves",
    "seglog_broker/workers/jobs.py": "in the process, and in tests, where there is none",
}
"""Modules whose imports inside functions are no matter of a broker that serves."""


def loaded_by_the_daemon() -> list[Path]:
    """The files of seglog that are loaded when the broker serves."""
    code = (
        "import sys, seglog_broker.__main__, seglog_broker.server, seglog_broker.config.sources\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith(('seglog_broker', 'seglog_protocol'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, check=True)
    return [Path(name) for name in done.stdout.decode().split()]


def imported_inside_functions(file: Path) -> set[str]:
    found: set[str] = set()
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    found.add(node.module)
    return found


@ON_SOURCES
def test_every_module_imported_inside_a_function_is_imported_after_the_start() -> None:
    """An import when no descriptor was left ended the connection, or the broker, that needed it."""
    files = loaded_by_the_daemon()
    assert len(files) > 50
    known = {*IMPORTED_LATER, *RARELY_USED, *[".".join(file.relative_to(REPOSITORY).parts[1:])[:-3] for file in files]}
    packages = {name.partition(".")[0] for name in known} - {"seglog_broker", "seglog_protocol"}  # ours are named each
    for file in files:
        place = "/".join(file.relative_to(REPOSITORY).parts[1:])
        if place not in ELSEWHERE:
            missing = {
                name for name in imported_inside_functions(file) - known if name.partition(".")[0] not in packages
            }
            assert not missing, f"{place} imports {missing}: add it to runtime/interpreter.py"


def test_with_these_modules_loaded_the_daemon_works_without_another_import() -> None:
    """Checked while the process cannot open one more file."""
    code = (
        "import os, resource, sys\n"
        "from seglog_broker.runtime.interpreter import IMPORTED_LATER, RARELY_USED, import_later; import_later()\n"
        "from importlib import import_module\n"
        "import seglog_broker.server\n"
        "from seglog_broker.config import ConfigSources\n"
        "from seglog_broker.storage.io.fsync_queue import sync_in_kernel\n"
        "from seglog_protocol.checksum import crc32c\n"
        "from seglog_protocol.compression import Codec, compress, decompress\n"
        "for name in IMPORTED_LATER: import_module(name)\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (file + 1, file + 1))\n"
        "for codec in Codec:\n"
        "    if codec.name != 'NONE': assert bytes(decompress(codec, compress(codec, b'x' * 99), 99)) == b'x' * 99\n"
        "assert crc32c(b'123456789') == 0xE3069283\n"
        "from seglog_broker.coordinators.client_patterns import ClientPattern\n"
        "from seglog_broker.security.credentials import why_not_prepared\n"
        "assert list(ClientPattern('b.*').matching(['abc', 'bc'])) == ['bc']\n"
        "assert why_not_prepared('\u00e9') is None and why_not_prepared('\u00aa')\n"
        "import ssl, asyncio; assert ssl.SSLError and asyncio.run\n"
        "assert not [name for name in RARELY_USED if 'Later' in str(type(sys.modules[name]))]\n"
        "sync_in_kernel([file], data_only=True)\n"
        "examined = ConfigSources('', {}, ['num.partitons=3', 'seglog.listen=x']).examine()\n"
        "assert 'num.partitions' in examined.mistakes[0].message\n"
        "assert len(examined.mistakes) == 2\n"
    )
    done = finished([sys.executable, "-c", code, "/dev/null"])
    assert done.returncode == 0, done.stderr
