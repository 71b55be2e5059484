"""The jobs of workers: dataclasses of each job and of its answer, the functions that do them, and the kinds of worker.

Every job can be interrupted anywhere and done again. An interrupted cleaner leaves ``.cleaned`` files, which the next
round or the next start removes, an interrupted scrubber ``.tmp`` files, which a start removes. Modules that only a
process needs are imported in the function that does its job.
"""

from dataclasses import dataclass
from typing import Final

from seglog_broker.config.topic_config import DECOMPRESSED_RECORD_BYTES_MAX
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.log.batch_checks import RecordRules, check_records
from seglog_broker.storage.log.recompression import Recompression, recompress
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome, recover_partition
from seglog_broker.storage.segment.segment import first_at
from seglog_broker.workers.fetch_jobs import BeginJob, Begun, FetchJob, FetchResult
from seglog_broker.workers.messages import JobKind, Progress, Tools, WorkerKind
from seglog_broker.workers.scrub_job import ScrubJob, ScrubResult
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import parse_header


def _clean(tools: Tools, job: CleaningJob, _payload: Buffer, _progress: Progress) -> CleaningResult:
    from seglog_broker.storage.compaction.cleaner import clean  # noqa: PLC0415 - numpy is for cleaners only

    return clean(tools.fs, job, tools.throttle(job.bytes_per_second))


CLEANING: Final = JobKind("cleaning", CleaningJob, CleaningResult, _clean)
CLEANER: Final = WorkerKind("cleaner", (CLEANING,))
"""Reads and rewrites the segments of one round of compaction."""


def _recover(tools: Tools, job: RecoveryJob, _payload: Buffer, progress: Progress) -> RecoveryOutcome:
    return recover_partition(tools.fs, tools.clock, job, progress)


RECOVERY: Final = JobKind("recovery", RecoveryJob, RecoveryOutcome, _recover)
RECOVERER: Final = WorkerKind("recoverer", (RECOVERY,))
"""Recovers partitions, one after the other; progress is bytes read."""


def _scrub(tools: Tools, job: ScrubJob, _payload: Buffer, _progress: Progress) -> ScrubResult:
    from seglog_broker.workers.segment_scrub import scrub_segment  # noqa: PLC0415 - for scrubbers only

    return scrub_segment(tools.fs, job, tools.throttle(job.bytes_per_second))


SCRUB: Final = JobKind("scrub", ScrubJob, ScrubResult, _scrub)
SCRUBBER: Final = WorkerKind("scrubber", (SCRUB,))
"""Reads closed segments, one after the other, below the rate given in each job."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Check the records of a batch; the fields are those of ``RecordRules``."""

    needs_key: bool
    earliest: int | None
    before_max_ms: int
    latest: int
    size_max: int = DECOMPRESSED_RECORD_BYTES_MAX

    @property
    def rules(self) -> RecordRules:
        """As checks take them."""
        return RecordRules(self.needs_key, self.earliest, self.before_max_ms, self.latest, self.size_max)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The records comply with the rules. If they do not, the job fails with the error of ``check_records``."""


@dataclass(frozen=True, slots=True)
class SearchJob:
    """Find the first record of a batch with at least this ``timestamp`` (ms) and offset."""

    timestamp: int
    offset_min: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Timestamp, offset and leader epoch of the record; None if there is none."""

    found: tuple[int, int, int] | None


def _check(_tools: Tools, job: CheckJob, batch: Buffer, _progress: Progress) -> Accepted:
    check_records(parse_header(batch), memoryview(batch), job.rules)
    return Accepted()


def _search(_tools: Tools, job: SearchJob, batch: Buffer, _progress: Progress) -> SearchResult:
    found = first_at(parse_header(batch), batch, job.timestamp, job.offset_min)
    return SearchResult(None if found is None else (found.timestamp, found.offset, found.leader_epoch))


CHECK: Final = JobKind("check", CheckJob, Accepted, _check)
SEARCH: Final = JobKind("search", SearchJob, SearchResult, _search)
RECORD_CHECKER: Final = WorkerKind("record_checker", (CHECK, SEARCH), niceness=0)
"""Opens batches that are too large for the loop. Appends and look-ups wait for it, so it has normal priority."""


@dataclass(frozen=True, slots=True)
class RecompressionJob:
    """Check the records by ``rules``, unless those are None, and recompress them: the fields of ``Recompression``."""

    codec: int
    level: int | None
    batch_bytes_max: int
    rules: CheckJob | None


@dataclass(frozen=True, slots=True)
class Recompressed:
    """The new batch. The job fails with the error of ``check_records`` or ``recompress``."""

    payload: bytearray


def _recompress(_tools: Tools, job: RecompressionJob, payload: Buffer, _progress: Progress) -> Recompressed:
    header, batch = parse_header(payload), memoryview(payload)
    if job.rules is not None:
        check_records(header, batch, job.rules.rules)
    wanted = Recompression(Codec(job.codec), job.level, job.batch_bytes_max)
    return Recompressed(recompress(header, batch, wanted))


RECOMPRESSION: Final = JobKind("recompress", RecompressionJob, Recompressed, _recompress)
RECOMPRESSOR: Final = WorkerKind("recompressor", (RECOMPRESSION,))
"""A kind of its own, because high levels of compression take seconds, for which no look-up should wait."""


def _begin(tools: Tools, job: BeginJob, _payload: Buffer, progress: Progress) -> Begun:
    from seglog_broker.backup.fetching import begin_directory  # noqa: PLC0415 - destinations are for fetchers only

    return begin_directory(tools, job, progress)


def _fetch(tools: Tools, job: FetchJob, _payload: Buffer, progress: Progress) -> FetchResult:
    from seglog_broker.backup.fetching import fetch_segment  # noqa: PLC0415 - destinations are for fetchers only

    return fetch_segment(tools, job, progress)


BEGIN: Final = JobKind("begin", BeginJob, Begun, _begin)
FETCH: Final = JobKind("fetch", FetchJob, FetchResult, _fetch)
FETCHER: Final = WorkerKind("fetcher", (BEGIN, FETCH))
"""Begins a log directory from a backup, and fetches segments; progress is bytes written."""


WORKERS: Final = {
    worker.name: worker for worker in (CLEANER, RECOVERER, SCRUBBER, RECORD_CHECKER, RECOMPRESSOR, FETCHER)
}
