"""Workers and the signals that a terminal or a service manager sends to all processes of the broker at once."""

import signal

import pytest

from seglog_broker.workers.jobs import CHECK, CheckJob
from seglog_broker.workers.messages import request_line
from tests.processes import answer_to, worker

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_BATCH = request_line(CHECK, CheckJob(needs_key=False, earliest=None, before_max_ms=0, latest=2**63 - 1))


@pytest.mark.parametrize(
    ("kind", "job"),
    [
        ("cleaner", b"nonsense\n"),
        ("recoverer", b"nonsense\n"),
        ("scrubber", b"nonsense\n"),
        ("record_checker", NO_BATCH),
    ],
)
def test_a_worker_ignores_signals_and_ends_with_its_stdin(kind: str, job: bytes) -> None:
    """Under systemd's default a stop signals all processes: the broker then lacked workers for its last acks."""
    with worker(kind) as process:
        for number in (None, *SIGNALS):
            if number is not None:
                process.send_signal(number)
            assert "error" in answer_to(process, job)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) >= 0
