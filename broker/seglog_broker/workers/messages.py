"""The lines of JSON between the loop and its workers.

In: ``{"kind", "payload", "job"}``, followed by as many bytes as ``payload`` says. Out: any number of ``{"progress"}``,
then ``{"answer"}`` or ``{"error", "message", "refusal"}``; ``refusal`` is a RequestError as replies carry it, or null.
"""

import json
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from seglog_broker.storage.io.json_values import decoded
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.workers.kinds import AnswerT, JobKind, JobT
from seglog_protocol.errors import RequestError, SeglogError, error_from_wire, error_to_wire

MALFORMED_JOB: Final = "malformed job"
STORAGE: Final = "storage"
NO_ROOM: Final = "no room"
BUG: Final = "bug"
DIED: Final = "died"


class WorkerError(Exception):
    """A job that was not done. ``kind`` is one of those above: "died" is a process that ended without an answer.

    ``refusal`` is the RequestError that the job raised, if it did: the client whose bytes it was given should see it.
    """

    def __init__(self, kind: str, message: str, refusal: SeglogError | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.refusal = refusal

    @classmethod
    def of(cls, error: Exception) -> "WorkerError":
        """How a job failed that raised ``error``."""
        if not isinstance(error, OSError | SeglogError):
            return cls(BUG, why(error))
        kind = NO_ROOM if is_no_room(error) else STORAGE
        return cls(kind, why(error), error if isinstance(error, RequestError) else None)


class Request(NamedTuple):
    """A job as it came in; ``job`` is what JSON makes of it, not checked yet."""

    kind: str
    payload_size: int
    job: Any


class Progressed(NamedTuple):
    """A job has come on by ``amount``."""

    amount: int


def request_line(kind: JobKind[JobT, Any], job: JobT, payload_size: int = 0) -> bytes:
    """A request for a job, to be followed by its payload."""
    return _line({"kind": kind.name, "payload": payload_size, "job": asdict(job)})  # type: ignore[call-overload]


def parse_request(line: bytes) -> Request:
    """The request that ``request_line`` wrote. ValueError says what is wrong with it."""
    match json.loads(line):
        case {"kind": str(kind), "payload": int(size), "job": job} if size >= 0:
            return Request(kind, size, job)
        case other:
            raise ValueError(f"{other!r} is no request")


def progress_line(count: int) -> bytes:
    """A report that the job has come on by ``count``."""
    return _line({"progress": count})


def answer_line(answer: Any) -> bytes:
    """The answer of a job that was done."""
    return _line({"answer": asdict(answer)})


def failure_line(error: WorkerError) -> bytes:
    """The last line on a job that was not done."""
    refusal = None if error.refusal is None else error_to_wire(error.refusal)
    return _line({"error": error.kind, "message": error.message, "refusal": refusal})


def parse_reply(kind: JobKind[Any, AnswerT], line: bytes) -> AnswerT | Progressed:
    """Progress, or the answer of a job of this kind. Raises the WorkerError of one that was not done."""
    told = json.loads(line)
    if "progress" in told:
        return Progressed(told["progress"])
    if "error" in told:
        refusal = told["refusal"]
        raise WorkerError(told["error"], told["message"], None if refusal is None else error_from_wire(refusal))
    return decoded(kind.answer, told["answer"])


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
