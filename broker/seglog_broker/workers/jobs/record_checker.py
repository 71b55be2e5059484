"""The record checker: opens record batches that are too large for the loop. The payload of a job is a whole batch.

Appends and look-ups wait for it, so it runs at normal priority, unlike other workers.
"""

from dataclasses import dataclass
from typing import Final

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.log.batch_checks import RecordRules, check_records
from seglog_broker.storage.segment.segment import first_at
from seglog_broker.workers.kinds import JobKind, Progress, Tools, WorkerKind
from seglog_protocol.record_batch import parse_header


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Check the records of a batch; the fields are those of ``RecordRules``."""

    needs_key: bool
    earliest: int | None
    before_max_ms: int
    latest: int

    @property
    def rules(self) -> RecordRules:
        """As checks take them."""
        return RecordRules(self.needs_key, self.earliest, self.before_max_ms, self.latest)


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
WORKER: Final = WorkerKind("record_checker", (CHECK, SEARCH), niceness=0)
