"""Snapshots of a log directory on the forgetful disk, copied as a backup does it."""

from seglog_broker.storage.directory.snapshot import read_snapshot
from seglog_broker.testing.forgetful import ForgetfulFileSystem


def copied(fs: ForgetfulFileSystem, path: str) -> ForgetfulFileSystem:
    """A disk with a copy of the snapshot at ``path`` as its ``/data``."""
    lengths, _ = read_snapshot(fs, path)
    copy = ForgetfulFileSystem()
    found = {name.removeprefix(f"{path}/"): content for name, content in fs.snapshot().items() if name.startswith(path)}
    copy.load({f"/data/{name}": content[: lengths.get(name)] for name, content in found.items()})
    copy.unlink("/data/seglog-snapshot.json")
    return copy
