"""The record checker process: ``python -m seglog_broker.workers.record_checker`` looks at records beside the broker.

Each job on stdin is a line in JSON, and behind it a whole record batch of ``size`` bytes. For each one line goes out on
stdout. A ``RecordJob`` is answered with ``{}`` for a batch whose records are acceptable, or a refusal as
``errors.error_to_wire`` gives it under ``refused``; a ``SearchJob`` with the first record under ``found``, or null; and
what went wrong with ``{"error": kind, "message": text}``. An append waits for it, so it does not stand back for others
as other workers do. It ends with its stdin.
"""

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from seglog_broker.storage.log.batch_checks import RecordRules, check_records
from seglog_broker.storage.segment.segment import first_at
from seglog_broker.workers.worker import BUG, failure_line, leave_signals_to_broker, say
from seglog_protocol.errors import RequestError, SeglogError, error_from_wire, error_to_wire
from seglog_protocol.record_batch import parse_header


@dataclass(frozen=True, slots=True)
class RecordJob:
    """``size`` bytes of a batch, and what its records must be: see ``RecordRules``."""

    size: int
    needs_key: bool
    earliest: int | None
    before_max_ms: int

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class SearchJob:
    """``size`` bytes of a batch, whose first record is wanted from ``timestamp`` (ms) and ``offset_min`` on."""

    size: int
    timestamp: int
    offset_min: int

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def record_told(line: bytes) -> tuple[int, int, int] | None:
    """What a record checker found: timestamp, offset and leader epoch of a record; None when there is no such one."""
    found = json.loads(line)["found"]
    return None if found is None else (int(found[0]), int(found[1]), int(found[2]))


def verdict_told(line: bytes) -> SeglogError | None:
    """What a record checker said of a batch: None when its records are acceptable."""
    refused = json.loads(line).get("refused")
    return None if refused is None else error_from_wire(refused)


def _verdict(job: RecordJob, batch: memoryview) -> str:
    told: dict[str, Any] = {}
    try:
        check_records(parse_header(batch), batch, RecordRules(job.needs_key, job.earliest, job.before_max_ms))
    except RequestError as error:
        told = {"refused": error_to_wire(error)}
    return json.dumps(told)


def _found(job: SearchJob, batch: bytes) -> str:
    return json.dumps({"found": first_at(parse_header(batch), batch, job.timestamp, job.offset_min)})


def main() -> None:
    """Answer one job after the other, until there are no more."""
    leave_signals_to_broker()
    jobs = sys.stdin.buffer
    while line := jobs.readline():
        asked = json.loads(line)
        job = SearchJob(**asked) if "timestamp" in asked else RecordJob(**asked)
        batch = jobs.read(job.size)
        if len(batch) < job.size:
            return  # the broker is gone
        try:
            say(_found(job, batch) if isinstance(job, SearchJob) else _verdict(job, memoryview(batch)))
        except Exception as error:  # noqa: BLE001 - the caller must get it, whatever it is
            traceback.print_exc()
            say(failure_line(BUG, error))


if __name__ == "__main__":
    main()
