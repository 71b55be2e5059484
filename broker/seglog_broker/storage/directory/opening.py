"""Opens a log directory: lock, identity, topics, partitions.

The order of writes to the disk makes every crash harmless; comments beside the writes give the reasons.
"""

import contextlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.storage.directory import adoption, identity, kafka_access, kafka_metadata, kafka_signs
from seglog_broker.storage.directory.accounts import AccountStore, Change, why_impossible_name
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.dynamic_configs import config_at_start, encode_dynamic_configs
from seglog_broker.storage.directory.log_directory import DirectoryLock, LogDirectory
from seglog_broker.storage.directory.partition_loader import Loading, LoadingStoppedError, LoadReport, PartitionLoader
from seglog_broker.storage.directory.partition_logs import PartitionLogs
from seglog_broker.storage.directory.snapshot import is_held
from seglog_broker.storage.directory.topic_admin import TopicAdmin
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem, is_directory, parent, write_file_atomically
from seglog_broker.storage.io.free_space import FreeSpace
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import suppress_no_room, why
from seglog_broker.storage.log.partition_files import has_partition_files, topic_id_in
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.errors import LogDirectoryError, PolicyViolationError
from seglog_protocol.internal_topics import COMPACTED_TOPICS, RESERVED_TOPIC
from seglog_protocol.record_batch import NO_PRODUCER_ID
from seglog_protocol.segment_files import TEMPORARY_SUFFIX

_MARKS: Final = frozenset(
    {
        filenames.LOCK_FILE,
        filenames.META_PROPERTIES_FILE,
        filenames.FORMAT_FILE,
        filenames.REGISTRY_FILE,
        filenames.ACCOUNTS_FILE,
    }
)
"""Files that tell a log directory."""

Directories = Mapping[str, filenames.PartitionDirectory]
"""The partition directories of a log directory, by name."""


def open_log_directory(
    fs: FileSystem,
    clock: Clock,
    config: BrokerConfig,
    path: str,
    *,
    handles: HandlePool | None = None,
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    in_line_bytes: int | None = None,
    loading: Loading = lambda _done, _total: None,
    upgrading: Callable[[identity.OtherVersion], None] = lambda _other: None,
) -> LogDirectory:
    """Lock and check a log directory, and load every partition. It stays locked until ``close`` or ``abandon``.

    ``config`` is that of file, environment and flags: the settings made at run time, which the directory keeps, are put
    over it.

    After an unclean stop partitions are recovered here, the smallest first, up to ``in_line_bytes`` in total, by
    default all; the others are left ``recovering``. ``handles`` belong to the log directory, which closes them.
    ``upgrading`` is called before anything is changed in a directory that another version wrote last.

    Raises LogDirectoryError when the directory cannot be used: locked, foreign, of a newer format, not writable. A
    single partition that cannot be opened is reported and offline. Raises LoadingStoppedError when ``loading`` does.
    After any error nothing is open or locked.
    """
    try:
        with contextlib.ExitStack() as opened:
            if prepare_directory(fs, path):
                refuse_foreign(fs, path, config)
            lock = DirectoryLock(fs, path)
            opened.callback(lock.release)
            dynamic, config = config_at_start(fs, path, config)
            accounts = AccountStore(fs, f"{path}/{filenames.ACCOUNTS_FILE}")
            accounts.load()
            handles = handles or HandlePool(fs, config.seglog_handles_max, readahead=False)
            opened.callback(handles.close)
            opening = _Opening(fs, clock, config, path, handles, accounts, dynamic, new_uuid)
            opened.callback(opening.partitions.release)
            directory = opening.run(lock, in_line_bytes, loading, upgrading)
            opened.pop_all()
            return directory
    except OSError as error:
        raise LogDirectoryError(
            f"{path} cannot be used as log directory: {why(error)}; check that it is writable "
            "and has room, or choose another with --set log.dir=DIRECTORY",
            path=path,
        ) from error


def may_be_log_directory(fs: FileSystem, path: str) -> bool:
    """Whether a directory has what is in every log directory, seglog's or Kafka's, or nothing yet. Raises OSError."""
    if not fs.exists(path) or not fs.stat(path).is_directory:
        return False
    found = identity.root_names(fs, path)
    return not found or not _MARKS.isdisjoint(found)


def prepare_directory(fs: FileSystem, path: str) -> bool:
    """Make the directory if there is none, and return whether it was there.

    Raises OSError, and LogDirectoryError for a file, and for a directory of a newer format.
    """
    if not fs.exists(path):
        missing = [path]
        while not fs.exists(above := parent(missing[-1])):
            missing.append(above)
        for absent in reversed(missing):
            fs.make_directory(absent)
            fs.sync_directory(parent(absent))
        return False
    if not fs.stat(path).is_directory:
        raise LogDirectoryError(f"{path} is a file; log.dir must name a directory", path=path)
    identity.check_format(fs, path)
    return True


