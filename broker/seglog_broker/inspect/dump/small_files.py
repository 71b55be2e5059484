"""The facts of small files: checkpoints, epochs, snapshots, transaction indexes, and the small texts.

Each reader uses the module of the file's format. A malformed file gives the facts that can be read, then one ``Damage``
with the reason.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from seglog_broker.inspect import facts as f
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.identity import FORMAT_VERSION, decode_properties
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.log.leader_epochs import EpochEntry
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, MalformedStateError, PartitionState
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol import errors, transaction_files

BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger file is not read: the largest valid ones have a line for each partition."""

Reader = Callable[[FileSystem, str], Iterator[f.Fact]]


def dump_small_file(fs: FileSystem, path: str, type_: str, reader: Reader) -> Iterator[f.Fact]:
    """A heading with the ``type_`` of the file in words, then the facts of ``reader``. Raises OSError."""
    size = fs.stat(path).size
    yield f.FileFound(path, type_, size)
    if size > BYTES_MAX:
        yield f.Damage(path, None, None, f"it has {size} bytes, which no {type_} has; it was not read")
        return
    yield from reader(fs, path)


def read_offset_checkpoint(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """One of the log directory's four checkpoints."""
    try:
        offsets = checkpoints.decode_offsets(read_file(fs, path))
    except checkpoints.MalformedCheckpointError as error:
        yield f.Damage(path, None, None, f"{error}; a start takes it for empty")
        return
    for (topic, partition), offset in sorted(offsets.items()):
        yield f.CheckpointEntry(topic, partition, offset)


def read_epochs(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``leader-epoch-checkpoint``, line by line."""
    before = EpochEntry(-1, -1)
    try:
        for epoch, start in checkpoints.decode_checkpoint(read_file(fs, path), 2):
            entry = EpochEntry(int(epoch), int(start))
            yield f.EpochFound(*entry)
            if entry.epoch <= before.epoch or entry.start_offset <= before.start_offset:
                yield f.Damage(path, None, None, f"epoch {epoch} at offset {start} does not follow the entry before it")
            before = entry
    except ValueError as error:
        yield f.Damage(path, None, None, f"{error}; a start takes it for empty")


def read_snapshot(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """A producer snapshot."""
    content = read_file(fs, path)
    try:
        entries = transaction_files.decode_snapshot(content)
    except transaction_files.MalformedSnapshotError as error:
        yield f.Damage(path, error.position if content else None, len(content) or None, str(error))
        return
    for entry in entries:
        first = entry.current_txn_first_offset
        yield f.ProducerFound.of(entry, current_txn_first_offset=None if first < 0 else first)


def txn_index_reader(base_offset: int) -> Reader:
    """A reader of the transaction index of the segment with that base offset."""

    def read(fs: FileSystem, path: str) -> Iterator[f.Fact]:
        content = read_file(fs, path)
        count, rest = divmod(len(content), transaction_files.TXN_INDEX_ENTRY.size)
        before = base_offset - 1
        for number in range(count):
            entry = transaction_files.aborted_transaction(content, number)
            yield f.AbortedFound(number, *entry[1:])
            problem = None
            if entry.version != transaction_files.TXN_INDEX_VERSION:
                problem = f"its version is {entry.version}, not {transaction_files.TXN_INDEX_VERSION}"
            elif entry.last_offset <= before:
                problem = f"its last offset {entry.last_offset} is not above {before}"
            elif entry.first_offset > entry.last_offset:
                problem = "it ends before it begins"
            if problem is None:
                before = entry.last_offset
            else:
                at = number * transaction_files.TXN_INDEX_ENTRY.size
                yield f.Damage(path, at, at + transaction_files.TXN_INDEX_ENTRY.size, f"entry {number}: {problem}")
        if rest:
            yield f.Damage(path, len(content) - rest, len(content), "half an entry")

    return read


def read_partition_metadata(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``partition.metadata``."""
    try:
        yield f.Property("topic_id", filenames.decode_partition_metadata(read_file(fs, path)))
    except ValueError as error:
        yield f.Damage(path, None, None, str(error))


def read_meta_properties(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``meta.properties``."""
    for name, value in decode_properties(read_file(fs, path)).items():
        yield f.Property(name, value)


def read_clean_marker(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``.kafka_cleanshutdown``: only its existence counts, so its content is never damage."""
    try:
        content = json.loads(read_file(fs, path))
    except ValueError:
        content = None
    for name, value in content.items() if isinstance(content, Mapping) else ():
        yield f.Property(name, str(value))
    yield f.Note(path, "the broker stopped cleanly; the next start removes this marker and trusts the indexes")


def read_format(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``seglog-format``."""
    text = read_file(fs, path).decode(errors="replace").strip()
    yield f.Property("format", text[:20])
    if not text.isdigit():
        yield f.Damage(path, None, None, f"its format {text[:20]!r} is not a number")
    elif int(text) > FORMAT_VERSION:
        yield f.Note(path, f"format {text[:20]} is newer than {FORMAT_VERSION}; this version of seglog refuses it")


def read_registry(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``seglog-topics.json``."""
    registry = TopicRegistry(fs, path)
    try:
        registry.load()
    except errors.LogDirectoryError as error:
        yield f.Damage(path, None, None, error.message)
        return
    for topic in sorted(registry.topics.values(), key=lambda topic: topic.name):
        yield f.TopicFound(topic.name, topic.id, topic.partitions, topic.config, topic.notes)
    for topic_id in registry.deleting:
        yield f.Note(path, f"the topic with id {topic_id} is being deleted; the next start removes its directories")


def read_dynamic_configs(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``seglog-configs.json``: each setting made at run time, after whose it is."""
    from seglog_broker.storage.directory import dynamic_configs  # noqa: PLC0415 - it imports the configuration
    from seglog_protocol.quotas import entity_text  # noqa: PLC0415 - it is not needed elsewhere

    try:
        found = dynamic_configs.read_dynamic_configs(fs, path)
    except errors.LogDirectoryError as error:
        yield f.Damage(path, None, None, error.message)
        return
    for name, settings in found.brokers.items():
        owner = f"broker {name}" if name else "all brokers"
        yield from (f.Property(f"{owner}: {key}", value) for key, value in settings.items())
    for name, settings in found.groups.items():
        yield from (f.Property(f"group {name}: {key}", value) for key, value in settings.items())
    for entity, quotas in found.clients.items():
        yield from (f.Property(f"{entity_text(entity)}: {key}", f"{value:g}") for key, value in quotas.items())


def read_accounts(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``seglog-accounts.json``: each account with its mechanisms, and nothing that a password could be guessed from."""
    store = AccountStore(fs, path)
    try:
        store.load()
    except errors.LogDirectoryError as error:
        yield f.Damage(path, None, None, error.message)
        return
    for name in store.names():
        credentials = (store.account(name) or {}).values()
        told = ", ".join(f"{each.mechanism} with {each.iterations:,} iterations" for each in credentials)
        yield f.Property(f"account {name}", told)


def read_acls(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``seglog-acls.json``: each rule."""
    store = AclStore(fs, path)
    try:
        store.load()
    except errors.LogDirectoryError as error:
        yield f.Damage(path, None, None, error.message)
        return
    yield from (f.Property("ACL", str(rule)) for rule in store.rules)


def read_partition_state(fs: FileSystem, path: str) -> Iterator[f.Fact]:
    """``seglog-partition.json``; a ``Damage`` for each range of damage recorded in it."""
    directory = path.rpartition("/")[0] or "."
    try:
        state = PartitionState.read(fs, directory)
    except MalformedStateError as error:
        yield f.Damage(path, None, None, f"it cannot be understood ({error}); a start takes it for absent")
        return
    yield f.StateFound.of(state)
    if state.read_only is not None:
        yield f.Damage(path, None, None, f"the partition is marked read-only: {state.read_only}")
    for known in state.damaged:
        yield f.DamagedOffsets.of(known)
        yield f.Damage(
            path,
            None,
            None,
            f"offsets {known.start_offset} to {known.end_offset - 1} are recorded as {known.reason}, "
            f"at {known.position} in segment {known.segment}",
        )


SMALL_FILES: Final[Mapping[str, tuple[str, Reader]]] = {
    **dict.fromkeys(filenames.OFFSET_CHECKPOINTS, ("offset checkpoint", read_offset_checkpoint)),
    checkpoints.LEADER_EPOCH_CHECKPOINT: ("leader epoch checkpoint", read_epochs),
    filenames.PARTITION_METADATA_FILE: ("partition metadata", read_partition_metadata),
    filenames.META_PROPERTIES_FILE: ("identity of the log directory", read_meta_properties),
    filenames.CLEAN_SHUTDOWN_FILE: ("marker of a clean stop", read_clean_marker),
    filenames.REGISTRY_FILE: ("topic registry", read_registry),
    filenames.DYNAMIC_CONFIGS_FILE: ("settings made at run time", read_dynamic_configs),
    filenames.ACCOUNTS_FILE: ("accounts", read_accounts),
    filenames.ACLS_FILE: ("ACLs", read_acls),
    filenames.FORMAT_FILE: ("format of the log directory", read_format),
    PARTITION_STATE_FILE: ("partition state", read_partition_state),
}
"""Files with a fixed name: their type in words, and their reader."""
