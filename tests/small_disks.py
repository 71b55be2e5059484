"""Small file systems in memory, each in a namespace of its own that only processes started ``under`` it see."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(mount_point: Path, options: str) -> Iterator[Sequence[str]]:
    """A tmpfs with these options (``size=64m``) at a directory that is made for it, and the command to get there.

    The test is skipped where that is not allowed.
    """
    mount_point.mkdir()
    script = 'mount -t tmpfs -o "$1" tmpfs "$0" && echo mounted && exec sleep 1000000'
    holder = subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", script, str(mount_point), options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("unshare -rm and a tmpfs in it are not allowed here")
        yield "nsenter", "--preserve-credentials", "-U", "-m", "-t", str(holder.pid)
    finally:
        holder.kill()
        holder.communicate()
