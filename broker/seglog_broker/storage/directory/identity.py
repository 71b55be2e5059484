"""Small files of a log directory as a whole: its format, its identity, its version, and the time that it trusts.

``seglog-format`` is a number. ``meta.properties`` has the cluster id. ``seglog-clock.json`` is the wall time of the
last checkpoint at which the clock was trusted, as sealed JSON: ``version``, 1, and ``trusted_ms``, ms since 1970.
``seglog-fencing``, empty, is there from a restore, which may be behind what clients were told, until its first start
has fenced all transactional ids.

``seglog-topics.json`` names the version that wrote it last (``written_by``). What a start changes in a directory of
another version is known before anything is changed: a start says what is found and then does it, and ``seglogd
--check-config`` says it while no broker runs.
"""

import contextlib
import re
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from seglog_broker.config.topic_overrides import settings_in_force
from seglog_broker.storage.directory.kafka_metadata import METADATA_TOPIC_ID
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.log.partition_files import topic_id_in
from seglog_broker.texts import counted
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.internal_topics import RESERVED_TOPIC
from seglog_protocol.segment_files import TEMPORARY_SUFFIX
from seglog_protocol.version import VERSION

FORMAT_VERSION: Final = 1
"""The number in ``seglog-format``; a higher one is of a newer seglog and is refused."""

FORMAT_CONTENT: Final = f"{FORMAT_VERSION}\n".encode()
"""The content of ``seglog-format``."""

_META_VERSION: Final = "1"
_CLOCK_VERSION: Final = 1

_BEING_RESTORED: Final = "being restored"
_BEING_FOLLOWED: Final = "of a standby"

_DIRECTORY_ID: Final = re.compile(r"[ \t]*directory\.id[ \t]*[=:]|# restored by seglog ")

_PROPERTY: Final = re.compile(r"^[ \t]*([^#!\s=:]+)[ \t]*[=:][ \t]*(.*?)[ \t\r]*$", re.MULTILINE)
"""The subset of Java's properties format in ``meta.properties``: ``key=value``, ``#`` and ``!`` comments."""


def root_names(fs: FileSystem, path: str) -> list[str]:
    """The names in a log directory, without those of others, which stay there. Raises OSError."""
    return [
        name
        for name in fs.list_directory(path)
        if not filenames.is_neighbour(name) or fs.exists(f"{path}/{name}/{filenames.PARTITION_METADATA_FILE}")
    ]


def is_being_restored(fs: FileSystem, path: str) -> bool:
    """True if a restore into the directory ``path`` is under way, or was killed."""
    return _format_text(fs, path) == _BEING_RESTORED


def is_to_begin(fs: FileSystem, path: str) -> bool:
    """True if the directory ``path`` is not there, or empty, or as a killed restore has left it. Raises OSError."""
    if not fs.exists(path):
        return True
    found = root_names(fs, path)
    return found in ([], [f"{filenames.FORMAT_FILE}{TEMPORARY_SUFFIX}"]) or is_being_restored(fs, path)


def _format_text(fs: FileSystem, path: str) -> str | None:
    file = f"{path}/{filenames.FORMAT_FILE}"
    return read_file(fs, file).decode(errors="replace").strip() if fs.exists(file) else None


def check_format(fs: FileSystem, path: str) -> None:
    """Raise LogDirectoryError if a newer seglog wrote the log directory ``path``."""
    file = f"{path}/{filenames.FORMAT_FILE}"
    text = _format_text(fs, path)
    if text is None:
        return
    if text == _BEING_RESTORED:
        raise LogDirectoryError(
            f"a restore into {path} was not finished: remove everything in it, and run `seglogd restore` again",
            path=path,
        )
    if text == _BEING_FOLLOWED:
        raise LogDirectoryError(
            f"{path} is a standby's: have it serve with `seglog promote {path}`, while seglogd --standby runs on it",
            path=path,
        )
    if not text.isdigit() or int(text) > FORMAT_VERSION:
        raise LogDirectoryError(
            f"{file} says format {text[:20]!r}, this version of seglog knows formats up to {FORMAT_VERSION}: "
            "use the newer version that wrote it",
            path=path,
        )


def write_format(fs: FileSystem, path: str) -> None:
    """Write ``seglog-format`` into the log directory ``path``."""
    write_file_atomically(fs, f"{path}/{filenames.FORMAT_FILE}", FORMAT_CONTENT)


