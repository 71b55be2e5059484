"""A worker process: ``python -m seglog_broker.workers KIND`` does one job after the other for a broker.

It is a process, because a busy Python thread would slow the broker's loop down. Jobs are read from stdin and answers
written to stdout, see ``messages``. When stdin ends, the broker has ended, and the worker ends at once, also during a
job: every job can be interrupted anywhere and done again.
"""

import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Final, NoReturn

from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import Buffer, PosixFileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.workers import messages
from seglog_broker.workers.jobs import WORKERS
from seglog_broker.workers.messages import Tools, WorkerKind

_STDIN: Final = 0
_STDOUT: Final = 1
_ABANDONED_STATUS: Final = 3

Requests = SimpleQueue[tuple[messages.Request, bytes] | ValueError]


def main() -> NoReturn:
    """Do jobs until stdin ends.

    Signals that a terminal or a service manager sends to all processes of the broker at once are ignored: the broker
    gets them too, and may still need its workers for a clean stop.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    requests: Requests = SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    worker = WORKERS[sys.argv[1]]
    os.nice(worker.niceness)
    tools = Tools(PosixFileSystem(), SystemClock())
    while True:
        request = requests.get()
        for part in (_malformed(request),) if isinstance(request, ValueError) else _reply(worker, tools, *request):
            _write(part)


def _read_requests(requests: Requests) -> None:
    """Put requests into the queue; end the process when stdin ends."""
    with os.fdopen(_STDIN, "rb", closefd=False) as stdin:
        while line := stdin.readline():
            try:
                request = messages.parse_request(line)
            except ValueError as error:
                requests.put(error)
            else:
                requests.put((request, stdin.read(request.payload_size)))
    os._exit(_ABANDONED_STATUS)


def _reply(worker: WorkerKind, tools: Tools, request: messages.Request, payload: bytes) -> tuple[Buffer, ...]:
    """Do a job; returns the line with its answer, and the payload behind it, or the line with its failure."""
    try:
        kind = next((each for each in worker.jobs if each.name == request.kind), None)
        if kind is None:
            raise ValueError(f"the {worker.name} knows no job {request.kind!r}")  # noqa: TRY301
        job = messages.decoded(kind.job, request.job)
    except ValueError as error:
        return (_malformed(error),)
    try:
        answer = kind.run(tools, job, payload, lambda count: _write(messages.progress_line(count)))
        return messages.answer_line(answer), messages.payload_of(answer)
    except Exception as error:  # noqa: BLE001 - every failure is reported to the loop
        failure = messages.WorkerError.of(error)
        if failure.kind == messages.BUG:
            traceback.print_exc()
        return (messages.failure_line(failure),)


def _malformed(error: ValueError) -> bytes:
    return messages.failure_line(messages.WorkerError(messages.MALFORMED_JOB, why(error)))


def _write(data: Buffer) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(_STDOUT, rest) :]


if __name__ == "__main__":
    main()
