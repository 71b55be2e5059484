"""The check of a whole log directory: its own files, then each partition, with repairs if they are asked for.

The directory is locked meanwhile, so that no broker changes its files; without repairs only if it has a lock file, as
every one has that a broker uses. A broker that was stopped or killed leaves a sound directory: the findings are notes.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.inspect.check.partition import Progress, check_partition
from seglog_broker.inspect.check.plan import CheckResult, PartitionContext
from seglog_broker.inspect.check.repair import lift_read_only, repair_partition, tidy
from seglog_broker.inspect.check.small_files import LEFT_OVER_SUFFIXES
from seglog_broker.inspect.dump.directories import is_log_directory, is_partition_directory
from seglog_broker.inspect.findings import Code, Finding, PartitionCounts, Remaining, Repaired, Report, Severity, Totals
from seglog_broker.storage.directory import identity
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.adoption import missing_partitions, topic_ids
from seglog_broker.storage.directory.dynamic_configs import read_dynamic_configs
from seglog_broker.storage.directory.kafka_signs import CLEAN_MARKER, expected_partitions, signs_of_kafka
from seglog_broker.storage.directory.topic_admin import PendingCreation
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, Lock, is_directory, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import UNREADABLE_MARK, MalformedJsonError, keep_copy
from seglog_broker.storage.log.partition_files import log_base, topic_id_in
from seglog_broker.storage.log.partition_state import PartitionState, StoppedAt
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError
from seglog_protocol.record_batch import NO_PRODUCER_ID
from seglog_protocol.segment_files import TEMPORARY_SUFFIX

_OTHER_FILES: Final = filenames.REPLACED_FILES | {
    *(filenames.LOCK_FILE, filenames.BACKUP_SOCKET, filenames.STANDBY_SOCKET),
    *(filenames.BALLAST_FILE, *filenames.SPARE_FILES),
}
"""Files that are checked elsewhere; and the lock, the sockets, the ballast and the spare files, which are not."""

_READERS: Final[Mapping[str, tuple[Code, Callable[[FileSystem, str], object]]]] = {
    filenames.PRODUCER_IDS_FILE: (Code.PRODUCER_IDS_MALFORMED, partial(ProducerIds, highest_seen=NO_PRODUCER_ID)),
    filenames.DYNAMIC_CONFIGS_FILE: (Code.CONFIGS_MALFORMED, read_dynamic_configs),
    filenames.ACLS_FILE: (Code.ACLS_MALFORMED, lambda fs, path: AclStore(fs, path).load()),
    filenames.ACCOUNTS_FILE: (Code.ACCOUNTS_MALFORMED, lambda fs, path: AccountStore(fs, path).load()),
}
"""By file, what refuses its contents at a start, and how a check calls that."""

Key = tuple[str, int]
"""Topic and number of a partition."""


class RefusedError(Exception):
    """The directory cannot be checked; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """``deep`` opens every batch and reads its records; ``repair`` repairs what can be repaired."""

    deep: bool = False
    repair: bool = False


def check_directory(
    fs: FileSystem,
    path: str,
    config: BrokerConfig,
    options: CheckOptions,
    progress: Progress = lambda _path, _size: None,
) -> Iterator[Report]:
    """Check the log directory ``path``; ``config`` is the configuration of its broker.

    Raises RefusedError at once if it is not a log directory, or is in use. Otherwise the directory is locked until the
    iterator ends or is closed, unless nothing is to be changed and no broker can be running, as there is no lock file.
    """
    _refuse_unless_log_directory(fs, path)
    lock_path = f"{path}/{filenames.LOCK_FILE}"
    check = _DirectoryCheck(fs, path, config, options, progress, Totals(path))
    if not options.repair and not fs.exists(lock_path):
        return check.run()
    try:
        lock = fs.lock(lock_path)
    except BlockingIOError as error:
        raise RefusedError(f"{path} is in use by {error} (its {filenames.LOCK_FILE} is held): stop it first") from error
    except OSError as error:
        raise RefusedError(f"{path} cannot be locked: {error.strerror or error}") from error
    return _reports(check, lock)


