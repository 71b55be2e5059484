"""The broker: one object that owns all mutable state, and the services that answer requests.

It belongs to one loop, so locks are needed only for files that are written in threads. Listeners pass requests to it
and borrow its replies; storage below is synchronous. This module puts the services together; they handle the requests.
"""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from seglog_broker.api.access import AccessService
from seglog_broker.api.compaction_preview import CompactionPreviews
from seglog_broker.api.configs import ConfigService
from seglog_broker.api.describe_broker import BUILD, BrokerDescriber
from seglog_broker.api.explain import ExplainContext, explain_seek, explain_segments
from seglog_broker.api.explain_delivery import DeliveryExplanation
from seglog_broker.api.fetch import FetchService
from seglog_broker.api.flush import flush
from seglog_broker.api.lag import measure_lag
from seglog_broker.api.list_offsets import ListOffsetsService
from seglog_broker.api.long_requests import WaitingFetches, long_offsets
from seglog_broker.api.monitoring.broker_sources import (
    PART_COST,
    BrokerSources,
    Problems,
    TransactionSources,
    backup_sources,
)
from seglog_broker.api.monitoring.group_sources import GroupSources
from seglog_broker.api.monitoring.measurements import DiskForecast, Measurements
from seglog_broker.api.monitoring.service import Monitoring, plain_numbers
from seglog_broker.api.monitoring.share_sources import ShareSources
from seglog_broker.api.monitoring.topic_sources import TopicSources
from seglog_broker.api.producer_ids import ProducerIdService
from seglog_broker.api.share_fetch import ShareFetchService
from seglog_broker.api.truncate import TruncateService
from seglog_broker.api.users import UserService
from seglog_broker.config import BrokerConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.coordinators.groups.service.native import NativeGroups
from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.coordinators.transactions.service.native import NativeTransactions
from seglog_broker.coordinators.transactions.service.service import TransactionService
from seglog_broker.engine.append import AppendService
from seglog_broker.engine.append_waits import AppendWaits
from seglog_broker.engine.pending_appends import AppendContext
from seglog_broker.engine.topics import TopicService
from seglog_broker.logger import get_logger
from seglog_broker.partitions.backup_progress import BackupProgress
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.cuts import CutMaker
from seglog_broker.partitions.durability import FlushSignal, begin_soon
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory
from seglog_broker.partitions.group_commit import GroupCommit
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.partition import Problem
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.pending_deletions import PendingDeletions
from seglog_broker.partitions.recoveries import Recoveries, Views, log_recovered
from seglog_broker.partitions.scheduler import Common, Scheduler
from seglog_broker.partitions.segment_expiry import RetentionSchedule, SegmentExpiry
from seglog_broker.runtime import budget, logs
from seglog_broker.runtime.connection_limits import ConnectionLimits
from seglog_broker.runtime.descriptors import handles_excess_max, handles_max
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.request_memory import DECODED_BYTES_MAX, RequestMemory
from seglog_broker.runtime.response_memory import ResponseMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.runtime.usage_buckets import UsageBuckets
from seglog_broker.security.authenticator import Authenticator
from seglog_broker.security.authority import Authority
from seglog_broker.security.bearer_token import BearerToken
from seglog_broker.security.principals import ANONYMOUS
from seglog_broker.security.tls import ServerTls
from seglog_broker.storage.directory.identity import OtherVersion
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.directory.partition_loader import Loading
from seglog_broker.storage.io.clock import Clock, Pace
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.recovery_job import RecoveryOutcome
from seglog_protocol import messages
from seglog_protocol.frames import HEADER_BYTES_MAX
from seglog_protocol.steps import Steps, finished
from seglog_protocol.version import VERSION

log = get_logger()

PROBLEMS_MAX: Final = 200
"""The most problems in the reply to hello, with which every connection begins; the log has all."""

PROBLEM_CHARACTERS_MAX: Final = 1_000
"""The most characters of a problem in it, so that the reply stays far below the largest header."""

IN_LINE_BYTES: Final = 4 * 1024 * 1024
"""The most bytes read before the broker serves after an unclean stop. That takes a few hundredths of a second, or with
one small record in each batch about as long as starting a process."""