def begin_restore(fs: FileSystem, path: str) -> None:
    """Have every start refuse the log directory ``path`` until ``write_format``: its files are not all there."""
    write_file_atomically(fs, f"{path}/{filenames.FORMAT_FILE}", f"{_BEING_RESTORED}\n".encode())


def begin_following(fs: FileSystem, path: str) -> None:
    """Have every start of a broker refuse the log directory ``path`` until ``write_format``: a standby's."""
    write_file_atomically(fs, f"{path}/{filenames.FORMAT_FILE}", f"{_BEING_FOLLOWED}\n".encode())


def is_followed(fs: FileSystem, path: str) -> bool:
    """True of the directory of a standby that was not promoted."""
    return _format_text(fs, path) == _BEING_FOLLOWED


def encode_restored_identity(content: bytes, directory_id: str, backup: str) -> bytes:
    """A ``meta.properties`` with another directory id, which names the backup that the directory is from."""
    kept = [line for line in content.decode(errors="replace").splitlines() if not _DIRECTORY_ID.match(line)]
    lines = [*kept, f"# restored by seglog from the backup {backup}", f"directory.id={directory_id}"]
    return "".join(f"{line}\n" for line in lines).encode()


def mark_behind(fs: FileSystem, path: str) -> None:
    """Note that the log directory ``path`` is an earlier state than clients have seen. Raises OSError."""
    write_file_atomically(fs, f"{path}/{filenames.FENCING_FILE}", b"")


def is_behind(fs: FileSystem, path: str) -> bool:
    """True if that is noted, and no start has taken care of it yet. Raises OSError."""
    return fs.exists(f"{path}/{filenames.FENCING_FILE}")


def note_fenced(fs: FileSystem, path: str) -> None:
    """Take the note away. Raises OSError."""
    fs.unlink(f"{path}/{filenames.FENCING_FILE}")
    fs.sync_directory(path)


def read_cluster_id(fs: FileSystem, path: str, found: Collection[str]) -> str | None:
    """The cluster id in ``meta.properties``, empty if it names none; None if the file is not among ``found``.

    Raises LogDirectoryError for an unknown version of the file.
    """
    if filenames.META_PROPERTIES_FILE not in found:
        return None
    file = f"{path}/{filenames.META_PROPERTIES_FILE}"
    properties = decode_properties(read_file(fs, file))
    if properties.get("version", "0") not in ("0", _META_VERSION):
        raise LogDirectoryError(
            f"{file} has version {properties['version']!r}, which neither this seglog nor the Kafka it knows "
            "writes: choose another directory with --set log.dir=DIRECTORY",
            path=path,
        )
    return properties.get("cluster.id", "")


def write_identity(fs: FileSystem, path: str, node_id: int, new_uuid: Callable[[], uuid.UUID]) -> str:
    """Write a ``meta.properties`` for the broker ``node_id`` with a new cluster id, and return that."""
    cluster_id = filenames.new_id(new_uuid())
    content = encode_identity(node_id, filenames.new_id(new_uuid()), cluster_id)
    write_file_atomically(fs, f"{path}/{filenames.META_PROPERTIES_FILE}", content)
    return cluster_id