def refuse_foreign(fs: FileSystem, path: str, config: BrokerConfig) -> None:
    """Raise LogDirectoryError for a directory that is not for this broker, before anything is written; OSError."""
    found = identity.root_names(fs, path)
    directories = _partition_directories(fs, path, found)
    identity.read_cluster_id(fs, path, found)
    registry = None
    if filenames.REGISTRY_FILE in found:
        registry = TopicRegistry(fs, f"{path}/{filenames.REGISTRY_FILE}")
        registry.load()
    else:
        _refuse_where_partitions_are_missing(fs, path, config, directories)
    if kafka_signs.signs_of_kafka(fs, path, found, registry) if registry else filenames.FORMAT_FILE not in found:
        _refuse_old_formats(fs, path, directories)


def _partition_directories(fs: FileSystem, path: str, found: list[str]) -> dict[str, filenames.PartitionDirectory]:
    """The partition directories by name. Raises LogDirectoryError when there is any other sub-directory."""
    directories = {}
    for name in found:
        if name in filenames.SKIPPED_DIRECTORIES or not is_directory(fs, f"{path}/{name}"):
            continue
        try:
            directories[name] = directory = filenames.parse_partition_directory(name)
            problem = filenames.why_invalid_topic(directory.topic)
            if problem is not None:
                raise ValueError(f"{directory.topic!r} is not a topic name: {problem}")  # noqa: TRY301
        except ValueError as error:
            if filenames.REGISTRY_FILE in found:
                reason = f"in {path} there is a directory {name!r} that is no partition's ({error}): move {name!r} away"
            else:
                reason = (
                    f"{path} is neither seglog's nor Kafka's: it has a sub-directory {name!r} ({error}); choose "
                    "an empty directory with --set log.dir=DIRECTORY, or move that one away"
                )
            raise LogDirectoryError(reason, path=path) from error
    return directories


def _refuse_where_partitions_are_missing(
    fs: FileSystem, path: str, config: BrokerConfig, directories: Directories
) -> None:
    """Refuse a part of Kafka's partitions, of several log.dirs or a cluster: the others would begin empty."""
    ids = adoption.topic_ids(directories, lambda name: topic_id_in(fs, f"{path}/{name}"))
    missing = adoption.missing_partitions(ids, kafka_signs.expected_partitions(fs, path), directories.values())
    if missing and config.seglog_missing_partitions == "refuse":
        raise LogDirectoryError(
            f"{path} was written by Kafka and lacks partitions that its files name: {adoption.listed(missing)}; put "
            "their directories here, from Kafka's other log.dirs or brokers, or have them begin without records "
            "with --set seglog.missing.partitions=empty",
            path=path,
        )


def _refuse_old_formats(fs: FileSystem, path: str, directories: Directories) -> None:
    """Refuse records in formats that nothing here reads, in a directory that Kafka wrote or used since."""
    old = kafka_signs.old_format_partitions(fs, path, directories)
    if old:
        raise LogDirectoryError(
            f"{path} has records in Kafka's message formats 0 and 1, of before Kafka 0.11, which seglog does not read: "
            f"in {adoption.listed(old)}. Nothing was changed. Start a Kafka on it again, read each of these topics and "
            "produce its records into a new topic, delete the old one and stop that Kafka; or move these partitions' "
            "directories away",
            path=path,
        )


