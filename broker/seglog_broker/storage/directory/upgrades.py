"""What a start changes in a log directory that another version of seglog wrote, known before anything is changed.

``seglog-topics.json`` names the version that wrote it last (``written_by``). Nothing here changes a file: a start says
what is found and then does it, and ``seglogd --check-config`` says it while no broker runs.
"""

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from seglog_broker.config.topic_overrides import settings_in_force
from seglog_broker.storage.directory.identity import check_format, root_names
from seglog_broker.storage.directory.kafka_metadata import METADATA_TOPIC_ID
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.partition_files import topic_id_in
from seglog_broker.texts import counted
from seglog_protocol.internal_topics import RESERVED_TOPIC
from seglog_protocol.version import VERSION

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