class Broker:
    """Topics, their partitions, and the requests to them."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        fs: FileSystem,
        clock: Clock,
        offload: Offload,
        tls: ServerTls | None = None,
        http_token: BearerToken | None = None,
    ) -> None:
        """``tls`` is that of the listeners; None where none has it. ``http_token`` is that of the listener for HTTP."""
        self.live_config = LiveConfig(config, directory.dynamic_config)
        config = self.live_config.current
        self.clock = clock
        self.offload = offload
        self.fs = fs
        self.directory = directory
        self.tls = tls
        self.http_token = BearerToken() if http_token is None else http_token
        self.metrics = Metrics()
        self.usage_buckets = UsageBuckets(self.live_config, self.metrics)
        self.connection_limits = ConnectionLimits(self.live_config, self.metrics, self.usage_buckets)
        self.transfers = Transfers()
        self.request_memory = RequestMemory(config.seglog_request_memory_max, config.socket_request_max_bytes)
        self.decoded_memory = RequestMemory(DECODED_BYTES_MAX)
        self.response_memory = ResponseMemory()
        self.cleaning_pace = Pace()
        self.flush_wanted = FlushSignal()
        self.purgatory = FetchPurgatory()
        self.retention_schedule = RetentionSchedule(
            interval_ms=config.log_retention_check_interval_ms, first_ms=config.log_initial_task_delay_ms
        )
        self.clock_trust = ClockTrust(clock, fs, directory.path)
        self._started_ms = clock.now_ms()
        self.features_epoch = max(self._started_ms, (self.clock_trust.saved_ms or 0) + 1)
        """Of Kafka's features, which change with a start alone; a client takes none of a smaller one than it has seen.

        A time, it is larger than any of a Kafka, which counts the records of its metadata, and of an earlier start.
        """
        self.is_crashing = False
        """Whether ``close`` is to leave everything as a kill would."""

        self.recoveries = Recoveries(directory.recovering)
        self.views = Views()
        commits = GroupCommit(fs, offload, self.metrics, lambda: directory.lock.is_in_place)
        self.partitions = PartitionTable(directory, self.recoveries, self.views, self.metrics, commits)
        self.scheduler = Scheduler(directory.handles, fs, offload, self.metrics)
        self.common = common = Common(
            self.live_config,
            fs,
            clock,
            offload,
            self.scheduler,
            directory,
            self.partitions,
            self.recoveries,
            self.clock_trust,
            self.metrics,
        )
        """For each ``Service``."""
        self.backup = None
        """How far the continuous backup is; None where there is none."""
        if config.seglog_backup_to:
            self.backup = BackupProgress(config, commits.feed, CutMaker(*common, commits.feed))
        self.fence = None if self.backup is None else self.backup.fence
        self.idle_writers = IdleWriters(self.partitions, directory.handles)
        self.checkpoints = CheckpointWriter(directory, fs, offload, self.metrics)
        self.deletions = PendingDeletions()
        self.expiry = SegmentExpiry(*common, self.checkpoints, self.deletions)

        topics = TopicService(*common, self.views, self.checkpoints, self.deletions, self.expiry)
        context = AppendContext(
            self.partitions,
            directory,
            clock,
            AppendWaits(self.scheduler, self.idle_writers, offload),
            self.flush_wanted,
            self.metrics,
        )
        appends = AppendService(context)
        self._fetches = FetchService(self.partitions, directory, self.live_config, self.purgatory, self.metrics)
        previews = CompactionPreviews(*common, self.cleaning_pace)
        self._explain = ExplainContext(common, self.retention_schedule, self.deletions, previews)
        # The methods of the services under the names of the requests, so that a call goes directly to its service.
        self.turn = self.scheduler.turn
        self.learn_sizes = self.scheduler.learn_sizes
        self.append = appends.append
        self.is_plain = appends.is_plain
        self.commits = commits
        self.sync_now = commits.run_now
        self.sync_soon = partial(begin_soon, commits)
        self.missing_topics = topics.missing_topics
        self.create_missing = topics.create_missing
        self.flush = partial(flush, self.partitions, self.scheduler)
        self.fetch_now = self._fetches.fetch_now
        self.wait_for = self._fetches.wait_for
        self.fetch = WaitingFetches(self._fetches, self.scheduler).fetch
        offsets = ListOffsetsService(self.partitions, directory.handles)
        self.offsets = partial(long_offsets, offsets, self.scheduler)
        self._offsets_now = offsets.offsets_now
        self.topics = topics.describe
        self.create_topic = topics.create
        self.create_topics = topics.create_all
        self.check_new_topics = topics.check_new
        self.alter_topic = topics.alter
        self.delete_topic = topics.delete
        self.users = UserService(*common)
        self.authenticator = Authenticator(directory.accounts, self.live_config, clock, offload)
        self.authority = Authority(config, directory.acls.rules)
        self.access = AccessService(*common, self.authority)
        self.configs = ConfigService(*common, topics, self.reconfigured)
        self.describer = BrokerDescriber(self.live_config, clock, offload, self.authority)
        self.record_deletions = topics.record_deletions
        self.remove_later = topics.remove_later
        self.truncate = truncate = TruncateService(*common, self.checkpoints, self.expiry).truncate
        self.init_producer = ProducerIdService(*common).init_producer
        self.groups = GroupService(common, appends, topics)
        self._native_groups = NativeGroups(*common, self.groups)
        self.transactions = TransactionService(
            common, appends, topics, self.groups, self.init_producer, self.idle_writers
        )
        self._native_transactions = NativeTransactions(*common, self.transactions)
        self.share = ShareService(common, appends, topics, partial(truncate, for_broker=True))
        self.groups.shares.states = self.share
        self.share_fetches = ShareFetchService(*common, self.share, self.purgatory)
        topics.note_changes(self._note_topic)

        of_transactions = TransactionSources(self.transactions)
        measure = partial(measure_lag, self._explain)
        of_shares = ShareSources(common, self.share, self.share_fetches, measure)
        backup = [] if self.backup is None else [self.backup]
        self.problems = Problems(
            *common,
            tls,
            lambda: chain(of_transactions.problems(), of_shares.problems(), *(b.problems() for b in backup)),
        )
        self.forecast = DiskForecast(directory.space)
        of_broker = BrokerSources(
            *common,
            self.views,
            self.request_memory,
            self.response_memory,
            self.transfers,
            self._fetches,
            self.problems,
            self.forecast,
            tls,
            BUILD,
            self._started_ms,
        )
        of_topics = TopicSources(*common)
        of_groups = GroupSources(common, self.groups, measure)
        sources = of_broker, of_transactions, of_topics, of_groups, of_shares
        self.monitoring = Monitoring(
            {name: made for each in sources for name, made in each.sources().items()}
            | dict(backup_sources(self.backup))
        )
        self.measurements = Measurements([of_topics.measure, of_groups.measure, of_shares.measure])

        recovered = [opened.recovery for opened in directory.report.opened.values() if opened.recovery is not None]
        self.metrics.partitions_recovered = len(recovered)
        self.metrics.recovery_bytes = sum(each.scanned_bytes for each in recovered)
        self.partitions.serve(itertools.starmap(self.partitions.partition_of, directory.logs.items()))

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        return self.live_config.current

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        fs: FileSystem,
        clock: Clock,
        offload: Offload,
        loading: Loading = lambda _done, _total: None,
        in_line_bytes: int = IN_LINE_BYTES,
        tls: ServerTls | None = None,
        http_token: BearerToken | None = None,
    ) -> "Broker":
        """Lock the log directory and load what is in it, telling ``loading`` of each partition.

        After an unclean stop at most ``in_line_bytes`` are read before it returns.

        Raises LogDirectoryError when it cannot be used. A partition that cannot be opened is offline, and named.
        """
        handles = HandlePool(fs, config.seglog_handles_max, readahead=False)
        handles.limit_to(handles_max(config), handles_excess_max(config))
        directory = open_log_directory(
            fs,
            clock,
            config,
            config.log_dir,
            handles=handles,
            in_line_bytes=in_line_bytes,
            loading=loading,
            upgrading=_say_what_changes,
        )
        report = directory.report
        for settings in report.kafka_settings:
            log.warning(
                "kafka_broker_settings",
                settings=settings,
                advice="set what you need in the configuration file, and for groups by kafka-configs",
            )
        if report.adopted:
            log.warning("kafka_directory_adopted", topics=report.adopted)
        if report.adopted_accounts:
            log.warning(
                "kafka_accounts_adopted",
                accounts=len(report.adopted_accounts),
                advice="name those that administer in super.users",
            )
        if report.adopted_rules or report.adopted_quotas:
            log.warning(
                "kafka_access_adopted",
                permissions=report.adopted_rules,
                quotas=report.adopted_quotas,
                enforced=report.adopted_rules > 0 and not config.seglog_acls_not_enforced,
                advice="name those that administer in super.users, and set allow.everyone.if.no.acl.found as that "
                "Kafka's file has it",
            )
        if report.remade:
            log.warning("topic_registry_rebuilt", topics=report.remade)
        if report.kafka_signs:
            log.warning("directory_used_by_kafka", signs=report.kafka_signs)
        for change in report.kafka_changes:
            log.warning("changed_by_kafka", change=change)
        for problem in report.problems:
            log.warning("log_directory_problem", problem=problem)
        for (topic, partition), reason in report.offline.items():
            log.error("partition_offline", topic=topic, partition=partition, reason=reason)
        for key, opened in report.opened.items():
            if opened.recovery is not None:
                log_recovered(key, RecoveryOutcome.of(directory.logs[key].log_end_offset, opened))
            elif opened.rebuilt_indexes:
                log.info("indexes_rebuilt", topic=key[0], partition=key[1], segments=opened.rebuilt_indexes)
        return cls(config, directory, fs, clock, offload, tls, http_token)

    def close(self) -> list[str]:
        """Flush, write checkpoints and the clean marker, unlock. Call it when all listeners and ``run`` have ended.

        Returns why the stop is not clean, if it is not; the reasons are logged. If the directory was replaced, or the
        broker is to stop as if it was killed, nothing is written.
        """
        self.views.close()
        if not self.directory.lock.is_in_place:
            self.directory.abandon()
            problems = [f"{self.directory.path} was removed or replaced"]
        elif self.is_crashing:
            self.directory.abandon()
            problems = ["the broker was made to crash"]
        else:
            problems = self.directory.close()
        for problem in problems:
            log.error("stop_not_clean", problem=problem)
        return problems

    def write_decided(self, *, at_once: bool) -> None:
        """Write what coordinators decided, as ``StateTopic.write_wanted`` says."""
        self.groups.write_decided(at_once=at_once)
        self.transactions.write_decided(at_once=at_once)
        self.share.write_decided(at_once=at_once)

    def _note_topic(self, topic: str, is_deleted: bool) -> None:
        self.groups.note_topic(topic, is_deleted)
        self.share.note_topic(topic, is_deleted)

    def reconfigure(self, static: BrokerConfig, dynamic: DynamicConfig | None = None) -> None:
        """Put another configuration in force, with other settings made at run time or, by default, the same ones.

        Keys that need a restart must not differ. Raises InvalidConfigError for values that contradict each other.
        """
        finished(self.reconfigured(static, dynamic))

    def reconfigured(self, static: BrokerConfig, dynamic: DynamicConfig | None) -> Steps[None]:
        """As ``reconfigure``, in steps: all but the logs of the partitions have the configuration after the first."""
        self.live_config.replace(static, dynamic)
        config = self.live_config.current
        self.authority.reconfigure(config)
        self.retention_schedule.reconfigure(config.log_retention_check_interval_ms)
        logs.reconfigure(config.seglog_log_format, config.seglog_log_level)
        yield from self.directory.reconfigure(config)

    async def find_problems(self) -> list[Problem]:
        """The problems for ``hello``, found in turns: it looks at every partition, and many may ask at once."""
        await self.turn()
        turns = budget.Turns(self.turn)
        found = []
        for problem in self.problems.found():
            if problem is None:
                await turns.spend(PART_COST)
            else:
                found.append(problem)
        return found

    def hello(self, problems: Sequence[Problem] | None = None) -> messages.HelloReply:
        """The broker's identity, its api versions, and its ``problems``; None: they are looked up here."""
        offline = self.directory.report.offline
        found = list(self.problems) if problems is None else problems
        return messages.HelloReply(
            protocol=messages.PROTOCOL_NAME,
            broker=f"seglogd/{VERSION}",
            apis=messages.API_VERSIONS,
            limits={
                "frame_bytes_max": self.request_memory.request_bytes_max,
                "header_bytes_max": HEADER_BYTES_MAX,
                "fetch_bytes_max": self.config.fetch_max_bytes,
                "fetch_wait_ms_max": self.config.seglog_fetch_max_wait_ms_max,
            },
            cluster_id=self.directory.cluster_id,
            uptime_ms=max(0, self.clock.now_ms() - self._started_ms),
            partitions=len(self.partitions) + len(offline) + len(self.recoveries),
            auto_create_topics=self.config.auto_create_topics_enable,
            problems=_limited([problem.sentence for problem in found]),
            problem_kinds=[problem.kind for problem in found[:PROBLEMS_MAX]] or None,
            recovery=self.recoveries.progress(self.views),
            log_dir=str(Path(self.directory.path).absolute()),
            offline=len(offline),
            read_only_until_room=len(self.views) or None,
            backup=None if self.backup is None else self.backup.status(),
            awaited=self.partitions.awaited.progress(),
        )

    def answer_now(self, request: messages.Request) -> messages.Message | None:
        """The reply to a request for offsets, if it waits for nothing and takes no longer than one turn; else None."""
        if not isinstance(request, messages.OffsetsRequest):
            return None
        self.partitions.suggestions.renew()
        return self._offsets_now(request)

    async def answer(
        self, request: messages.Request, host: str = "", principal: str = ANONYMOUS
    ) -> tuple[messages.Message, bytes]:
        """The reply and its payload, for any request except hello, append, fetch and samples.

        It is from a client at ``host``, which is ``principal``.
        """
        self.partitions.suggestions.renew()
        match request:
            case messages.OffsetsRequest():
                return await self.offsets(request), b""
            case messages.TopicsRequest():
                return await self.topics(request)
            case messages.CreateTopicRequest():
                return await self.create_topic(request), b""
            case messages.AlterTopicRequest():
                return await self.alter_topic(request), b""
            case messages.DeleteTopicRequest():
                return await self.delete_topic(request), b""
            case messages.TruncateRequest():
                return await self.truncate(request), b""
            case messages.ExplainRequest():
                return await self.scheduler.retry_after_cold_read(lambda: self.explain(request)), b""
            case messages.ExplainSegmentsRequest():
                return await self.explain_segments(request)
            case messages.LagRequest():
                return await measure_lag(self._explain, request), b""
            case messages.MetricsRequest():
                return self.read_metrics(), b""
            case messages.DescribeBrokerRequest():
                return await self.describer.describe(principal), b""
            case messages.InitProducerRequest() if request.transactional_id is None:
                return await self.init_producer(), b""
            case messages.FlushRequest():
                return await self.flush(request), b""
        reply = await self._native_transactions.answer(request)
        if reply is None:
            reply = await self._native_groups.answer(request, host)
        if reply is None:
            raise NotImplementedError(request.api)
        return reply, b""

    def explain(self, request: messages.ExplainRequest) -> messages.ExplainReply:
        """Seek as a fetch does, and tell every step; or tell what a share group has."""
        partition = self.partitions.readable(request.topic, request.partition)
        if request.group is not None:
            topic_id = self.directory.registry.topics[request.topic].id
            explained = DeliveryExplanation(self.share, partition, topic_id, request.group)
            return explained.reply(request.offset, self.groups.facts(request.group).members)
        return explain_seek(partition, request, self.directory.path)

    async def explain_segments(
        self, request: messages.ExplainSegmentsRequest
    ) -> tuple[messages.ExplainSegmentsReply, bytes]:
        """A page of segments (the payload, a msgpack list): why each is kept, and when it is deleted."""
        return await explain_segments(
            self._explain, self.partitions.readable(request.topic, request.partition), request
        )

    def read_metrics(self) -> messages.MetricsReply:
        """The numbers of ``client.metrics()``, which is deprecated."""
        with suppress(OSError):
            self.directory.space.refresh()
        return messages.MetricsReply(
            plain_numbers(
                self.monitoring,
                self.metrics,
                partitions=len(self.partitions),
                partitions_recovering=len(self.recoveries),
                partitions_read_only_until_room=len(self.views),
            )
        )


def _say_what_changes(other: OtherVersion) -> None:
    """Before it is changed: log which version wrote the directory, and what this one changes in it."""
    if other.is_newer:
        log.warning(
            "directory_of_newer_version",
            written_by=other.written_by,
            version=VERSION,
            changes=other.changes,
            advice="this version serves it, as the format is the same; run the newer one again if you did not mean "
            "to go back",
        )
    else:
        log.info("directory_of_older_version", written_by=other.written_by, version=VERSION, changes=other.changes)


def _limited(problems: Sequence[str]) -> list[str]:
    """The problems, limited in number and length to fit the reply to hello."""
    limited = [problem[:PROBLEM_CHARACTERS_MAX] for problem in problems[:PROBLEMS_MAX]]
    if len(problems) > PROBLEMS_MAX:
        limited.append(f"and {len(problems) - PROBLEMS_MAX:,} more problems, which the broker's log names")
    return limited