class _Opening:
    """The opening of one locked log directory."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        config: BrokerConfig,
        path: str,
        handles: HandlePool,
        accounts: AccountStore,
        dynamic: DynamicConfig,
        new_uuid: Callable[[], uuid.UUID],
    ) -> None:
        self._fs = fs
        self._path = path
        self._accounts = accounts
        self._acls = AclStore(fs, self._file(filenames.ACLS_FILE))
        self._acls.load()
        self._dynamic = dynamic
        self._is_enforced = not config.seglog_acls_not_enforced
        self._new_uuid = new_uuid
        self._node_id = config.node_id
        self._report = LoadReport()
        self._space = FreeSpace(fs, path, config)
        self._registry = TopicRegistry(fs, self._file(filenames.REGISTRY_FILE))
        self.partitions = PartitionLogs(fs, clock, handles, path, config, self._report.offline)
        self._topics = TopicAdmin(fs, path, self.partitions, self._registry, self._space, handles, new_uuid)

    def run(
        self,
        lock: DirectoryLock,
        in_line_bytes: int | None,
        loading: Loading,
        upgrading: Callable[[identity.OtherVersion], None],
    ) -> LogDirectory:
        """Load everything. Raises OSError, LogDirectoryError, and what ``loading`` raises."""
        fs, path = self._fs, self._path
        identity.check_format(fs, path)
        found = identity.root_names(fs, path)
        known = filenames.REGISTRY_FILE in found
        directories = _partition_directories(fs, path, found)
        other = None
        if known:
            self._registry.load()
            other = identity.find_other_version(fs, path, found, self._registry)
            if other is not None:
                upgrading(other)
        for name in found:
            if name.removesuffix(TEMPORARY_SUFFIX) in filenames.REPLACED_FILES and name.endswith(TEMPORARY_SUFFIX):
                fs.unlink(self._file(name))
        cluster_id = self._cluster_id(found, has_data=bool(directories) or known)
        if known:
            self._give_up_reserved_name(found, directories)
            self._topics.unrecorded |= {self._file(name) for name in self._registry.remove_deleted(directories)}
            # Before the clean-shutdown marker is removed, because that may be the only sign of Kafka.
            kafka_signs.adopt_kafka_changes(
                fs,
                path,
                found,
                directories,
                self._registry,
                self.partitions.checkpoints,
                self._report,
                self._new_id,
                self._take_over_access,
            )
        clean = filenames.CLEAN_SHUTDOWN_FILE in found
        if clean:
            # At once, so that a crash while loading counts as unclean.
            fs.unlink(self._file(filenames.CLEAN_SHUTDOWN_FILE))
            fs.sync_directory(path)
        if filenames.CLEAN_PARTITIONS_FILE in found:
            if not clean and not self._report.kafka_signs:
                self.partitions.checkpoints.load_clean_ends(self._report.problems)
            fs.unlink(self._file(filenames.CLEAN_PARTITIONS_FILE))
            fs.sync_directory(path)
        self._report.clean = clean or not directories
        if clean or filenames.CLEAN_PARTITIONS_FILE in found:
            self._space.hold_inodes()
        if not known:
            self._adopt(directories, is_own=filenames.FORMAT_FILE in found)
        if self._correct_internal_topics() or other is not None:
            with suppress_no_room():  # else the next start does and says the same again
                self._registry.save()
        if filenames.FORMAT_FILE not in found:
            identity.write_format(fs, path)
        self._mark_leftovers(directories)
        loader = PartitionLoader(fs, path, self.partitions, self._registry, self._report)
        try:
            loader.load_all({*found, *directories}, in_line_bytes, loading)
        except LoadingStoppedError as stopped:
            stopped.is_clean = self._close_loaded()
            raise
        seen = (log.producers.highest_id for log in self.partitions.logs.values())
        producer_ids = ProducerIds(
            fs, self._file(filenames.PRODUCER_IDS_FILE), highest_seen=max(seen, default=NO_PRODUCER_ID)
        )
        return LogDirectory(
            fs,
            path,
            lock,
            cluster_id,
            self._report,
            self._space,
            producer_ids,
            self._accounts,
            self._acls,
            self.partitions,
            self._topics,
            loader,
            self._dynamic,
        )

    def _correct_internal_topics(self) -> bool:
        """Use settings of internal topics under which nothing is lost, where an older version or Kafka altered them.

        Returns whether there were such.
        """
        corrected = list(identity.corrections(self._registry))
        for topic, config, told in corrected:
            is_compacted = topic.name in COMPACTED_TOPICS  # not that of share groups, as earlier versions noted
            notes = [note for note in topic.notes if is_compacted or note != adoption.INTERNAL_NOTE]
            self._registry.topics[topic.name] = replace(topic, config=config, notes=notes)
            self._report.problems.append(
                f"settings of {topic.name}, under which it would lose or refuse what groups commit, were corrected: "
                f"{told}"
            )
        return bool(corrected)

    def _cluster_id(self, found: list[str], *, has_data: bool) -> str:
        """The cluster id in ``meta.properties``, which is written if it is absent; if it was lost, report a problem."""
        cluster_id = identity.read_cluster_id(self._fs, self._path, found)
        if cluster_id is not None:
            if not cluster_id:
                self._report.problems.append(
                    f"{filenames.META_PROPERTIES_FILE} names no cluster id: put it back from a backup"
                )
            return cluster_id
        cluster_id = identity.write_identity(self._fs, self._path, self._node_id, self._new_uuid)
        if has_data:
            self._report.problems.append(
                f"{filenames.META_PROPERTIES_FILE} was missing: from now on the cluster id is {cluster_id}; stop the "
                "broker and put the file back from a backup to have the former one"
            )
        return cluster_id

    def _give_up_reserved_name(self, found: list[str], directories: dict[str, filenames.PartitionDirectory]) -> None:
        """Rename a topic that an earlier version made under the name of Kafka's metadata log.

        The registry first: a start after a crash finds the remaining directories by the topic id in them, which is not
        that of Kafka's metadata log. Such a version may also have dropped the topic from the registry.
        """
        topics = self._registry.topics
        old = identity.reserved_directories(self._fs, self._path, found)
        topic = topics.get(RESERVED_TOPIC)
        if topic is None and not old:
            return
        if topic is None:
            topic = topics.get(identity.RENAMED_TOPIC) or adoption.adopted_topic(
                identity.RENAMED_TOPIC, dict(old.values()), self._new_id, adoption.REMADE_NOTE
            )
        else:
            del topics[RESERVED_TOPIC]
        topics[identity.RENAMED_TOPIC] = replace(topic, name=identity.RENAMED_TOPIC)
        self._registry.save()
        for name, (partition, _) in old.items():
            renamed = filenames.partition_directory_name(identity.RENAMED_TOPIC, partition)
            self._fs.rename(self._file(name), self._file(renamed))
            found[found.index(name)] = renamed
            directories.pop(name, None)
            directories[renamed] = filenames.PartitionDirectory(identity.RENAMED_TOPIC, partition)
        self._fs.sync_directory(self._path)
        self._registry.kafka_metadata = kafka_signs.metadata_files(self._fs, self._path)
        self._registry.save()
        self._report.problems.append(
            f"topic {RESERVED_TOPIC} has been renamed to {identity.RENAMED_TOPIC}, with all its records: Apache Kafka "
            "keeps its metadata log under that name"
        )

    def _adopt(self, directories: Directories, *, is_own: bool) -> None:
        """Without a registry, make it from the directories: of a new directory, or one that Kafka wrote.

        ``is_own``: seglog wrote the directory, so its registry was lost.
        """
        for name, found in directories.items():
            # Not one such as ``backup-2024``, which has a partition's name but not its files.
            inside = [] if found.marker else self._fs.list_directory(self._file(name))
            if inside and not has_partition_files(inside):
                raise LogDirectoryError(
                    f"{self._path} is neither seglog's nor Kafka's: its sub-directory {name!r} holds no segments; "
                    "choose an empty directory with --set log.dir=DIRECTORY, or move that one away",
                    path=self._path,
                )
        ids = adoption.topic_ids(directories, lambda name: topic_id_in(self._fs, self._file(name)))
        metadata = kafka_metadata.read_kafka_metadata(self._fs, self._path)
        self._registry.metadata_version = metadata.metadata_version or self._registry.metadata_version
        if is_own:
            self._registry.kafka_access = kafka_access.possible_access(metadata, self._report.problems)
            metadata = kafka_metadata.KafkaMetadata()
        if metadata.problem is not None:
            self._report.problems.append(
                f"{metadata.problem}: topics' settings, permissions and quotas behind it are not known"
            )
        of_brokers = {f"broker {name}" if name else "all brokers": c for name, c in metadata.broker_configs.items()}
        of_groups = {f"group {name}": config for name, config in metadata.group_configs.items()}
        for of, settings in (*sorted(of_brokers.items()), *sorted(of_groups.items())):
            told = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
            self._report.kafka_settings.append(f"{of}: {told}")
        self._adopt_accounts(metadata)
        if not is_own:
            self._take_over_access(metadata)
            access = self._registry.kafka_access
            self._report.adopted_rules, self._report.adopted_quotas = len(access.rules), len(access.quotas)
        for topic, partitions in ids.items():
            note = adoption.REMADE_NOTE if is_own else adoption.ADOPTED_NOTE
            self._registry.topics[topic] = adoption.adopted_topic(topic, partitions, self._new_id, note, metadata)
        for topic, number in adoption.missing_partitions(
            ids, kafka_signs.expected_partitions(self._fs, self._path), directories.values()
        ):
            if topic in ids:
                self._registry.topics[topic] = adoption.with_missing(self._registry.topics[topic], number)
        if not is_own:
            cleaned = self.partitions.checkpoints.read(checkpoints.CLEANER_CHECKPOINT, [])  # named when it is loaded
            there = [(topic, number) for topic, partitions in ids.items() for number in partitions]
            kafka_signs.excuse_holes_of_replicas(self._fs, self._path, there, self._registry.topics, cleaned)
            self._report.adopted = sorted(self._registry.topics)
        elif self._registry.topics:
            self._report.remade = sorted(self._registry.topics)
            self._report.problems.append(
                f"{filenames.REGISTRY_FILE} was missing and was made from the directories: the configuration of "
                f"{len(self._registry.topics)} topics is lost, they keep every record until it is set again"
            )
        self._registry.kafka_metadata = kafka_signs.metadata_files(self._fs, self._path)
        self._registry.save()

    def _adopt_accounts(self, metadata: kafka_metadata.KafkaMetadata) -> None:
        """Take over the SCRAM credentials of a Kafka: before the registry, with which this is not done again."""
        accounts = self._accounts
        usable = [
            Change(name, mechanism, credential)
            for (name, mechanism), credential in metadata.credentials.items()
            if not accounts.has(name) and why_impossible_name(name) is None
        ]
        if metadata.problem is not None:
            self._report.problems.append(f"{metadata.problem}: accounts behind it are not known")
        unusable = len({name for name, _ in metadata.credentials if why_impossible_name(name) is not None})
        if unusable:
            self._report.problems.append(f"{unusable} accounts of Kafka's have names that are not possible here")
        if not usable:
            return
        try:
            plan = accounts.change(usable)
        except PolicyViolationError as error:
            raise LogDirectoryError(
                f"the accounts of the Kafka that wrote {self._path} cannot be adopted: {error.message}", path=self._path
            ) from error
        self._report.adopted_accounts = sorted(plan.altered)

    def _take_over_access(self, metadata: kafka_metadata.KafkaMetadata) -> list[str]:
        """Take over what Kafka changed of permissions and quotas: before the registry, as accounts are; say what.

        A crash between the files has the next start do it again, which changes nothing more.
        """
        before = self._registry.kafka_access
        self._registry.kafka_access = now = kafka_access.possible_access(metadata, self._report.problems)
        try:
            dynamic = kafka_access.with_changes(self._dynamic, before, now, is_enforced=self._is_enforced)
            if now.rules != before.rules:
                self._acls.change(sorted(now.rules - before.rules), before.rules - now.rules)
        except PolicyViolationError as error:
            raise LogDirectoryError(
                f"the permissions and quotas of the Kafka that wrote {self._path} cannot be adopted: {error.message}",
                path=self._path,
            ) from error
        if dynamic != self._dynamic:
            content = encode_dynamic_configs(dynamic)
            write_file_atomically(self._fs, self._file(filenames.DYNAMIC_CONFIGS_FILE), content)
            self._dynamic = dynamic
        return kafka_access.told_changes(before, now)

    def _mark_leftovers(self, directories: Directories) -> None:
        """Mark directories of deleted topics for removal; set aside, as Kafka does, those of unknown topics."""
        changed = False
        for name, (topic, partition, marker) in directories.items():
            owner = self._registry.topics.get(topic)
            if marker == filenames.DELETE_MARKER:
                if topic == filenames.SNAPSHOT_TOPIC and is_held(self._fs, self._file(name)):
                    continue
                self._report.deleted_directories.append(self._file(name))
            elif not marker and kafka_signs.is_being_deleted(self._fs, self._path, name, self._registry):
                marked = filenames.marked_directory_name(topic, partition, self._new_uuid(), filenames.DELETE_MARKER)
                self._fs.rename(self._file(name), self._file(marked))
                self._report.deleted_directories.append(self._file(marked))
                changed = True
            elif not marker and (owner is None or partition >= owner.partitions):
                aside = filenames.marked_directory_name(topic, partition, self._new_uuid(), filenames.STRAY_MARKER)
                self._fs.rename(self._file(name), self._file(aside))
                self._report.problems.append(f"{name} belongs to no known topic and was set aside as {aside}")
                changed = True
        if changed:
            self._fs.sync_directory(self._path)
        if self._registry.deleting:
            self._registry.deleting = []
            with (
                suppress_no_room()
            ):  # else the next start finds no such directory, or one whose name records the deletion
                self._registry.save()
                self._topics.note_recorded()

    def _close_loaded(self) -> bool:
        """Stop while partitions are being loaded; return whether the next start finds a clean stop.

        No record was appended since the stop before, so its checkpoints are still right.
        """
        if not self._report.clean or self._report.offline or self._report.kafka_signs:
            return False
        if any(error is not None for error in self.partitions.close().values()):
            return False
        try:
            write_file_atomically(self._fs, self._file(filenames.CLEAN_SHUTDOWN_FILE), kafka_signs.CLEAN_MARKER)
        except OSError:
            return False
        return True

    def _new_id(self) -> str:
        return filenames.new_id(self._new_uuid())

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"
