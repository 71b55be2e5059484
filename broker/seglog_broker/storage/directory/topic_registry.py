"""``seglog-topics.json``: the topics with their ids, partition counts and configuration. It decides which topics exist.

Partition directories are made after the entry is written, and completed by the next start. A deletion writes the
registry first, with the topic's id in ``deleting``, or, on a disk without room for that, renames one directory to a
name that records it. So a crash at any point leaves either a topic whose directories are completed, or directories that
are known to be of a deleted topic. An unknown directory is set aside, never removed. The file contains its own
checksum, because no other file could show that a bit in a setting has flipped. It names the version that wrote it, by
which the next start knows whether it is an upgrade.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.storage.directory.kafka_access import NO_ACCESS, Access
from seglog_broker.storage.directory.kafka_metadata import METADATA_VERSION
from seglog_broker.storage.io.filenames import deleted_topic_id, is_id, why_invalid_topic
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import not_understood, seal_members, unseal
from seglog_protocol.version import VERSION

_VERSION: Final = 1
_encoded = json.dumps
_KEYS: Final = frozenset(
    {"version", "topics", "deleting", "kafka_metadata", "kafka_access", "metadata_version", "written_by"}
)

_WRITTEN_BY_MAX: Final = 50
"""Characters of a version that are shown."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. ``config`` has only the keys set for it, as in Kafka; ``notes`` are for its users.

    ``kafka_config`` has the settings in Kafka's metadata log when seglog last looked, as they are there: also keys that
    seglog does not know. Empty without such a log.
    """

    name: str
    id: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kafka_config: dict[str, str] = field(default_factory=dict)


class Topics(dict[str, Topic]):
    """Topics by name, and by id."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        super().__init__(topics)
        self.changes = 0
        """Grows whenever a topic is added, altered or deleted."""
        self._by_id = {topic.id: topic for topic in topics.values()}

    def __setitem__(self, name: str, topic: Topic) -> None:
        self._forget_id(name)
        super().__setitem__(name, topic)
        self._by_id[topic.id] = topic
        self.changes += 1

    def __delitem__(self, name: str) -> None:
        self.changes += 1
        self._forget_id(name)
        super().__delitem__(name)

    def with_id(self, topic_id: str) -> Topic | None:
        """The topic that has this id."""
        return self._by_id.get(topic_id)

    def _forget_id(self, name: str) -> None:
        topic = self.get(name)
        if topic is not None and self._by_id.get(topic.id) is topic:
            del self._by_id[topic.id]