def _reports(check: "_DirectoryCheck", lock: Lock) -> Iterator[Report]:
    try:
        yield from check.run()
    finally:
        lock.release()


def _refuse_unless_log_directory(fs: FileSystem, path: str) -> None:
    try:
        if not fs.stat(path).is_directory:
            raise RefusedError(f"{path} is a file: name a log directory, or use seglogd dump for files")
        names = identity.root_names(fs, path)
        if not is_log_directory(fs, path, names):
            if is_partition_directory(names):
                raise RefusedError(f"{path} is one partition: name the log directory that it lies in")
            raise RefusedError(f"{path} is not a log directory: it holds no file of seglog or Kafka")
        if filenames.FORMAT_FILE in names:
            text = read_file(fs, f"{path}/{filenames.FORMAT_FILE}").decode(errors="replace").strip()
            if not text.isdigit() or int(text) > identity.FORMAT_VERSION:
                raise RefusedError(
                    f"{path} has format {text[:20]!r}, this seglog knows formats up to {identity.FORMAT_VERSION}: "
                    "use the version that wrote it"
                )
    except FileNotFoundError:
        raise RefusedError(f"{path} does not exist") from None
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror or error}") from error


def _is_as_written(content: bytes, offsets: Mapping[Key, int]) -> bool:
    """Whether ``content`` has the bytes that a broker writes for ``offsets``, with lines in any order, or is empty."""
    lines = checkpoints.encode_offsets(offsets).split(b"\n")
    return not content or content == b"0\n" or sorted(content.split(b"\n")[2:]) == sorted(lines[2:])


