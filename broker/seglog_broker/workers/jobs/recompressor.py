"""The recompressor: gives batches that are too large for the loop another codec. The payload of a job is a batch.

It is a kind of worker of its own, because high levels take seconds, for which no look-up should wait.
"""

from dataclasses import dataclass
from typing import Final

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.log.batch_checks import check_records
from seglog_broker.storage.log.recompression import Recompression, recompress
from seglog_broker.workers.jobs.record_checker import CheckJob
from seglog_broker.workers.kinds import JobKind, Progress, Tools, WorkerKind
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import parse_header


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
WORKER: Final = WorkerKind("recompressor", (RECOMPRESSION,))
