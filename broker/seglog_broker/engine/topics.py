"""Topics: described in pages, created, altered, deleted."""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import trio

from seglog_broker.config.topic_config import TOPIC_NAMES
from seglog_broker.config.topic_overrides import check_internal_settings, why_index_fills_first
from seglog_broker.engine.turns import LOOKUPS_A_TURN
from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.cleaning import stop_cleaning
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.pending_deletions import PendingDeletion, PendingDeletions
from seglog_broker.partitions.recoveries import Views
from seglog_broker.partitions.scheduler import Service
from seglog_broker.partitions.segment_expiry import SegmentExpiry
from seglog_broker.partitions.topic_names import TopicNames
from seglog_broker.runtime import budget
from seglog_broker.runtime.lasting import Lasting
from seglog_broker.storage.directory.topic_admin import TopicCreation
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.filenames import TOPIC_NAME_MAX
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.partition_files import empty_directory, inodes_of
from seglog_protocol import errors, messages
from seglog_protocol.internal_topics import is_internal

log = get_logger()

T = TypeVar("T")

DESCRIBED_MAX: Final = 500
"""The most topics that one reply describes with their whole configuration; further requests get the others."""

CONFIGURATION_COST: Final = 500
"""Microseconds to describe a topic with its whole configuration, without its partitions."""

LOGS_A_TURN: Final = budget.items_of(cost=125)
"""Logs of new partitions that are opened before other tasks run."""

DELETED_A_TURN: Final = budget.items_of(cost=8)
"""Partitions of a deleted topic that are taken out of service before other tasks run."""