@dataclass(slots=True)
class _DirectoryCheck:
    _fs: FileSystem
    _path: str
    _config: BrokerConfig
    _options: CheckOptions
    _progress: Progress
    _totals: Totals
    _topics: dict[str, Topic] = field(default_factory=dict)
    _deleting: Sequence[str] = ()
    _deleted_by_name: Sequence[str] = ()  # directories of deleted topics that the registry still lists
    _is_registered: bool = False
    _offsets: dict[str, dict[Key, int]] = field(default_factory=dict)
    _is_clean: bool = False
    _is_own_stop: bool = False
    _is_from_kafka: bool = False
    _set_aside: set[Key] = field(default_factory=set)  # partitions set aside as -stray
    _partitions: dict[str, Key] = field(default_factory=dict)  # by directory, without those deleted or set aside
    _unrepaired: list[Finding] = field(default_factory=list)  # findings about the directory's own files

    def run(self) -> Iterator[Report]:
        """Findings and repairs of the directory's own files, then those of each partition, then the totals."""
        names = identity.root_names(self._fs, self._path)
        directories = [name for name in names if is_directory(self._fs, self._path_of(name))]
        self._is_clean = filenames.CLEAN_SHUTDOWN_FILE in names
        yield from self._check_own_files(names, directories)
        if self._options.repair:
            yield from (Remaining(finding) for finding in self._unrepaired if finding.severity != Severity.NOTE)
        for name, key in self._partitions.items():
            yield from self._check_partition(name, key)
        yield self._totals

    # --- The directory's own files ------------------------------------------------------------------------------------

    def _check_own_files(self, names: Sequence[str], directories: Sequence[str]) -> Iterator[Report]:
        for name in names:
            if name in _OTHER_FILES or name in directories or UNREADABLE_MARK in name:
                continue
            if name.removesuffix(TEMPORARY_SUFFIX) in filenames.REPLACED_FILES:
                # First, because a repair writes a file of this name.
                yield from self._report_left_over(name, LEFT_OVER_SUFFIXES[TEMPORARY_SUFFIX])
            else:
                yield self._finding(Code.UNKNOWN_FILE, name, "is not a file of seglog or Kafka")
        yield from self._check_identity(names, directories)
        yield from self._check_registry(names, directories)
        marker = filenames.CLEAN_SHUTDOWN_FILE
        is_ours = marker in names and read_file(self._fs, self._path_of(marker)) == CLEAN_MARKER
        self._is_own_stop = is_ours and not self._is_from_kafka
        if filenames.REGISTRY_FILE not in names and directories:
            yield from self._check_without_registry(names, directories)
        yield from self._check_offset_checkpoints(names)
        for name in directories:
            yield from self._check_sub_directory(name)
        for topic in self._topics.values():
            for partition in range(topic.partitions):
                if filenames.partition_directory_name(topic.name, partition) not in directories:
                    yield from self._report_absent((topic.name, partition))

    def _check_identity(self, names: Sequence[str], directories: Sequence[str]) -> Iterator[Report]:
        """Findings of the files that say whose directory this is, and in which format."""
        name = filenames.META_PROPERTIES_FILE
        if name in names:
            version = identity.decode_properties(read_file(self._fs, self._path_of(name))).get("version", "0")
            if version not in {"0", "1"}:
                yield self._finding(Code.IDENTITY_WRONG, name, f"has version {version!r}")
        elif directories or filenames.REGISTRY_FILE in names:
            yield self._finding(Code.IDENTITY_MISSING, name, "is not there, and data is")

        name = filenames.FORMAT_FILE
        if name in names and read_file(self._fs, self._path_of(name)) != identity.FORMAT_CONTENT:
            finding = self._finding(Code.FORMAT_WRONG, name, "is not written as seglog writes it")
            yield finding
            if self._options.repair:
                yield self._write(name, identity.FORMAT_CONTENT, f"has format {identity.FORMAT_VERSION}", finding)
        for name, (code, read) in _READERS.items():
            if name in names:
                try:
                    read(self._fs, self._path_of(name))
                except LogDirectoryError as error:
                    yield self._finding(code, name, error.message)
        name = filenames.CLOCK_FILE
        if name in names:
            try:
                identity.decode_trusted_time(read_file(self._fs, self._path_of(name)))
            except MalformedJsonError as error:
                finding = self._finding(Code.CLOCK_MALFORMED, name, str(error))
                yield finding
                if self._options.repair:
                    copied = keep_copy(self._fs, self._path_of(name))
                    yield from self._remove(name, finding, f"removed; {copied}")

    def _check_registry(self, names: Sequence[str], directories: Sequence[str]) -> Iterator[Report]:
        name = filenames.REGISTRY_FILE
        if name in names:
            registry = TopicRegistry(self._fs, self._path_of(name))
            try:
                registry.load()
            except LogDirectoryError as error:
                yield self._finding(Code.REGISTRY_MALFORMED, name, error.message)
                return
            self._is_registered = True
            self._deleted_by_name = registry.remove_deleted(directories)
            self._topics, self._deleting = registry.topics, registry.deleting
            signs = signs_of_kafka(self._fs, self._path, names, registry)
            if signs:
                self._is_from_kafka = True
                yield self._finding(Code.KAFKA_WAS_HERE, "", f"was used by Kafka after seglog: {'; '.join(signs)}")

    def _check_without_registry(self, names: Sequence[str], directories: Sequence[str]) -> Iterator[Report]:
        """Check partitions without a topic registry: Kafka wrote the directory, or the registry was lost."""
        name = filenames.REGISTRY_FILE
        if filenames.FORMAT_FILE in names:
            what = "is missing, and seglog wrote this directory: the topics' configuration is lost"
            yield self._finding(Code.REGISTRY_MISSING, name, what)
        else:
            yield self._finding(Code.REGISTRY_MISSING, name, "is not there: Kafka wrote this directory", Severity.NOTE)
        parsed = {}
        for name in directories:
            with contextlib.suppress(ValueError):
                parsed[name] = filenames.parse_partition_directory(name)
        for name in filenames.SKIPPED_DIRECTORIES:
            parsed.pop(name, None)
        ids = topic_ids(parsed, lambda _name: None)
        for key in missing_partitions(ids, expected_partitions(self._fs, self._path), parsed.values()):
            what = "is not there, and Kafka had such a partition: a start refuses the directory"
            name = filenames.partition_directory_name(*key)
            yield self._finding(Code.PARTITION_GONE, name, what)

    def _check_offset_checkpoints(self, names: Sequence[str]) -> Iterator[Report]:
        for name in filenames.OFFSET_CHECKPOINTS:
            self._offsets[name] = {}
            if name not in names:
                continue
            content = read_file(self._fs, self._path_of(name))
            repaired = "written without entries"
            try:
                self._offsets[name] = checkpoints.decode_offsets(content)
                problem = "" if _is_as_written(content, self._offsets[name]) else "is not written as a broker writes it"
                repaired = "written as a broker writes it"
            except checkpoints.MalformedCheckpointError as error:
                problem = str(error)
            if problem:
                finding = self._finding(Code.CHECKPOINT_MALFORMED, name, problem)
                yield finding
                if self._options.repair:
                    repaired += f"; {keep_copy(self._fs, self._path_of(name))}"
                    yield self._write(name, checkpoints.encode_offsets(self._offsets[name]), repaired, finding)

    def _check_sub_directory(self, name: str) -> Iterator[Report]:
        if name in filenames.SKIPPED_DIRECTORIES:
            return
        try:
            topic, partition, marker = filenames.parse_partition_directory(name)
            problem = filenames.why_invalid_topic(topic)
        except ValueError as error:
            topic, partition, marker, problem = "", 0, "", str(error)
        if problem is not None:
            yield self._finding(Code.FOREIGN_DIRECTORY, name, f"is not a partition: {problem}")
        elif name in self._deleted_by_name:
            what = f"is of topic {topic}, deleted although {filenames.REGISTRY_FILE} still has it: a start removes it"
            yield self._finding(Code.LEFT_OVER, name, what)
        elif marker == filenames.DELETE_MARKER or (  # or a crash kept the broker from giving it the marker
            not marker and self._deleting and topic_id_in(self._fs, self._path_of(name)) in self._deleting
        ):
            yield from self._report_left_over(name, "is of a deleted topic, a start removes it")
        elif marker:
            self._set_aside.add((topic, partition))
            yield self._finding(Code.PARTITION_ASIDE, name, f"is set aside as {marker}")
        else:
            self._partitions[name] = (topic, partition)
            if self._is_registered and not self._is_known((topic, partition)):
                origin = "; Kafka made it, and a start takes it over" if self._is_from_kafka else ""
                yield self._finding(
                    Code.PARTITION_UNKNOWN, name, f"is in no topic of {filenames.REGISTRY_FILE}{origin}"
                )

    def _is_known(self, key: Key) -> bool:
        topic = self._topics.get(key[0])
        return topic is not None and key[1] < topic.partitions

    def _is_being_made(self, key: Key) -> bool:
        under_way = PendingCreation.read(self._fs, self._path)
        return under_way is not None and self._is_known(key) and under_way.has(self._topics[key[0]].id, key[1])

    def _report_absent(self, key: Key) -> Iterator[Report]:
        name = filenames.partition_directory_name(*key)
        point = self._offsets[checkpoints.RECOVERY_POINT_CHECKPOINT].get(key, 0)
        if self._is_being_made(key):
            yield self._finding(Code.PARTITION_NOT_MADE, name, "is not there yet")
        elif self._is_from_kafka and key in self._set_aside:
            yield self._finding(Code.PARTITION_NOT_MADE, name, "is set aside by Kafka: a start gives it its name again")
        elif self._is_from_kafka and not any(topic == key[0] for topic, _ in self._partitions.values()):
            yield self._finding(Code.PARTITION_NOT_MADE, name, "is not there: Kafka has deleted the topic")
        else:
            had = f", and had records up to offset {point - 1}" if point else ", and had been made"
            yield self._finding(Code.PARTITION_GONE, name, f"is not there{had}")

    def _report_left_over(self, name: str, what: str) -> Iterator[Report]:
        finding = self._finding(Code.LEFT_OVER, name, what)
        yield finding
        if self._options.repair:
            yield from self._remove(name, finding, "removed")

    def _remove(self, name: str, finding: Finding, what: str) -> Iterator[Report]:
        path = self._path_of(name)
        if self._fs.stat(path).is_directory:
            self._fs.remove_tree(path)
        else:
            self._fs.unlink(path)
        self._fs.sync_directory(self._path)
        yield self._count_repair(Repaired(path, what), finding)

    # --- A partition --------------------------------------------------------------------------------------------------

    def _check_partition(self, name: str, key: Key) -> Iterator[Report]:
        path = self._path_of(name)
        context = self._context_of(key)
        if self._options.repair:
            for repaired in tidy(self._fs, path, is_clean=context.is_clean):
                yield self._count_repair(repaired)
        result = check_partition(self._fs, path, context, self._progress)
        for finding in result.findings:
            yield self._count_finding(finding)
        stopped = self._clean_stop_of(key)
        if stopped is None:
            yield from self._report_checkpoints_beyond_end(key, result.counts)
        else:
            yield from self._compare_checkpoints_with_stop(key, stopped)
        if self._options.repair:
            result = yield from self._repair(path, key, context, result)
        self._totals.add(result.counts)
        yield result.counts

    def _context_of(self, key: Key) -> PartitionContext:
        topic = self._topics.get(key[0]) if self._is_known(key) else None
        config = self._topic_config(topic)
        stopped = self._clean_stop_of(key)
        recovery_points = self._offsets[checkpoints.RECOVERY_POINT_CHECKPOINT]
        log_starts = self._offsets[checkpoints.LOG_START_CHECKPOINT]
        return PartitionContext(
            is_clean=self._is_clean,
            is_own_stop=self._is_own_stop,
            is_adopted=topic is None or bool(topic.notes) or self._is_from_kafka,
            is_from_kafka=self._is_from_kafka,
            is_being_made=self._is_being_made(key),
            compacted_before=self._offsets[checkpoints.CLEANER_CHECKPOINT].get(key, 0),
            topic_id=None if topic is None else topic.id,
            recovery_point=recovery_points.get(key, 0) if stopped is None else stopped.log_end,
            high_watermark=self._offsets[checkpoints.HIGH_WATERMARK_CHECKPOINT].get(key),
            log_start=log_starts.get(key, 0) if stopped is None else stopped.log_start,
            index_interval=config.index_interval_bytes,
            index_bytes_max=config.segment_index_bytes,
            deep=self._options.deep,
        )

    def _clean_stop_of(self, key: Key) -> StoppedAt | None:
        """Start and end of the log at seglog's clean stop; None if the last stop was not clean, or Kafka's."""
        if not self._is_own_stop:
            return None
        return PartitionState.load(self._fs, self._path_of(filenames.partition_directory_name(*key))).stopped

    def _topic_config(self, topic: Topic | None) -> TopicConfig:
        try:
            return self._config.topic_config(topic.config if topic is not None else {})
        except InvalidConfigError:
            return self._config.topic_config({})  # as a start does

    def _report_checkpoints_beyond_end(self, key: Key, counts: PartitionCounts) -> Iterator[Report]:
        """Notes about offsets beyond the log end in checkpoints that a start does not rely on."""
        for name in (checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.CLEANER_CHECKPOINT):
            offset = self._offsets[name].get(key, 0)
            if offset > counts.end_offset:
                partition = filenames.partition_directory_name(*key)
                what = f"has offset {offset} for {partition}, whose log ends at {counts.end_offset}"
                yield self._finding(Code.CHECKPOINT_BEYOND_END, name, what)

    def _compare_checkpoints_with_stop(self, key: Key, stopped: StoppedAt) -> Iterator[Report]:
        """Findings about checkpoints that differ from the clean stop: two have the log end, one the log start."""
        partition = filenames.partition_directory_name(*key)
        names = self._fs.list_directory(self._path_of(partition))
        first = min((base for name in names if (base := log_base(name)) is not None), default=0)
        wanted = {
            checkpoints.RECOVERY_POINT_CHECKPOINT: (stopped.log_end, 0),
            checkpoints.HIGH_WATERMARK_CHECKPOINT: (stopped.log_end, 0),
        }
        if first <= stopped.log_start:  # else the first segment is gone, which ``check_partition`` reports
            wanted[checkpoints.LOG_START_CHECKPOINT] = (stopped.log_start, first)
        for name, (offset, default) in wanted.items():
            stored = self._offsets[name].get(key, 0)
            if max(stored, default) == offset:
                continue
            what = f"has offset {stored} for {partition}, where the last stop had {offset}"
            finding = self._finding(Code.CHECKPOINT_WRONG, name, what)
            yield finding
            if self._options.repair:
                yield self._set_offset(name, key, offset, finding=finding)

    def _repair(
        self, path: str, key: Key, context: PartitionContext, first: CheckResult
    ) -> Generator[Report, None, CheckResult]:
        """Carry out the repairs of a partition, and check it again. Returns the result of the second check."""
        plan = first.plan
        before = self._totals.repairs
        for repaired in repair_partition(self._fs, path, plan):
            yield self._count_repair(repaired)
        if plan.lower_recovery_point is not None:
            yield self._lower_recovery_point(key, plan.lower_recovery_point)
            context = replace(context, is_clean=False, recovery_point=plan.lower_recovery_point)
        if plan.lower_log_start is not None:
            yield self._set_offset(checkpoints.LOG_START_CHECKPOINT, key, plan.lower_log_start)
            context = replace(context, log_start=plan.lower_log_start)
        second = replace(first, findings=list(first.findings))
        if self._totals.repairs > before:
            second = check_partition(self._fs, path, context, self._progress)
        if plan.rewrite is not None and all(finding.code == Code.READ_ONLY for finding in second.faults):
            yield self._count_repair(lift_read_only(self._fs, path, second.counts.batches))
            second.findings = [finding for finding in second.findings if finding.code != Code.READ_ONLY]
        for finding in first.findings:
            self._totals.findings[finding.severity] -= 1
        for finding in second.findings:
            self._count_finding(finding)
        yield from map(Remaining, second.faults)
        return second

    def _lower_recovery_point(self, key: Key, offset: int) -> Repaired:
        """Lower a recovery point, and remove the marker of the clean stop.

        So the next start begins a new leader epoch, and offsets that are given a second time belong to another epoch.
        """
        if self._is_clean:
            self._fs.unlink(self._path_of(filenames.CLEAN_SHUTDOWN_FILE))
            self._fs.sync_directory(self._path)
            self._is_clean = False
        more = ", and the next start begins a new leader epoch"
        return self._set_offset(checkpoints.RECOVERY_POINT_CHECKPOINT, key, offset, more)

    def _set_offset(
        self, name: str, key: Key, offset: int, more: str = "", *, finding: Finding | None = None
    ) -> Repaired:
        """Write the checkpoint ``name`` with another offset for a partition."""
        self._offsets[name][key] = offset
        what = f"has {offset} for {filenames.partition_directory_name(*key)} now{more}"
        return self._write(name, checkpoints.encode_offsets(self._offsets[name]), what, finding)

    def _write(self, name: str, content: bytes, what: str, finding: Finding | None) -> Repaired:
        """Replace a file of the directory, which removes ``finding``."""
        write_file_atomically(self._fs, self._path_of(name), content)
        return self._count_repair(Repaired(self._path_of(name), what), finding)

    # --- Counting -----------------------------------------------------------------------------------------------------

    def _finding(self, code: Code, name: str, what: str, severity: Severity | None = None) -> Finding:
        finding = self._count_finding(Finding(severity or code.severity, code, self._path_of(name), what))
        self._unrepaired.append(finding)
        return finding

    def _count_finding(self, finding: Finding) -> Finding:
        self._totals.findings[finding.severity] += 1
        return finding

    def _count_repair(self, repaired: Repaired, finding: Finding | None = None) -> Repaired:
        """Count a repair, and no longer count the finding that it removes."""
        self._totals.repairs += 1
        if finding is not None:
            self._totals.findings[finding.severity] -= 1
            self._unrepaired.remove(finding)
        return repaired

    def _path_of(self, name: str) -> str:
        return f"{self._path}/{name}"
