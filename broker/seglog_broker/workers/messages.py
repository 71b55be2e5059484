"""Jobs between the loop and its workers: their kinds, and the lines of JSON that both exchange.

To a worker: ``{"kind", "payload", "job"}``, followed by ``payload`` bytes. From a worker: any number of
``{"progress"}``, then ``{"answer"}`` or ``{"error", "message", "refusal"}``. ``refusal`` is a RequestError in its wire
form, or null. An answer whose dataclass has a field ``payload`` is ``{"answer", "payload"}`` without that field,
followed by ``payload`` bytes. Every field of a dataclass is checked when it is read back.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from seglog_broker.storage.io.clock import Clock, Throttle
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_protocol.errors import RequestError, SeglogError, error_from_wire, error_to_wire

NICENESS: Final = 5
"""The niceness of workers, so that the loop gets processor time first."""

Progress = Callable[[int], None]
"""Called now and then with the progress of a job since the last call, in the job's unit."""


class Tools:
    """What jobs use: files, a clock, and a throttle that the jobs of one process share."""

    def __init__(self, fs: FileSystem, clock: Clock, *, is_throttled: bool = True) -> None:
        self.fs = fs
        self.clock = clock
        self._is_throttled = is_throttled
        self._throttle = Throttle(None, time.monotonic, time.sleep)
        self._rate: float | None = None

    def throttle(self, bytes_per_second: float | None) -> Throttle:
        """The throttle of the previous job if it has the same rate, else a new one; None is no limit."""
        rate = bytes_per_second if self._is_throttled else None
        if rate != self._rate:
            self._rate, self._throttle = rate, Throttle(rate, time.monotonic, time.sleep)
        return self._throttle


JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class JobKind(Generic[JobT, AnswerT]):
    """A kind of job. ``job`` and ``answer`` are the dataclasses of both, as ``messages.decoded`` can read them.

    An answer that is many bytes has them in a field ``payload``, a bytearray, which does not go through JSON.
    ``run`` does a job with its payload, and returns the answer. Modules that only the process needs are imported in it.
    It raises OSError or SeglogError if the job fails; any other exception is a bug.
    """

    name: str
    job: type[JobT]
    answer: type[AnswerT]
    run: Callable[[Tools, JobT, Buffer, Progress], AnswerT]


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """A kind of process; ``name`` is its argument."""

    name: str
    jobs: tuple[JobKind[Any, Any], ...]
    niceness: int = NICENESS


ValueT = TypeVar("ValueT")

MALFORMED_JOB: Final = "malformed job"
STORAGE: Final = "storage"
NO_ROOM: Final = "no room"
BUG: Final = "bug"
DIED: Final = "died"


class WorkerError(Exception):
    """A job that failed. ``kind`` is one of the constants above; DIED: the process ended without an answer.

    ``refusal`` is the RequestError that the job raised, if any; it is meant for the client that sent the bytes.
    """

    def __init__(self, kind: str, message: str, refusal: SeglogError | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.refusal = refusal

    @classmethod
    def of(cls, error: Exception) -> "WorkerError":
        """The WorkerError for a job that raised ``error``."""
        if not isinstance(error, OSError | SeglogError):
            return cls(BUG, why(error))
        kind = NO_ROOM if is_no_room(error) else STORAGE
        return cls(kind, why(error), error if isinstance(error, RequestError) else None)


class Request(NamedTuple):
    """A received job; ``job`` is parsed JSON, not checked yet."""

    kind: str
    payload_size: int
    job: Any


class Progressed(NamedTuple):
    """Progress of a job by ``amount``, in the job's unit, since the last report."""

    amount: int


@dataclass(frozen=True, slots=True)
class Announced(Generic[AnswerT]):
    """An answer whose payload of ``size`` bytes follows its line."""

    kind: JobKind[Any, AnswerT]
    fields: Any
    size: int

    def with_payload(self, payload: bytearray) -> AnswerT:
        """The answer. Raises ValueError naming a field that does not fit."""
        return decoded(self.kind.answer, self.fields | {"payload": payload})


def request_line(kind: JobKind[JobT, Any], job: JobT, payload_size: int = 0) -> bytes:
    """The line that requests a job. The caller sends the payload after it."""
    return _line({"kind": kind.name, "payload": payload_size, "job": asdict(job)})  # type: ignore[call-overload]


def parse_request(line: bytes) -> Request:
    """Parse a line of ``request_line``. Raises ValueError saying what is wrong."""
    match json.loads(line):
        case {"kind": str(kind), "payload": int(size), "job": job} if size >= 0:
            return Request(kind, size, job)
        case other:
            raise ValueError(f"{other!r} is not a request")


def progress_line(count: int) -> bytes:
    """The line that reports progress by ``count``."""
    return _line({"progress": count})


def answer_line(answer: Any) -> bytes:
    """The line with the answer of a job. The caller sends ``payload_of(answer)`` after it."""
    fields = asdict(answer)
    payload = fields.pop("payload", None)
    return _line({"answer": fields} if payload is None else {"answer": fields, "payload": len(payload)})


def payload_of(answer: Any) -> bytes | bytearray:
    """The bytes that follow the line of an answer, none for most kinds of job."""
    payload: bytearray | bytes = getattr(answer, "payload", b"")
    return payload


def failure_line(error: WorkerError) -> bytes:
    """The line that reports the failure of a job."""
    refusal = None if error.refusal is None else error_to_wire(error.refusal)
    return _line({"error": error.kind, "message": error.message, "refusal": refusal})


def parse_reply(kind: JobKind[Any, AnswerT], line: bytes) -> AnswerT | Progressed | Announced[AnswerT]:
    """Parse a line from a worker: progress, or the answer of a job of this kind. Raises WorkerError if it failed."""
    reply = json.loads(line)
    if "progress" in reply:
        return Progressed(reply["progress"])
    if "error" in reply:
        refusal = reply["refusal"]
        raise WorkerError(reply["error"], reply["message"], None if refusal is None else error_from_wire(refusal))
    if "payload" in reply:
        return Announced(kind, reply["answer"], reply["payload"])
    return decoded(kind.answer, reply["answer"])


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decoded(kind: type[ValueT], item: Any) -> ValueT:
    """The dataclass of type ``kind`` that ``dataclasses.asdict`` and JSON turned into ``item``.

    Raises ValueError naming a field that does not fit.
    """
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # it is a dataclass
    if not isinstance(item, dict) or item.keys() != known:
        raise ValueError(f"{kind.__name__}: {item!r} has other fields than {', '.join(sorted(known))}")
    try:
        return msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error