class TopicRegistry:
    """The topics of one log directory, by name. Changes are on disk when ``save`` returns."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self.topics = Topics({})  # to be changed in place
        self.deleting: list[str] = []  # ids of deleted topics whose directories may still exist
        self._texts: dict[str, tuple[Topic, str]] = {}  # encoded entries, by name
        self.kafka_metadata: dict[str, int] | None = None
        """The files of Kafka's metadata log and their sizes when seglog last looked; None if it never did."""
        self.kafka_access = NO_ACCESS
        """The permissions and quotas in it then."""
        self.metadata_version = METADATA_VERSION
        """Of the last Kafka that has written the directory."""
        self.written_by: str | None = None
        """The version of seglog that wrote the file that was read; None of 0.2.0 and older, which did not say so."""

    def load(self) -> None:
        """Read the file. Raises LogDirectoryError when it is malformed: without it no topic can be served."""
        try:
            found = unseal(read_file(self._fs, self.path), _KEYS)
            topics = [Topic(**item) for item in found["topics"]]
            self.deleting = list(found.get("deleting", ()))
            if (sizes := found.get("kafka_metadata")) is not None:
                self.kafka_metadata = {str(name): int(size) for name, size in sizes.items()}
            self.kafka_access = Access.of_facts(found["kafka_access"]) if "kafka_access" in found else NO_ACCESS
            self.metadata_version = int(found.get("metadata_version", METADATA_VERSION))
            self.written_by = str(found["written_by"])[:_WRITTEN_BY_MAX] if "written_by" in found else None
            problem = next(filter(None, map(_why_impossible, topics)), None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found, topics, problem = {"version": _VERSION}, [], str(error) or type(error).__name__
        if found.get("version") != _VERSION:
            problem = f"version {found['version']!r} is not known" if "version" in found else "it has no version"
        if problem is not None:
            without = "have the topics adopted from their directories, without their configuration"
            raise not_understood(self.path, problem, without)
        self.topics = Topics({topic.name: topic for topic in topics})
        self._texts = {topic.name: (topic, _text(topic)) for topic in topics}  # now, because no request waits

    def remove_deleted(self, directories: Iterable[str]) -> list[str]:
        """Remove topics whose deletion a directory's name records, because the disk had no room for the registry.

        Returns those of ``directories``, which must stay until the registry is written.
        """
        by_id = {topic.id: topic.name for topic in self.topics.values()}
        recorded = [name for name in directories if deleted_topic_id(name) in by_id]
        for topic_id in dict.fromkeys(filter(None, map(deleted_topic_id, recorded))):
            del self.topics[by_id[topic_id]]
            self.deleting.append(topic_id)
        return recorded

    def save(self) -> None:
        """Replace the file; returns when it survives a power cut."""
        write_file_atomically(self._fs, self.path, self.content())

    def content(self, *, adding: Mapping[str, Topic] | None = None) -> bytes:
        """The content of the file, with new or changed topics ``adding``, by name; for writing it in a thread."""
        return self.content_of({**self.topics, **adding} if adding else self.topics, self.deleting)

    def content_of(self, topics: Mapping[str, Topic], deleting: Iterable[str] = ()) -> bytes:
        """The content of the file with these topics in place of its own."""
        known = self._texts
        texts = {}
        for name in sorted(topics):  # there may be ten thousand, of which one has changed
            topic, text = topics[name], known.get(name)
            texts[name] = text if text is not None and text[0] is topic else (topic, _text(topic))
        self._texts = texts
        access = [f'"kafka_access": {_encoded(self.kafka_access.facts())}'] if self.kafka_access != NO_ACCESS else []
        is_later = self.metadata_version != METADATA_VERSION  # else releases before 0.4 read the file, too
        return seal_members(
            (
                f'"version": {_VERSION}',
                *([f'"metadata_version": {self.metadata_version}'] if is_later else []),
                f'"topics": {_block("[]", [text for _, text in texts.values()], 2)}',
                f'"deleting": {_block("[]", map(_encoded, deleting), 2)}',
                f'"kafka_metadata": {"null" if self.kafka_metadata is None else _mapping(self.kafka_metadata, 2)}',
                *access,
                f'"written_by": {_encoded(VERSION)}',
            )
        )


def _text(topic: Topic) -> str:
    """The JSON entry of a topic, built by hand: with line breaks the library's encoder takes ten times as long."""
    members = [
        f'"name": {_encoded(topic.name)}',
        f'"id": {_encoded(topic.id)}',
        f'"partitions": {topic.partitions}',
        f'"config": {_mapping(topic.config, 4)}',
        f'"notes": {_block("[]", map(_encoded, topic.notes), 4)}',
    ]
    if topic.kafka_config:
        members.append(f'"kafka_config": {_mapping(topic.kafka_config, 4)}')
    return _block("{}", members, 3)


def _mapping(values: Mapping[str, str | int], depth: int) -> str:
    return _block("{}", [f"{_encoded(key)}: {_encoded(value)}" for key, value in values.items()], depth)


def _block(brackets: str, parts: Iterable[str], depth: int) -> str:
    """JSON parts in brackets, one a line, indented by ``depth``."""
    separator = ",\n" + " " * depth
    inside = separator.join(parts)
    return f"{brackets[0]}{separator[1:]}{inside}\n{' ' * (depth - 1)}{brackets[1]}" if inside else brackets


def _why_impossible(topic: Topic) -> str | None:
    if why_invalid_topic(topic.name) or not is_id(topic.id) or topic.partitions < 1:
        return f"the entry of topic {topic.name!r} is not possible"
    return None
