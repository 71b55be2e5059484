"""The topics of the log directory: created, altered, deleted, each so that a crash leaves all of it or nothing."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from seglog_broker.storage.directory.offset_checkpoints import TopicPartition
from seglog_broker.storage.directory.partition_logs import PartitionLogs
from seglog_broker.storage.directory.topic_creation import TopicCreation
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.free_space import FreeSpace
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import is_no_room, storage_error, why
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.errors import InvalidPartitionsError, InvalidTopicError, TopicExistsError

PARTITIONS_MAX: Final = 10_000
"""Of one topic: each costs a directory, three open files and their fsyncs at creation."""


class TopicAdmin:
    """Creates, alters and deletes the topics of one log directory.

    ``half_made``: renamed directories of partitions that could not be made, still to be removed, by the next start at
    last. ``unrecorded``: directories whose names alone say that a topic was deleted, for want of room to write the
    registry; they are emptied, and stay until it is written.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        table: PartitionLogs,
        registry: TopicRegistry,
        space: FreeSpace,
        handles: HandlePool,
        new_uuid: Callable[[], uuid.UUID],
    ) -> None:
        self.half_made: list[str] = []
        self.unrecorded: set[str] = set()
        self._fs = fs
        self._path = path
        self._table = table
        self._registry = registry
        self._space = space
        self._handles = handles
        self._new_uuid = new_uuid

    def plan_topic(self, name: str, partitions: int, config: dict[str, str]) -> TopicCreation:
        """Check that a topic can be created and return the work to do, none of which has begun.

        Call the result's ``run`` (many fsyncs: in a thread, if there is a loop to be kept running), then
        ``finish_topic``; nothing else may create or delete topics meanwhile. Raises InvalidTopicError,
        TopicExistsError or InvalidPartitionsError.
        """
        problem = filenames.why_invalid_topic(name)
        if problem is not None:
            raise InvalidTopicError(f"{name[:60]!r} cannot be a topic's name: {problem}", topic=name[:60])
        if name in self._registry.topics:
            raise TopicExistsError(f"topic {name} exists already", topic=name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitionsError(f"a topic has from 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        return self._planned(Topic(name, filenames.new_id(self._new_uuid()), partitions, config), 0)

    def _planned(self, topic: Topic, first_partition: int) -> TopicCreation:
        registry = self._registry.content(adding=topic)
        return TopicCreation(self._fs, self._path, topic, first_partition, self._registry.path, registry)

    def finish_topic(self, creation: TopicCreation, error: OSError | None) -> Topic:
        """Take a topic whose files were made into service; StorageError, and no trace of it, when they were not."""
        topic = creation.topic
        try:
            logs = self._opened(creation, error)
        except OSError as failure:
            self._take_back(topic)
            raise storage_error(f"topic {topic.name} could not be created: {why(failure)}", failure) from failure
        self._registry.topics[topic.name] = topic
        self._table.logs |= logs
        return topic

    def opening(self, creation: TopicCreation) -> Iterator[None]:
        """Open the logs of partitions that were made, one a step, which takes a loop long if they are many.

        OSError: for ``finish_topic`` or ``finish_alteration``, which open those that are not.
        """
        topic = creation.topic
        config = self._table.config.topic_config(topic.config)
        for partition in range(creation.first_partition, topic.partitions):
            key = (topic.name, partition)
            if key not in creation.logs:
                creation.logs[key] = self._table.new_log(key, config)
                yield

    def _opened(self, creation: TopicCreation, error: OSError | None) -> dict[TopicPartition, PartitionLog]:
        """The logs of the partitions that were made; ``error`` if that failed, or what opening them raised."""
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
        """The work of giving a topic another configuration and more partitions; then ``finish_alteration``.

        Same rules as for ``plan_topic``. Raises InvalidPartitionsError when there would be fewer.
        """
        if not topic.partitions <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"topic {topic.name} has {topic.partitions} partitions and can have up to {PARTITIONS_MAX}, not "
                f"{partitions}: partitions are never taken away"
            )
        return self._planned(replace(topic, partitions=partitions, config=config), topic.partitions)

    def finish_alteration(self, before: Topic, alteration: TopicCreation, error: OSError | None) -> Topic:
        """Put an alteration in force; StorageError, and everything as it was before, when it could not be written."""
        altered = alteration.topic
        try:
            logs = self._opened(alteration, error)
        except OSError as failure:
            self._take_back_partitions(altered, alteration.first_partition)
            raise storage_error(f"topic {before.name} could not be altered: {why(failure)}", failure) from failure
        self._registry.topics[altered.name] = altered
        self._table.logs |= logs
        config = self._table.config.topic_config(altered.config)
        for partition in range(before.partitions):
            log = self._table.logs.get((altered.name, partition))
            if log is not None:
                log.reconfigure(config)
        return altered

    def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        """``plan_topic`` and what follows from it, in line."""
        creation = self.plan_topic(name, partitions, config)
        try:
            creation.run()
        except OSError as error:
            return self.finish_topic(creation, error)
        return self.finish_topic(creation, None)

    def _take_back(self, topic: Topic) -> None:
        """A topic that could not be made whole must not come back half made at the next start."""
        self._registry.deleting.append(topic.id)
        self._take_back_partitions(topic, 0)

    def _take_back_partitions(self, topic: Topic, first: int) -> None:
        """Remove the directories from partition ``first`` on, then write the registry as it was.

        In this order a crash in between leaves directories to be completed, none that nobody knows of, and on a full
        disk there is room for the registry. Where that fails, the next start does as the registry on disk says. What
        cannot be removed, for that takes more descriptors than making it, is renamed and left to whoever looks at
        ``half_made``: nothing stands in the way of another attempt.
        """
        for partition in range(first, topic.partitions):
            path = self._table.path_of((topic.name, partition))
            self._handles.forget_in(path)
            try:
                if self._fs.exists(path):
                    self._fs.remove_tree(path)
            except OSError:
                with contextlib.suppress(OSError):
                    self.half_made.append(self._mark_for_deletion(topic, partition))
        with contextlib.suppress(OSError):
            self._space.with_ballast(self._registry.save)
            self._fs.unlink(f"{self._path}/{filenames.CREATION_FILE}")  # not before: until then a start completes them

    def take_half_made(self) -> list[str]:
        """The directories in ``half_made``, which the caller removes."""
        taken = self.half_made[:]
        self.half_made.clear()
        return taken

    def delete_topic(self, topic: Topic) -> list[str]:
        """``forget_topic`` and ``mark_doomed``, in line."""
        self.forget_topic(topic)
        return self.mark_doomed(topic)

    def forget_topic(self, topic: Topic) -> None:
        """Take a topic out of service; then its directories are to be marked.

        The registry is written first: after a crash, or where a directory could not be renamed, the next start removes
        what is left. On a disk that has not the room for it the name of a directory says the same, see
        ``_record_by_name``. Whoever still reads from the topic's files holds a lease and finishes undisturbed.
        """
        del self._registry.topics[topic.name]
        self._registry.deleting.append(topic.id)
        try:
            self._space.with_ballast(self._registry.save)
        except OSError as error:
            if not is_no_room(error) or not self._record_by_name(topic):
                self._registry.topics[topic.name] = topic
                self._registry.deleting.remove(topic.id)
                with contextlib.suppress(OSError):
                    self._registry.save()  # the new one may be in its place already, and only not be synced
                raise storage_error(f"topic {topic.name} could not be deleted: {why(error)}", error) from error
        directories = []
        for partition in range(topic.partitions):
            log = self._table.forget((topic.name, partition))
            if log is not None:
                log.release_writers()
                directories.append(log.directory)
        self._handles.forget_in(*directories)  # all at once: each looks at every open file

    def _record_by_name(self, topic: Topic) -> bool:
        """Rename one directory of a topic so that its name says, for good, that the topic was deleted.

        That is one step and takes no room. The name has the topic's id where other deleted directories have a random
        one, so a start knows the topic for deleted although the registry still has it. False: that was not possible,
        and nothing has changed.
        """
        for partition in range(topic.partitions):
            path = self._table.path_of((topic.name, partition))
            unique = filenames.uuid_of(topic.id)
            name = filenames.marked_directory_name(topic.name, partition, unique, filenames.DELETE_MARKER)
            marked = f"{self._path}/{name}"
            try:
                self._fs.rename(path, marked)
            except OSError:
                continue  # it is offline because it is gone, perhaps
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
        """The work of writing the registry as it is now, for a thread; then ``note_recorded``."""
        return partial(write_file_atomically, self._fs, self._registry.path, self._registry.content())

    def note_recorded(self) -> list[str]:
        """The registry is written, and tells of every deletion: the directories that did so, now to be removed."""
        recorded = sorted(self.unrecorded)
        self.unrecorded.clear()
        return recorded

    def mark_doomed(self, topic: Topic) -> list[str]:
        """Rename the directories of a topic that is forgotten ``…-delete``; those to be removed. For a thread, too.

        Nothing may create a topic meanwhile.
        """
        doomed = [path for path in self.unrecorded if filenames.deleted_topic_id(path) == topic.id]
        for partition in range(topic.partitions):
            with contextlib.suppress(OSError):
                doomed.append(self._mark_for_deletion(topic, partition))
        with contextlib.suppress(OSError):
            self._fs.sync_directory(self._path)
        return doomed

    def _mark_for_deletion(self, topic: Topic, partition: int) -> str:
        """Rename a partition's directory ``…-delete``, for a start to remove if nobody did before; the new path."""
        path = self._table.path_of((topic.name, partition))
        name = filenames.marked_directory_name(topic.name, partition, self._new_uuid(), filenames.DELETE_MARKER)
        marked = f"{self._path}/{name}"
        self._space.with_ballast(partial(self._fs.rename, path, marked))
        return marked
