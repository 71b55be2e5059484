"""The disk under ``forgetful``, and what a crash leaves of it. It has nodes and names, but no paths, handles or faults.

For every file and directory it keeps the content as a reader sees it, the content last synced, and the changes between
the two, in order. A crash walks over those changes and decides for each whether it had reached the disk.
"""

import functools
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

_KEPT_SHARES: Final = (0.0, 0.5, 0.9, 1.0)
"""Shares of the unsynced changes that a RANDOM crash keeps. Drawn once for bytes and once for names, because bugs are
at the extremes, such as every name and no bytes."""


@dataclass(frozen=True, slots=True)
class CrashPolicy:
    """What a crash leaves of unsynced changes."""

    unsynced: Literal["kept", "lost", "random"]
    seed: int = 0


PROCESS_KILL: Final = CrashPolicy("kept")
POWER_LOSS: Final = CrashPolicy("lost")
RANDOM: Final = functools.partial(CrashPolicy, "random")
"""``RANDOM(seed)``: the same seed and state give the same result."""


class _Write(NamedTuple):
    position: int
    data: bytes
    clean: bool = False
    """A failed fdatasync marked the pages clean: the next one syncs the size, but never the bytes."""


class _Truncate(NamedTuple):
    size: int


class Inode:
    """A file's content. ``_pending`` are the changes from ``_durable`` to ``content``, less what a failed sync lost."""

    __slots__ = ("_durable", "_pending", "content", "evicted", "mtime_ms", "version")

    def __init__(self, mtime_ms: int, content: bytes | bytearray = b"") -> None:
        """A synced file with this content."""
        self.content = bytearray(content)
        self.mtime_ms = mtime_ms
        self.version = 0
        self.evicted = False
        self._durable = bytearray(content)
        self._pending: list[_Write | _Truncate] = []

    def write(self, data: bytes, position: int) -> None:
        """Write into the page cache."""
        _put(self.content, data, position)
        self._pending.append(_Write(position, data))
        self.version += 1

    def truncate(self, size: int) -> None:
        """Cut or extend with zeros, in the page cache."""
        _resize(self.content, size)
        self._pending.append(_Truncate(size))
        self.version += 1

    def sync(self) -> None:
        """Sync the dirty pages and the size."""
        pending, self._pending = self._pending, []  # in one step: another thread may write during a sync
        for change in pending:
            if isinstance(change, _Truncate):
                _resize(self._durable, change.size)
            elif change.clean:
                _grow(self._durable, change.position + len(change.data))
            else:
                _put(self._durable, change.data, change.position)

    def fail_sync(self) -> None:
        """Mark the dirty pages as clean although they are not written, as Linux does after an error."""
        pending, self._pending = self._pending, []
        self._pending[:0] = [
            change._replace(clean=True) if isinstance(change, _Write) else change for change in pending
        ]

    def __deepcopy__(self, _memo: object) -> "Inode":
        """A copy with the same unsynced changes, without open handles."""
        copy = Inode(self.mtime_ms)
        copy.content, copy._durable, copy._pending = self.content[:], self._durable[:], self._pending[:]
        copy.evicted = self.evicted
        return copy

    def after_power_cut(self, dice: random.Random | None, kept_share: float) -> "Inode":
        """The file after a power cut: the synced bytes, and those of the rest that ``dice`` keeps."""
        left = self._durable[:]
        if dice:
            for change in self._pending:
                if isinstance(change, _Write):
                    _maybe_put(left, change, dice, kept_share)
                elif dice.random() < kept_share:
                    _resize(left, change.size)
        return Inode(self.mtime_ms, left)


class Directory:
    """Names as a reader sees them (``entries``) and as they were last synced (``durable``)."""

    __slots__ = ("durable", "entries", "mtime_ms")

    def __init__(self, mtime_ms: int) -> None:
        """An empty directory."""
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.mtime_ms = mtime_ms


Node = Inode | Directory


class NameChange(NamedTuple):
    """A name changes from node ``before`` to ``after``. It depends on the change that made ``before``."""

    directory: Directory
    name: str
    before: Node | None
    after: Node | None


Step = tuple[NameChange, ...]
"""Atomic changes of names."""


