"""The broker's machine, where this is it: its disk, the permissions of its data, and its clock.

That is so where the log directory is here and names the same cluster: another machine, or a container's own file
system, may have something else at that path.
"""

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog.cli.checkups.model import Check, ok, problem, unknown, warning

if TYPE_CHECKING:
    from seglog_protocol.messages import DescribeBrokerReply, HelloReply

MOUNTINFO: Final = "/proc/self/mountinfo"
"""The mounts of this machine (proc(5)): their kind, where they are mounted, and how."""
META_PROPERTIES: Final = "meta.properties"
META_BYTES_MAX: Final = 64 * 1024
_PRIVATE: Final = ("seglog-accounts.json",)

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs", "lustre", "afs", "beegfs"}
)
_LAYERS: Final = frozenset({"overlay", "aufs", "unionfs"})
_WITHOUT_BARRIERS: Final = frozenset({"nobarrier", "barrier=0"})

_TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronized
_TIMEX_BYTES: Final = 512  # more than struct timex has on any machine


def machine_checks(hello: "HelloReply", described: "DescribeBrokerReply | None") -> Iterator[Check]:
    """A line or more for each thing, or one that says why the machine is not looked at."""
    why = why_elsewhere(hello)
    if why is not None:
        yield unknown("disk", why, "run doctor there, as the broker's user, for disk, permissions and clock")
        return
    yield from _disk(hello.log_dir)
    yield from _permissions(hello.log_dir, described)
    yield time_check()


def why_elsewhere(hello: "HelloReply") -> str | None:
    """Why the log directory cannot be looked at from here; None where it can."""
    path = hello.log_dir
    if not path:
        return "the broker does not tell where its data is"
    try:
        with (Path(path) / META_PROPERTIES).open("rb") as file:
            content = file.read(META_BYTES_MAX).decode(errors="replace")
    except PermissionError:
        return f"this user may not read {path}"
    except OSError:
        return f"{path} is not on this machine: it is the broker's, or its container's"
    if f"cluster.id={hello.cluster_id}" not in content.splitlines():
        return f"{path} on this machine is another broker's"
    return None


class Mount(NamedTuple):
    """A mount; ``options`` are those of the mount and of its file system."""

    place: str
    kind: str
    source: str
    options: frozenset[str]


def _disk(path: str) -> Iterator[Check]:
    try:
        mount = mount_of(str(Path(path).resolve()), Path(MOUNTINFO).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        mount = None
    if mount is None:
        yield unknown("disk", f"{sys.platform} does not tell how {path} is mounted")
    else:
        yield from mount_checks(path, mount)


def mount_checks(path: str, mount: Mount) -> Iterator[Check]:
    """The kind of a file system, and its options."""
    what = f"{path} is on {mount.kind} ({mount.source} at {mount.place})"
    if mount.kind in _IN_MEMORY:
        yield problem("disk", f"{what}: in memory, so nothing survives a restart of the machine", _ON_A_DISK)
    elif mount.kind in _NETWORK or mount.kind.startswith("fuse."):
        yield warning(
            "disk",
            f"{what}: what fsync promises there, and how long it takes, is up to a server or a program",
            "keep the data on a disk of this machine, as ext4 or XFS, or be sure that fsync reaches the server's disk",
        )
    elif mount.kind in _LAYERS:
        yield warning("disk", f"{what}: a layer of a container, which is gone with it", _ON_A_DISK)
    else:
        yield ok("disk", what)
    if "ro" in mount.options:
        yield problem("mount options", f"{mount.place} is read-only (ro)", "look for errors in dmesg; remount it rw")
    elif off := sorted(mount.options & _WITHOUT_BARRIERS):
        yield problem(
            "mount options",
            f"{mount.place} is mounted with {off[0]}: fsync does not reach the disk, and ack `disk` means nothing",
            f"remount it without {off[0]}",
        )
    elif "sync" in mount.options:
        yield warning(
            "mount options", f"{mount.place} is mounted with sync: every write waits for the disk", "remount it async"
        )
    elif "strictatime" in mount.options:
        yield warning("mount options", f"{mount.place} is mounted with strictatime: reads write inodes", "use noatime")
    else:
        shown = sorted(mount.options & {"rw", "noatime", "relatime", "nodiratime", "discard", "dax"})
        yield ok("mount options", ", ".join(shown) or "none that matter")


_ON_A_DISK: Final = "set log.dir (--data) to a directory on a disk; in a container, on a volume"


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that holds ``path``, which is absolute and without links; None if the text names none.

    Of several at one place the last covers the others.
    """
    mounts = filter(None, map(_parsed, reversed(mountinfo.splitlines())))
    holding = (m for m in mounts if path == m.place or path.startswith(f"{m.place.rstrip(os.sep)}/"))
    return max(holding, key=lambda mount: len(mount.place), default=None)


def _parsed(line: str) -> Mount | None:
    head, separator, tail = line.partition(" - ")
    before, behind = head.split(" "), tail.split(" ")
    if not separator or len(before) < 6 or len(behind) < 3:
        return None
    options = frozenset([*before[5].split(","), *behind[2].split(",")])
    return Mount(_unescaped(before[4]), behind[0], _unescaped(behind[1]), options)


def _unescaped(text: str) -> str:
    r"""Blanks and backslashes are written as ``\040``, in octal."""
    return re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), text)


def _permissions(path: str, described: "DescribeBrokerReply | None") -> Iterator[Check]:
    try:
        found = Path(path).stat()
    except OSError as error:
        yield unknown("permissions", f"{path}: {error.strerror}")
        return
    mode = stat.S_IMODE(found.st_mode)
    owner = described.user if described is not None else found.st_uid
    if mode & 0o002:
        yield problem(
            "permissions", f"every user of this machine can write in {path} (mode {mode:04o})", f"chmod 750 {path}"
        )
    elif mode & 0o004:
        yield warning(
            "permissions",
            f"everyone here can list {path}, and read records where files are as open (mode {mode:04o})",
            f"chmod 750 {path}",
        )
    elif found.st_uid != owner:
        yield warning(
            "permissions",
            f"{path} belongs to user {found.st_uid}, and the broker runs as user {owner}",
            f"chown -R {owner} {path} while the broker is stopped, unless its group is meant to write there",
        )
    else:
        yield ok("permissions", f"{path} belongs to the broker's user, mode {mode:04o}")
    for name in _PRIVATE:
        private = Path(path) / name
        try:
            open_to = stat.S_IMODE(private.stat().st_mode) & 0o077
        except OSError:
            continue
        if open_to:
            yield problem("permissions", f"other users of this machine can read {private}", f"chmod 600 {private}")


def time_check() -> Check:
    """Whether this machine's clock is synchronized, by adjtimex(2)."""
    state = _adjtimex()
    if state is None:
        return unknown("time sync", f"{sys.platform} does not tell whether the clock is synchronized")
    if state == _TIME_ERROR:
        return warning(
            "time sync",
            "the kernel takes this machine's clock for unsynchronized",
            "run chrony or systemd-timesyncd: retention and --from TIME compare times",
        )
    return ok("time sync", "the kernel takes this machine's clock for synchronized")


def _adjtimex() -> int | None:
    """The state of the clock; None where it cannot be asked."""
    import ctypes

    try:
        asked = ctypes.CDLL(None).adjtimex
    except (AttributeError, OSError):
        return None
    state: int = asked(ctypes.create_string_buffer(_TIMEX_BYTES))  # no mode is set: it only reads
    return state if state >= 0 else None
