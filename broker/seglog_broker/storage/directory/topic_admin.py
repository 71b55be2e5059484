"""Creates topics with their files, alters and deletes them, each atomically with respect to crashes.

During a creation ``seglog-creation.json`` has the partitions that are being made. A start completes only those: the
directory of any other partition that is absent was lost, with its records.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from seglog_broker.storage.directory.partition_logs import PartitionLogs
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.free_space import FreeSpace
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import is_no_room, storage_error, why
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.log.partition_files import make_partitions
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol import errors
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.internal_topics import RESERVED_TOPIC

_VERSION: Final = 2
_KEYS: Final = frozenset({"version", "first_partitions", "topic_id", "first_partition"})


class PendingCreation(NamedTuple):
    """The partitions that are being made, or were at a crash."""

    first_partitions: Mapping[str, int]
    """By topic id: the partitions from this one on."""

    @classmethod
    def read(cls, fs: FileSystem, path: str) -> "PendingCreation | None":
        """The content of the file in the log directory ``path``; None if it is absent or malformed."""
        file = f"{path}/{filenames.CREATION_FILE}"
        if not fs.exists(file):
            return None
        try:
            found = unseal(read_file(fs, file), _KEYS)
            if found["version"] == 1:  # of one topic
                return cls({str(found["topic_id"]): int(found["first_partition"])})
            return cls({str(topic_id): int(first) for topic_id, first in found["first_partitions"].items()})
        except (MalformedJsonError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def has(self, topic_id: str, partition: int) -> bool:
        """Whether this partition is one of them."""
        first = self.first_partitions.get(topic_id)
        return first is not None and partition >= first

    def save(self, fs: FileSystem, path: str) -> None:
        """Write the file; returns when it survives a power cut."""
        content = seal({"version": _VERSION, "first_partitions": self.first_partitions})
        write_file_atomically(fs, f"{path}/{filenames.CREATION_FILE}", content)


class NewPartitions(NamedTuple):
    """A topic that is new, or altered, and the first of its partitions that are new; those after it are, too."""

    topic: Topic
    first_partition: int

    @property
    def keys(self) -> Iterator[tuple[str, int]]:
        """Topic and number of each new partition."""
        return ((self.topic.name, number) for number in range(self.first_partition, self.topic.partitions))


@dataclass(eq=False, repr=False)
class TopicCreation:
    """The files of new topics, or of partitions added to one.

    ``run`` makes them. It uses no shared state, so it may be called in a thread; a second time only if it makes no
    partitions.
    """

    _fs: FileSystem
    _path: str
    parts: Sequence[NewPartitions]
    _registry_path: str
    _registry: bytes
    logs: dict[tuple[str, int], PartitionLog] = field(default_factory=dict, init=False)
    """Those opened so far, see ``TopicAdmin.opening``."""

    @property
    def makes_partitions(self) -> bool:
        """Whether there are partitions to make, beside writing the registry."""
        return any(first < topic.partitions for topic, first in self.parts)

    def run(self) -> None:
        """Write the registry, then the directories: a start after a crash completes these. May raise OSError."""
        if self.makes_partitions:
            PendingCreation({topic.id: first for topic, first in self.parts}).save(self._fs, self._path)
        write_file_atomically(self._fs, self._registry_path, self._registry)
        if self.makes_partitions:
            directories = [
                (f"{self._path}/{filenames.partition_directory_name(*key)}", part.topic.id)
                for part in self.parts
                for key in part.keys
            ]
            make_partitions(self._fs, directories)
            self._fs.sync_directory(self._path)
            self._fs.unlink(f"{self._path}/{filenames.CREATION_FILE}")
            self._fs.sync_directory(self._path)  # from the first record on, an absent directory is lost


PARTITIONS_MAX: Final = 10_000
"""Partitions of one topic: each costs a directory, three open files and their fsyncs at creation."""


@dataclass(eq=False, repr=False)
class TopicAdmin:
    """Creates, alters and deletes the topics of one log directory.

    ``half_made``: renamed directories of partitions that could not be made, still to be removed, at the latest by the
    next start. ``unrecorded``: directories whose names alone record that a topic was deleted, because the disk had no
    room for the registry; they are emptied, and stay until it is written.
    """

    _fs: FileSystem
    _path: str
    _partitions: PartitionLogs
    registry: TopicRegistry
    _space: FreeSpace
    _handles: HandlePool
    _new_uuid: Callable[[], uuid.UUID]
    half_made: list[str] = field(default_factory=list, init=False)
    unrecorded: set[str] = field(default_factory=set, init=False)

    def new_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        """A topic that can be created, with an id of its own; nothing is done.

        Raises InvalidTopicError, InvalidRequestError for a reserved name, TopicExistsError or InvalidPartitionsError.
        """
        problem = filenames.why_invalid_topic(name)
        if problem is not None:
            raise errors.InvalidTopicError(f"{name[:60]!r} cannot be a topic's name: {problem}", topic=name[:60])
        if name == RESERVED_TOPIC:
            raise errors.InvalidRequestError(
                f"topic {name} cannot be created: Apache Kafka keeps its metadata log under this name", field="topic"
            )
        if name in self.registry.topics:
            raise errors.TopicExistsError(f"topic {name} exists already", topic=name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise errors.InvalidPartitionsError(f"a topic has from 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        return Topic(name, filenames.new_id(self._new_uuid()), partitions, config)

    def plan_creation(self, topics: Iterable[Topic]) -> TopicCreation:
        """The work of creating these topics, which have different names.

        Call the result's ``run`` (many fsyncs, so in a thread), then ``finish_creation``. No other topic may be created
        or deleted in between.
        """
        return self._planned([NewPartitions(topic, 0) for topic in topics])

    def _planned(self, parts: Sequence[NewPartitions]) -> TopicCreation:
        registry = self.registry.content(adding={part.topic.name: part.topic for part in parts})
        return TopicCreation(self._fs, self._path, parts, self.registry.path, registry)

    def finish_creation(self, creation: TopicCreation, error: OSError | None) -> None:
        """Put topics into service whose files were made. StorageError if they were not: nothing of them is left."""
        topics = [part.topic for part in creation.parts]
        try:
            logs = self._opened(creation, error)
        except OSError as failure:
            self.registry.deleting += [topic.id for topic in topics]
            self._undo(creation)  # so that the next start does not find it
            names = topics[0].name if len(topics) == 1 else f"{topics[0].name} and {len(topics) - 1} with it"
            raise storage_error(f"topic {names} could not be created: {why(failure)}", failure) from failure
        for topic in topics:
            self.registry.topics[topic.name] = topic
        self._partitions.logs |= logs

    def opening(self, creation: TopicCreation) -> Iterator[tuple[TopicPartition, PartitionLog]]:
        """Open the logs of new partitions, one per step, since many of them take the loop a long time.

        An OSError is to be passed to ``finish_creation`` or ``finish_alteration``, which open the remaining logs.
        """
        for part in creation.parts:
            config = self._partitions.config.topic_config(part.topic.config)
            for key in part.keys:
                if key not in creation.logs:
                    creation.logs[key] = self._partitions.new_log(key, config)
                    yield key, creation.logs[key]

    def _opened(self, creation: TopicCreation, error: OSError | None) -> dict[TopicPartition, PartitionLog]:
        """The logs of the new partitions. Raises ``error`` if given, or what opening them raises."""
        try:
            if error is not None:
                raise error
            for _ in self.opening(creation):
                pass
        except OSError:
            for log in creation.logs.values():
                log.release()
            raise
        return creation.logs

    def plan_alteration(self, topic: Topic, partitions: int, config: dict[str, str]) -> TopicCreation:
        """The work of changing a topic's configuration and adding partitions; then call ``finish_alteration``.

        The rules of ``plan_creation`` apply. Raises InvalidPartitionsError for fewer partitions.
        """
        if not topic.partitions <= partitions <= PARTITIONS_MAX:
            raise errors.InvalidPartitionsError(
                f"topic {topic.name} has {topic.partitions} partitions and can have up to {PARTITIONS_MAX}, not "
                f"{partitions}: partitions cannot be removed"
            )
        return self._planned([NewPartitions(replace(topic, partitions=partitions, config=config), topic.partitions)])

    def finish_alteration(self, before: Topic, alteration: TopicCreation, error: OSError | None) -> Topic:
        """Put an alteration in force. StorageError if it could not be written: then nothing has changed."""
        [(altered, _)] = alteration.parts
        try:
            logs = self._opened(alteration, error)
        except OSError as failure:
            self._undo(alteration)
            raise storage_error(f"topic {before.name} could not be altered: {why(failure)}", failure) from failure
        self.registry.topics[altered.name] = altered
        self._partitions.logs |= logs
        config = self._partitions.config.topic_config(altered.config)
        for partition in range(before.partitions):
            log = self._partitions.logs.get((altered.name, partition))
            if log is not None:
                log.reconfigure(config)
        return altered

    def _undo(self, creation: TopicCreation) -> None:
        """Remove the directories of new partitions, then write the previous registry.

        In this order a crash in between leaves directories that the next start completes, not unknown ones, and a full
        disk has room for the registry. If writing it fails, the next start follows the registry on disk. A directory
        that cannot be removed, which takes more descriptors than making it, is renamed and added to ``half_made``, so
        that another attempt can succeed.
        """
        keys = [key for part in creation.parts for key in part.keys]
        self._handles.forget_in(*map(self._partitions.path_of, keys))
        for key in keys:
            path = self._partitions.path_of(key)
            try:
                if self._fs.exists(path):
                    self._fs.remove_tree(path)
            except OSError:
                with contextlib.suppress(OSError):
                    self.half_made.append(self._mark_partition(key))
        with contextlib.suppress(OSError):
            self._space.with_ballast(self.registry.save)
            # Last: until then a start completes the partitions.
            self._fs.unlink(f"{self._path}/{filenames.CREATION_FILE}")

    def take_half_made(self) -> list[str]:
        """The directories in ``half_made``, which the caller removes."""
        taken = self.half_made[:]
        self.half_made.clear()
        return taken

    def record_deletion(self, topic: Topic) -> None:
        """Take a topic out of the registry; then ``release`` its partitions and mark its directories.

        The registry is written first: after a crash, or if a directory could not be renamed, the next start removes
        what is left. On a disk without room for it a directory's name records the deletion, see ``_record_by_name``.
        Readers of the topic's files hold leases and finish undisturbed.
        """
        del self.registry.topics[topic.name]
        self.registry.deleting.append(topic.id)
        try:
            self._space.with_ballast(self.registry.save)
        except OSError as error:
            if not is_no_room(error) or not self._record_by_name(topic):
                self.registry.topics[topic.name] = topic
                self.registry.deleting.remove(topic.id)
                with contextlib.suppress(OSError):
                    self.registry.save()  # the new one may be in place already, but not synced
                raise storage_error(f"topic {topic.name} could not be deleted: {why(error)}", error) from error

    def release(self, keys: Iterable[TopicPartition]) -> None:
        """Take partitions of a deleted topic out of service."""
        directories = []
        for key in keys:
            log = self._partitions.forget(key)
            if log is not None:
                log.release_writers()
                directories.append(log.directory)
        self._handles.forget_in(*directories)  # all at once: each looks at every open file

    def _record_by_name(self, topic: Topic) -> bool:
        """Rename one directory of a topic so that its name records durably that the topic was deleted.

        That is one step and needs no disk space. The name contains the topic's id, where other deleted directories have
        a random one, so a start knows that the topic is deleted although the registry still has it. False if that
        failed and nothing has changed.
        """
        for partition in range(topic.partitions):
            path = self._partitions.path_of((topic.name, partition))
            unique = filenames.uuid_of(topic.id)
            name = filenames.marked_directory_name(topic.name, partition, unique, filenames.DELETE_MARKER)
            marked = f"{self._path}/{name}"
            try:
                self._fs.rename(path, marked)
            except OSError:
                continue  # for example an offline partition whose directory is gone
            try:
                self._fs.sync_directory(self._path)
            except OSError:
                with contextlib.suppress(OSError):
                    self._fs.rename(marked, path)
                    return False
            self.unrecorded.add(marked)
            return True
        return False

    def registry_writing(self) -> Callable[[], None]:
        """A function that writes the current registry, for a thread; then call ``note_recorded``."""
        return partial(write_file_atomically, self._fs, self.registry.path, self.registry.content())

    def note_recorded(self) -> list[str]:
        """The registry is written. Returns the directories in ``unrecorded``, which may now be removed."""
        recorded = sorted(self.unrecorded)
        self.unrecorded.clear()
        return recorded

    def mark_for_deletion(self, topic: Topic) -> list[str]:
        """Rename the directories of a deleted topic to ``…-delete``; return those to be removed. May run in a thread.

        No topic may be created meanwhile.
        """
        deleted = [path for path in self.unrecorded if filenames.deleted_topic_id(path) == topic.id]
        for partition in range(topic.partitions):
            with contextlib.suppress(OSError):
                deleted.append(self._mark_partition((topic.name, partition)))
        with contextlib.suppress(OSError):
            self._fs.sync_directory(self._path)
        return deleted

    def _mark_partition(self, key: TopicPartition) -> str:
        """Rename a partition's directory to ``…-delete``, for removal; return its path."""
        path = self._partitions.path_of(key)
        name = filenames.marked_directory_name(*key, self._new_uuid(), filenames.DELETE_MARKER)
        marked = f"{self._path}/{name}"
        self._space.with_ballast(partial(self._fs.rename, path, marked))
        return marked
