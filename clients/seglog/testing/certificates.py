"""A certificate for brokers in tests and the authority that signed it, made once in a process."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from seglog_broker.security.trial_certificates import AUTHORITY, HOSTS, SERVER, make_certificates


class Certificates:
    """The files of a broker that is reached by ``hosts``. Raises InvalidConfigError for one that cannot be."""

    def __init__(self, *hosts: str) -> None:
        folder = _made(os.getpid(), frozenset(hosts) - {*HOSTS})
        self.ca = str(folder / AUTHORITY)
        """The certificate of the authority."""
        self.server = str(folder / SERVER)
        """The broker's certificate and its key."""


@cache
def _made(process: int, hosts: frozenset[str]) -> Path:
    """A child that was forked makes its own: the parent may end before it."""
    folder = Path(tempfile.mkdtemp(prefix="seglog-tls-"))
    atexit.register(_remove, process, folder)
    make_certificates(folder, sorted(hosts), [])
    return folder


def _remove(process: int, folder: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