@dataclass(eq=False, repr=False)
class TopicService(Service):
    """Describes, creates, alters and deletes topics. Changes are made one at a time, with files written in threads."""

    _views: Views
    _checkpoints: CheckpointWriter
    _deletions: PendingDeletions
    _expiry: SegmentExpiry

    def __post_init__(self) -> None:
        self._lock = trio.Lock()
        self._problems = Lasting()
        self._note_change: Callable[[str, bool], None] = lambda _topic, _is_deleted: None

    def note_changes(self, listener: Callable[[str, bool], None]) -> None:
        """Call ``listener`` for each topic that is created, altered or deleted: its name, and if it was deleted."""
        self._note_change = listener

    async def describe(self, request: messages.TopicsRequest) -> tuple[messages.TopicsReply, bytes]:
        """A page of topics, and its descriptions as the payload, a msgpack list."""
        known = self._directory.registry.topics
        unknown: list[errors.SeglogError] = []
        if request.names is not None:
            absent = [name for name in request.names if name not in known]
            async for name in self._scheduler.spread(absent, LOOKUPS_A_TURN):
                unknown.append(self._table.unknown_topic(name))  # noqa: PERF401 - other tasks run in between
            names = sorted({name for name in request.names if name in known and name > request.after})
        else:
            names = sorted(name for name in known if name > request.after)
        page = names[: min(request.limit, DESCRIBED_MAX) if request.config else request.limit]
        described = []
        turns = budget.Turns(self._scheduler.turn)
        for name in page:
            topic = known.get(name)
            if topic is None:
                continue  # deleted meanwhile
            partitions_cost = topic.partitions * budget.BATCH  # some of which have thousands of segments
            await turns.spend(partitions_cost + (CONFIGURATION_COST if request.config else budget.BATCH))
            measured = await self._measure(topic)
            if known.get(name) is topic:
                described.append(messages.pack_fields(self._describe(topic, measured, whole=request.config)))
        return messages.TopicsReply(more=len(names) > len(page), unknown=unknown), messages.page_of(described)

    async def _measure(self, topic: Topic) -> tuple[int, int]:
        """Segments and bytes of a topic, some of whose partitions are looked at in a turn of the loop."""
        segments = size = 0
        async for numbers in self._scheduler.parts(range(topic.partitions), LOOKUPS_A_TURN):
            logs = [
                partition.log
                for number in numbers
                if (partition := self._table.find_readable(topic.name, number)) is not None
            ]
            await self._scheduler.learn_sizes(logs)
            if self._directory.registry.topics.get(topic.name) is not topic:
                break  # the topic was deleted between two turns, with its files
            segments += sum(len(partition_log.segments) for partition_log in logs)
            size += sum(partition_log.size for partition_log in logs)
        return segments, size

    def _describe(self, topic: Topic, measured: tuple[int, int], *, whole: bool) -> messages.TopicDescription:
        config = self._table.config_of(topic)
        entries = None
        if whole:
            entries = {
                entry.key: messages.ConfigEntry(
                    entry.value, str(entry.origin.kind), entry.origin.where, entry.shortfall
                )
                for entry in config.describe()
            }
        return messages.TopicDescription(
            topic.name,
            topic.id,
            topic.partitions,
            config.max_message_bytes,
            config.segment_bytes,
            segments=measured[0],
            size=measured[1],
            config=entries,
            notes=topic.notes,
        )

    async def check_new(self, requests: Sequence[messages.CreateTopicRequest]) -> list[errors.SeglogError | None]:
        """The errors with which ``create_all`` would refuse topics that cannot be, None for the others."""
        _, failed = await self._plan_all(requests, for_broker=False)
        return [failed.get(request.topic) for request in requests]

    async def _plan_all(
        self, requests: Sequence[messages.CreateTopicRequest], *, for_broker: bool
    ) -> tuple[dict[str, tuple[Topic, list[str]]], dict[str, errors.SeglogError]]:
        """New topics, with warnings about their settings, and why others cannot be, by name."""
        planned: dict[str, tuple[Topic, list[str]]] = {}
        failed: dict[str, errors.SeglogError] = {}
        names = TopicNames(() if for_broker else self._directory.registry.topics)
        async for request in self._scheduler.spread(requests, LOOKUPS_A_TURN):
            try:
                if not for_broker:
                    self._check_name(request.topic, names)
                config, warnings = self._config.current.validate_topic_config(request.config)
                count = self._config.current.num_partitions if request.partitions is None else request.partitions
                planned[request.topic] = self._directory.topics.new_topic(request.topic, count, config), warnings
            except errors.SeglogError as error:
                failed[request.topic] = errors.without_frames(error)
            else:
                names.add(request.topic)
        return planned, failed

    def _check_name(self, name: str, names: TopicNames) -> None:
        """Raise InvalidTopicError for the name of an internal topic, or one that collides with another of ``names``."""
        if is_internal(name) and name not in self._directory.registry.topics:
            raise errors.InvalidTopicError(
                f"topic {name} is the broker's own: it is made when it is needed", topic=name
            )
        other = names.colliding(name)
        if other is not None:
            raise errors.InvalidTopicError(
                f"Topic '{name}' collides with existing topic: {other}", topic=name, other=other
            )

    async def create(
        self, request: messages.CreateTopicRequest, *, for_broker: bool = False
    ) -> messages.CreateTopicReply:
        """Create a topic; returns when it survives a power cut. An internal one is made for the broker alone."""
        [outcome] = await self.create_all([request], for_broker=for_broker)
        if isinstance(outcome, errors.SeglogError):
            raise outcome
        return outcome

    async def create_all(
        self, requests: Sequence[messages.CreateTopicRequest], *, for_broker: bool = False
    ) -> list[messages.CreateTopicReply | errors.SeglogError]:
        """As ``create``, for topics of different names, in order, made and synced together; none fails another."""
        async with self._lock:
            planned, failed = await self._plan_all(requests, for_broker=for_broker)
            if planned:
                failed |= await self._create_planned([topic for topic, _ in planned.values()])
        return [
            failed.get(request.topic) or self._created(*planned[request.topic])
            async for request in self._scheduler.spread(requests, LOOKUPS_A_TURN)
        ]

    def missing_topics(self, request: messages.AppendRequest) -> list[str]:
        """Topics of an append that do not exist and that it may create; none if creation is disabled."""
        known = self._directory.registry.topics
        if not request.create or not self._config.current.auto_create_topics_enable:
            return []
        return [item.topic for item in request.partitions if item.topic not in known]

    async def create_missing(self, request: messages.AppendRequest) -> dict[str, errors.SeglogError]:
        """Create topics with the broker's defaults. Returns topic -> error for those that failed, for ``append``."""
        refused: dict[str, errors.SeglogError] = {}
        missing = list(dict.fromkeys(self.missing_topics(request)))
        outcomes = await self.create_all([messages.CreateTopicRequest(name) for name in missing])
        for name, outcome in zip(missing, outcomes, strict=True):
            # A topic that exists by now was made for another connection.
            if isinstance(outcome, errors.SeglogError) and not isinstance(outcome, errors.TopicExistsError):
                log.warning("topic_not_created", topic=name[:TOPIC_NAME_MAX], reason=outcome.message)
                refused[name] = outcome
        return refused

    def _created(self, planned: Topic, warnings: list[str]) -> messages.CreateTopicReply:
        """The reply to a request whose topic was created, and what follows from that."""
        topic = self._directory.registry.topics.get(planned.name, planned)  # made at a second attempt, with another id
        log.info("topic_created", topic=topic.name, partitions=topic.partitions, config=topic.config)
        self._note_change(topic.name, False)
        dense = why_index_fills_first(self._table.config_of(topic))
        return messages.CreateTopicReply(
            topic.name, topic.id, topic.partitions, [*warnings, *([dense] if dense else [])]
        )

    async def _create_planned(self, topics: Sequence[Topic]) -> dict[str, errors.SeglogError]:
        """Create topics together or, where that fails, one by one. Returns name -> error. The caller holds the lock.

        Where there was no room for one of them, those with as many partitions or more are not tried.
        """
        try:
            await self._create_together(topics)
        except errors.SeglogError as error:
            if len(topics) == 1:
                return {topics[0].name: errors.without_frames(error)}
        else:
            return {}
        failed: dict[str, errors.SeglogError] = {}
        too_many = sys.maxsize  # partitions of one topic
        async for topic in self._scheduler.spread(topics, LOOKUPS_A_TURN):
            if topic.partitions >= too_many:
                failed[topic.name] = self._no_room(topic)
                continue
            again = self._directory.topics.new_topic(topic.name, topic.partitions, topic.config)
            failed |= await self._create_planned([again])
            if isinstance(failed.get(topic.name), errors.DiskFullError):
                too_many = topic.partitions
        return failed

    def _no_room(self, topic: Topic) -> errors.DiskFullError:
        """The error for a topic that is not tried."""
        what = f"topic {topic.name} could not be created"
        try:
            self._directory.space.check_inodes(what, inodes_of(topic.partitions))
        except errors.DiskFullError as full:
            return full
        return self._directory.space.refusal(what)

    def _check_count(self, added: int) -> None:
        """Raise PolicyViolationError if there would be too many partitions with ``added`` more."""
        limit = self._config.current.seglog_partitions_max
        there = sum(topic.partitions for topic in self._directory.registry.topics.values())
        if there + added > limit:
            raise errors.PolicyViolationError(
                f"there are {there} partitions, with {added} more they would be above seglog.partitions.max, {limit}",
                limit=limit,
            )

    async def _create_together(self, topics: Sequence[Topic]) -> None:
        """Create topics, all or none."""
        self._directory.space.check(0)
        partitions = sum(topic.partitions for topic in topics)
        if not is_internal(topics[0].name):
            self._check_count(partitions)
        self._directory.space.check_inodes(f"topic {topics[0].name} could not be created", inodes_of(partitions))
        if self._directory.partitions.checkpoints.is_stale:
            failure = await self._checkpoints.write()
            if failure is not None:
                raise storage_error(f"topic {topics[0].name} could not be created: {why(failure)}", failure)
            self._directory.partitions.checkpoints.note_written()
        creation = self._directory.topics.plan_creation(topics)
        await self._make(creation, partial(self._directory.topics.finish_creation, creation))

    async def alter(self, request: messages.AlterTopicRequest) -> messages.AlterTopicReply:
        """Change a topic's configuration and add partitions; returns when that is in force and survives a power cut.

        The registry is written first: after a crash a start finds either the new state or the old one.
        """

        def changed(own: Mapping[str, str]) -> dict[str, messages.ConfigValue]:
            wanted: dict[str, messages.ConfigValue] = {**own, **request.config}
            for name in request.reset:
                known = TOPIC_NAMES.get(name)
                if known is None:
                    self._config.current.validate_topic_config({name: ""})  # raises its error, with the nearest name
                key = name if known is None else known.name
                if key in request.config or name in request.config:
                    raise errors.InvalidConfigError(f"{name} cannot be both set and reset", key=name)
                wanted.pop(key, None)
            return wanted

        return await self.alter_config(request.topic, changed, request.config, request.partitions)

    async def alter_config(
        self,
        name: str,
        changed: Callable[[Mapping[str, str]], Mapping[str, messages.ConfigValue]],
        names: Collection[str],
        partitions: int | None = None,
        *,
        validate_only: bool = False,
    ) -> messages.AlterTopicReply:
        """As ``alter``: ``changed`` makes of a topic's own settings those that it is to have, and may raise.

        No other alteration comes between. The reply has the warnings about ``names``. With ``validate_only`` nothing
        is changed, and the reply is that of the change.
        """
        async with self._lock:
            topic = self._table.topic(name)
            config, warnings = self._config.current.validate_topic_config(changed(topic.config))
            check_internal_settings(name, config)
            if validate_only:
                altered = replace(topic, config=config)
            else:
                count = topic.partitions if partitions is None else partitions
                if count != topic.partitions and is_internal(name):
                    raise errors.InvalidTopicError(
                        f"the number of partitions of topic {name} decides what is where in it, and stays", topic=name
                    )
                altered = await self._carry_out(topic, self._directory.topics.plan_alteration(topic, count, config))
        warned = [warning for warning in warnings if any(key in warning for key in names)]
        dense = why_index_fills_first(self._config.current.topic_config(altered.config))
        if dense is not None and any(key in dense for key in names):
            warned.append(dense)
        return messages.AlterTopicReply(altered.name, altered.partitions, dict(altered.config), warned)

    async def _carry_out(self, topic: Topic, alteration: TopicCreation) -> Topic:
        """Put a planned alteration in force; returns the altered topic. The caller holds the lock."""
        if alteration.makes_partitions:
            self._directory.space.check(0)
            added = sum(1 for part in alteration.parts for _ in part.keys)
            self._check_count(added)
            self._directory.space.check_inodes(f"topic {topic.name} could not be altered", inodes_of(added))
        altered = await self._make(alteration, partial(self._directory.topics.finish_alteration, topic, alteration))
        if alteration.makes_partitions:
            self._table.wake_waiters(altered)
        self._note_change(altered.name, False)
        log.info("topic_altered", topic=altered.name, partitions=altered.partitions, config=altered.config)
        return altered

    async def _make(self, creation: TopicCreation, finish: Callable[[OSError | None], T]) -> T:
        """Do the work of a creation and return ``finish`` of its error. Left-over directories are removed later.

        Files are made in a thread, logs are opened some in a turn of the loop. A change of the configuration alone is
        made on a full disk too: it may be the retention that frees space.
        """
        run = creation.run if creation.makes_partitions else partial(self._directory.space.with_ballast, creation.run)
        error: OSError | None = None
        made: list[Partition] = []
        try:
            try:
                with trio.CancelScope(shield=True):  # a topic is created as a whole, or not at all
                    await self._offload.maintenance(run)
                    opening = self._directory.topics.opening(creation)
                    async for key, partition_log in self._scheduler.spread(opening, LOGS_A_TURN):
                        made.append(self._table.partition_of(key, partition_log))
            except OSError as failure:
                error = failure
            finished = finish(error)
        except errors.DiskFullError as full:
            raise self._directory.space.refusal_now(full.message) from full.__cause__
        else:
            self._table.serve(made)
            return finished
        finally:
            self.remove_later(self._directory.topics.take_half_made())

    async def delete(self, request: messages.DeleteTopicRequest) -> messages.DeleteTopicReply:
        """Delete a topic: it is unknown from now on; its files are removed in the background. Readers can finish."""
        if not self._config.current.delete_topic_enable:
            raise errors.PolicyViolationError("topics cannot be deleted here: delete.topic.enable is false")
        async with self._lock:
            topic = self._table.topic(request.topic)
            if is_internal(topic.name):
                raise errors.InvalidTopicError(
                    f"topic {topic.name} is the broker's own and is not deleted: delete groups or their offsets",
                    topic=topic.name,
                )
            keys = [(topic.name, number) for number in range(topic.partitions)]
            partitions: list[Partition] = []
            held: list[trio.Lock] = []
            try:
                try:
                    await self._recoveries.hold(keys)
                    partitions += [p for key in keys if (p := self._table.find(*key)) is not None]
                    for partition in partitions:  # no task may use paths in a directory that is renamed
                        await stop_cleaning(partition)
                        await partition.maintenance.acquire()
                        held.append(partition.maintenance)
                    self._directory.topics.record_deletion(topic)
                except BaseException:  # the client may have closed the connection: then the topic stays
                    for partition in partitions:
                        partition.may_be_cleaned = True
                    self._recoveries.let_go(keys)
                    raise
                for partition in partitions:
                    self._table.remove((partition.topic, partition.number))
                    partition.note_deleted()
                with trio.CancelScope(shield=True):
                    async for some in self._scheduler.parts(keys, DELETED_A_TURN):
                        self._recoveries.forget(some)
                        self._views.end(some, is_deleted=True)
                        self._directory.topics.release(some)
                    self._deletions.forget(partitions)
                    deleted = await self._offload.maintenance(self._directory.topics.mark_for_deletion, topic)
            finally:
                for lock in held:
                    lock.release()
            log.info("topic_deleted", topic=topic.name)
            self._note_change(topic.name, True)
            with trio.CancelScope(shield=True):
                async for paths in self._scheduler.parts(deleted, DELETED_A_TURN):
                    self.remove_later(paths)
            if self._directory.topics.unrecorded:
                await self._expiry.remove_now()
                await self._record_deletions()
            # Before a topic of that name can come back, which a crash would otherwise give the old one's log starts.
            await self._checkpoints.write()
        await self._expiry.remove_now()
        return messages.DeleteTopicReply(topic.name)

    async def record_deletions(self) -> None:
        """Write deletions to the registry for which the disk had no room; if there is still none, a later call does."""
        async with self._lock:
            await self._record_deletions()

    async def _record_deletions(self) -> None:
        if not self._directory.topics.unrecorded:
            return
        write = self._directory.topics.registry_writing()
        with trio.CancelScope(shield=True):
            try:
                await self._offload.maintenance(self._directory.space.with_ballast, write)
            except OSError as error:
                if self._problems.begins("deletions", why(error)):
                    consequence = "empty directories stay meanwhile"
                    log.warning("deletions_not_recorded", reason=why(error), consequence=consequence)
                return
        if self._problems.ends("deletions"):
            log.info("deletions_recorded")
        for path in self._directory.topics.note_recorded():
            self._deletions.add(PendingDeletion(path, partial(self._fs.remove_tree, path), None, is_logged=False), 0)

    def remove_later(self, directories: Iterable[str]) -> None:
        """Remove directories after ``file.delete.delay.ms``; one whose name records a deletion is only emptied now."""
        for path in directories:
            is_needed = path in self._directory.topics.unrecorded
            remove = partial(empty_directory, self._fs, path) if is_needed else partial(self._fs.remove_tree, path)
            removal = PendingDeletion(path, remove, None)
            self._deletions.add(removal, self._config.current.topic_defaults.file_delete_delay_ms / 1000)