def encode_identity(node_id: int, directory_id: str, cluster_id: str) -> bytes:
    """The content of a ``meta.properties``."""
    lines = (
        "#",
        "# written by seglog",
        f"node.id={node_id}",
        f"directory.id={directory_id}",
        f"version={_META_VERSION}",
        f"cluster.id={cluster_id}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def decode_properties(content: bytes) -> dict[str, str]:
    """The properties; of equal keys the last wins. Other lines, and bytes that are not UTF-8, are ignored."""
    return dict(_PROPERTY.findall(content.decode(errors="replace")))


def encode_trusted_time(trusted_ms: int) -> bytes:
    """The content of ``seglog-clock.json``."""
    return seal({"version": _CLOCK_VERSION, "trusted_ms": trusted_ms})


def decode_trusted_time(content: bytes) -> int:
    """The time, in ms, in the content of a file. Raises MalformedJsonError."""
    found = unseal(content, {"version", "trusted_ms"})
    version, trusted_ms = found.get("version"), found.get("trusted_ms")
    if version != _CLOCK_VERSION:
        raise MalformedJsonError(f"its version is {version!r}, not {_CLOCK_VERSION}")
    if type(trusted_ms) is not int:
        raise MalformedJsonError(f"its trusted_ms is {trusted_ms!r}, not a whole number")
    return trusted_ms


RENAMED_TOPIC: Final = f"renamed.{RESERVED_TOPIC}"
"""The name of a topic that an earlier version made under the reserved one."""

UNNAMED: Final = "0.2.0 or older"
"""The versions that did not say which of them wrote a directory."""

_RELEASE = re.compile(r"\d+(?:\.\d+)*")


class OtherVersion(NamedTuple):
    """A log directory that another version of seglog wrote last. ``changes`` are sentences: what a start changes."""

    written_by: str
    is_newer: bool
    changes: list[str]


def find_other_version(
    fs: FileSystem, path: str, found: Collection[str], registry: TopicRegistry
) -> OtherVersion | None:
    """What is to be said of a directory with that ``registry``; None where this version wrote it last.

    ``found`` are the names in the log directory ``path``. Raises OSError.
    """
    if registry.written_by == VERSION:
        return None
    changes = [f"{filenames.REGISTRY_FILE} names {VERSION} as the version that wrote it, which older versions ignore"]
    if RESERVED_TOPIC in registry.topics or reserved_directories(fs, path, found):
        changes.append(f"the topic {RESERVED_TOPIC} is renamed to {RENAMED_TOPIC}")
    changes += [f"settings of {topic.name} are corrected: {told}" for topic, _, told in corrections(registry)]
    written_by = UNNAMED if registry.written_by is None else registry.written_by
    return OtherVersion(written_by, _release(written_by) > _release(VERSION), changes)


def upgrade_lines(fs: FileSystem, path: str) -> list[str]:
    """What a start would say and change, a line each; nothing of a directory that is new, or is another program's.

    Raises LogDirectoryError where a start would refuse the directory for its format or its registry, and OSError.
    """
    if not fs.exists(path):
        return []
    check_format(fs, path)
    found = root_names(fs, path)
    if filenames.REGISTRY_FILE not in found:
        return _lines_of_kafka(path, found)
    registry = TopicRegistry(fs, f"{path}/{filenames.REGISTRY_FILE}")
    registry.load()
    other = find_other_version(fs, path, found, registry)
    if other is None:
        return [f"{path} was last written by this version, {VERSION}."]
    newer = " It is newer: what it keeps in files of its own is not used." if other.is_newer else ""
    written = f"{path} was last written by seglog {other.written_by}; this is {VERSION}.{newer}"
    return [written, "The next start changes there:", *(f"  {change}" for change in other.changes)]


def _lines_of_kafka(path: str, found: Collection[str]) -> list[str]:
    topics = set()
    for name in found:
        with contextlib.suppress(ValueError):
            topics.add(filenames.parse_partition_directory(name).topic)
    if not topics - {RESERVED_TOPIC} or filenames.FORMAT_FILE in found:
        return []
    change = (
        f"  {counted(len(topics - {RESERVED_TOPIC}), 'topic')} of Kafka's become seglog's: it writes "
        f"{filenames.REGISTRY_FILE} and files of its own beside Kafka's, which Kafka ignores"
    )
    return [f"{path} was last written by Apache Kafka.", "The next start changes there:", change]


def reserved_directories(fs: FileSystem, path: str, found: Collection[str]) -> dict[str, tuple[int, str]]:
    """Partition directories of a topic that an earlier version made under the name of Kafka's metadata log.

    Partition and topic id by name, of those among ``found``, the names in the log directory ``path``.
    """
    directories = {}
    for name in (name for name in found if name.startswith(f"{RESERVED_TOPIC}-")):
        parsed = filenames.parse_partition_directory(name)
        topic_id = topic_id_in(fs, f"{path}/{name}")
        if parsed.topic == RESERVED_TOPIC and topic_id not in (None, METADATA_TOPIC_ID):
            directories[name] = parsed.partition, topic_id
    return directories


def corrections(registry: TopicRegistry) -> Iterator[tuple[Topic, dict[str, str], str]]:
    """Internal topics that an older version, or Kafka, gave settings under which records are lost.

    Each with the settings that it needs, and the changed ones as text.
    """
    for name, topic in registry.topics.items():
        config = settings_in_force(name, topic.config)
        if config != topic.config:
            changed = (f"{key}={value}" for key, value in config.items() if topic.config.get(key) != value)
            yield topic, config, ", ".join(changed)


def _release(version: str) -> list[int]:
    """The numbers of a version, without what is behind them; none of one that has no number."""
    found = _RELEASE.match(version)
    return [int(part) for part in found[0].split(".")] if found else []
