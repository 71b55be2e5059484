"""A reader that waits says what for, on both faces and on the command line."""

from collections.abc import Callable

import pytest
import trio

import seglog
import seglog.trio
from seglog.cli import main
from seglog.core import retries
from seglog.core.retries import Waiting
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import ConnectionLostError, NotReachableError, OutOfResourcesError, PartitionRecoveringError
from seglog_protocol.messages import FetchReply, FetchRequest, FetchResult, OffsetsRequest, Request
from tests.unit.clients.fake_broker import Answer, FakeBroker, fake_broker

RECOVERING = PartitionRecoveringError("partition 0 of topic t is being recovered, 3 of 8 bytes are read: try again")
TOLD = "partition 0 of topic t is being recovered, 3 of 8 bytes are read"


def test_a_wait_is_told_after_some_seconds_then_from_time_to_time_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Waiting()
    for now in range(100, 126):
        told.failed(OutOfResourcesError("no memory: try again"), 100.0, now)
    told.ended(126.0)
    told.ended(127.0)
    assert caplog.messages == [
        "waiting for 3 s: no memory",
        "waiting for 13 s: no memory",
        "waiting for 23 s: no memory",
        "the wait is over after 26 s",
    ]


def test_short_waits_and_lost_connections_are_not_told_here(caplog: pytest.LogCaptureFixture) -> None:
    told = Waiting()
    told.failed(RECOVERING, 0.0, 2.9)
    told.failed(ConnectionLostError("gone"), 0.0, 60.0)
    told.failed(NotReachableError("away"), 0.0, 60.0)
    told.ended(61.0)
    assert not caplog.messages


def recovering(broker: FakeBroker, kind: type[Request]) -> None:
    """Two requests of this kind are answered with "recovering"."""
    left = [RECOVERING] * 2

    def answer(request: Request, _payload: memoryview) -> Answer | None:
        if not isinstance(request, kind) or not left:
            return None
        error = left.pop()
        return FetchReply([FetchResult("t", 0, 0, error=error)]) if isinstance(request, FetchRequest) else error

    broker.script = answer


def read_blocking(address: str) -> list[bytes | None]:
    with seglog.connect(address) as client, client.consumer("t") as consumer:
        return [record.value for record in consumer]


def read_on_trio(address: str) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        async with seglog.trio.connect(address) as client, client.consumer("t") as consumer:
            return [record.value async for record in consumer]

    return trio.run(read)


@pytest.mark.parametrize("kind", [OffsetsRequest, FetchRequest])
@pytest.mark.parametrize("read", [read_blocking, read_on_trio])
def test_both_faces_tell_the_log_of_a_recovery_while_they_begin_and_while_they_read(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    read: Callable[[str], list[bytes | None]],
    kind: type[Request],
) -> None:
    monkeypatch.setattr(retries, "WAIT_LOGGED_SECONDS", 0.0)
    with fake_broker() as broker:
        broker.logs["t"][0].append(encode_batch([(1, None, b"v", ())]))
        recovering(broker, kind)
        assert read(broker.address) == [b"v"]
    assert caplog.messages[0].endswith(f" s: {TOLD}")
    assert caplog.messages[1].startswith("the wait is over after ")


@pytest.mark.parametrize("kind", [OffsetsRequest, FetchRequest])
def test_consume_says_on_standard_error_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: type[Request]
) -> None:
    monkeypatch.setattr(retries, "WAIT_LOGGED_SECONDS", 0.0)
    with fake_broker() as broker:
        broker.logs["t"][0].append(encode_batch([(1, None, b"v", ())]))
        recovering(broker, kind)
        assert main(["--server", broker.address, "consume", "t"]) == 0
    printed = capfd.readouterr()
    assert printed.out == "v\n"
    assert printed.err.splitlines()[0] == f"seglog: waiting for 0 s: {TOLD}"