class Disk:
    """The tree, its unsynced steps, and its capacity.

    ``capacity`` is bytes of file content; ``inodes_max`` is the limit on files and directories.
    """

    def __init__(self, root: Directory, pending: list[Step], capacity: int | None = None) -> None:
        self.root = root
        self.capacity = capacity
        self.inodes_max: int | None = None
        self._pending = pending

    def write(self, inode: Inode, data: bytes, position: int, now_ms: int) -> None:
        """Write to a file; the caller has checked that it fits."""
        if data:
            inode.write(data, position)
            inode.mtime_ms = now_ms

    def truncate(self, inode: Inode, size: int, now_ms: int) -> None:
        """Change a file's size; zeros added at its end use space, but are never refused."""
        inode.mtime_ms = now_ms
        if size != len(inode.content):
            inode.truncate(size)

    @property
    def inodes_used(self) -> int:
        """The number of files and directories with a name, the root included."""
        return 1 + len({node for _, node in walk(self.root)})

    def change(self, step: Step, now_ms: int) -> None:
        """Change names in one step."""
        for change in step:
            _set(change.directory.entries, change)
            change.directory.mtime_ms = now_ms
        self._pending.append(step)

    def sync(self, directory: Directory) -> None:
        """Sync a directory's names, and those of directories that share a rename with it."""
        synced = {directory}
        reached = 0
        while reached != len(synced):
            reached = len(synced)
            for step in self._pending:
                directories = {change.directory for change in step}
                if directories & synced:
                    synced |= directories
        remaining = []
        for step in self._pending:
            if step[0].directory in synced:
                for change in step:
                    _set(change.directory.durable, change)
            else:
                remaining.append(step)
        self._pending = remaining

    def after(self, policy: CrashPolicy) -> "Disk":
        """The disk after a crash now; a copy."""
        if policy.unsynced == "kept":
            return Disk(*deepcopy((self.root, self._pending)), self.capacity)
        dice = random.Random(policy.seed) if policy.unsynced == "random" else None  # noqa: S311  repeatable on purpose
        return Disk(_after_power_cut(self.root, self._pending, dice), [], self.capacity)


def walk(directory: Directory, path: str = "") -> Iterator[tuple[str, Node]]:
    """Everything below a directory, with its path."""
    for name, node in directory.entries.items():
        yield f"{path}/{name}", node
        if isinstance(node, Directory):
            yield from walk(node, f"{path}/{name}")


def _grow(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))


def _put(content: bytearray, data: bytes, position: int) -> None:
    _grow(content, position)
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    _grow(content, size)


def _maybe_put(content: bytearray, write: _Write, dice: random.Random, kept_share: float) -> None:
    """All, a part or nothing of one write."""
    position, data, _ = write
    if dice.random() < kept_share:
        _put(content, data, position)
    elif kept_share:  # with a share of 0 the crash is a plain power loss
        cut = dice.randrange(len(data) + 1)
        match dice.randrange(3):
            case 0:
                _put(content, data[:cut], position)
            case 1:  # pages are written in any order: the end of a write may be on the disk without its beginning
                _put(content, data[cut:], position + cut)
            case _:
                pass
        if dice.random() < 0.5:
            _grow(content, position + len(data))  # the size is not a page: it may be on the disk alone


def _set(names: dict[str, Node], change: NameChange) -> None:
    if change.after is None:
        del names[change.name]
    else:
        names[change.name] = change.after


def _after_power_cut(root: Directory, pending: list[Step], dice: random.Random | None) -> Directory:
    """The tree that a power cut leaves: what was synced, and by ``dice`` any share of the rest that POSIX allows."""
    names_share, bytes_share = (dice.choice(_KEPT_SHARES), dice.choice(_KEPT_SHARES)) if dice else (0.0, 0.0)
    on_disk: dict[Directory, dict[str, Node]] = {}
    for step in pending:
        if dice is None or dice.random() >= names_share:
            continue
        names = [on_disk.setdefault(change.directory, dict(change.directory.durable)) for change in step]
        # A step whose names have other nodes than before it depends on a lost step, and is lost, too.
        if all(have.get(change.name) is change.before for have, change in zip(names, step, strict=True)):
            for have, change in zip(names, step, strict=True):
                _set(have, change)

    files: dict[Inode, Inode] = {}

    def left(node: Node) -> Node:
        if isinstance(node, Directory):
            return left_directory(node)
        if node not in files:
            files[node] = node.after_power_cut(dice, bytes_share)
        return files[node]

    def left_directory(directory: Directory) -> Directory:
        copy = Directory(directory.mtime_ms)
        copy.durable = {name: left(node) for name, node in on_disk.get(directory, directory.durable).items()}
        copy.entries = dict(copy.durable)
        return copy

    return left_directory(root)
