"""Conversations: the same questions and conclusions, whoever carries them."""

import time
from collections.abc import Callable, Generator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.connection import Reply, Unsent
from seglog.core.conversations import Ask, Conversation, ask, converse, converse_async, when_recovered
from seglog.core.producer_options import new_producer
from seglog.core.retries import Attempts, Retries
from seglog_protocol.errors import (
    ConnectionLostError,
    DiskFullError,
    InvalidTopicError,
    NotReachableError,
    PartitionRecoveringError,
    RemoteProtocolError,
    UnknownTopicError,
)
from seglog_protocol.messages import DeleteTopicReply, DeleteTopicRequest, InitProducerReply, reply_header


def two_questions() -> Generator[Ask, Reply, list[str]]:
    names = []
    for name in ("a", "b"):
        try:
            reply, _ = yield from ask(DeleteTopicRequest(name), DeleteTopicReply)
            names.append(reply.topic)
        except UnknownTopicError as error:
            names.append(error.message)
    return names


def answer(question: Ask) -> Reply:
    assert isinstance(question.request, DeleteTopicRequest)
    if question.request.topic == "a":
        return Reply(1, reply_header(1, UnknownTopicError("no a", topic="a")), memoryview(b""))
    return Reply(2, reply_header(2, DeleteTopicReply("b")), memoryview(b""))


async def answer_later(question: Ask) -> Reply:
    return answer(question)


async def test_both_faces_lead_one_to_the_same_end() -> None:
    assert converse(two_questions(), answer) == ["no a", "b"]
    assert await converse_async(two_questions(), answer_later, trio.sleep) == ["no a", "b"]


def recovering_for(times: int) -> Callable[[float], Conversation[list[float]]]:
    """Asks about ``a``, which is recovering that often, and tells how long it was to wait each time."""
    pauses: list[float] = []

    def asked(pause: float) -> Conversation[list[float]]:
        pauses.append(pause)
        yield from ask(DeleteTopicRequest("b"), DeleteTopicReply, after_seconds=pause)
        if len(pauses) <= times:
            raise PartitionRecoveringError("not yet")
        return pauses

    return asked


async def test_what_is_recovering_is_asked_about_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(time, "sleep", slept.append)
    blocking = converse(when_recovered(recovering_for(8)), answer)
    awaited = await converse_async(when_recovered(recovering_for(8)), answer_later, sleep)
    assert slept == [*blocking[1:], *awaited[1:]]
    for pauses in (blocking, awaited):
        assert (pauses[0], len(pauses)) == (0.0, 9)
        assert pauses[1] < pauses[-1] <= 1


async def test_other_errors_are_not_asked_about_again() -> None:
    def asked(pause: float) -> Conversation[None]:
        yield from ask(DeleteTopicRequest("a"), DeleteTopicReply, after_seconds=pause)

    with pytest.raises(UnknownTopicError):
        converse(when_recovered(asked), answer)


def test_what_keeps_an_answer_from_coming_ends_it() -> None:
    def broken(_question: Ask) -> Reply:
        raise ConnectionLostError("gone")

    conversation = two_questions()
    with pytest.raises(ConnectionLostError):
        converse(conversation, broken)
    with pytest.raises(StopIteration):
        next(conversation)


def test_an_answer_of_another_kind_is_told() -> None:
    with pytest.raises(RemoteProtocolError, match="not understood"):
        converse(two_questions(), lambda _: Reply(1, {"id": 1, "topic": 5}, memoryview(b"")))


def test_retries_grow_apart_and_end_with_the_time_that_there_is() -> None:
    retries = Retries(10.0)
    lost = ConnectionLostError("gone")
    assert retries.failed(lost, 100.0) == (0.0, 10.0)
    pause, seconds = retries.failed(lost, 101.0)
    assert 0.02 < pause < 0.06
    assert pause + seconds == 9.0
    with pytest.raises(ConnectionLostError):
        retries.failed(lost, 110.0)
    retries.worked()
    assert retries.failed(lost, 111.0) == (0.0, 10.0)
    with pytest.raises(InvalidTopicError):
        retries.failed(InvalidTopicError("no", topic="?"), 112.0)


def test_attempts_end_when_the_next_one_would_come_too_late() -> None:
    attempts = Attempts(1.0, 50.0)
    error = NotReachableError("nobody", server="b:1")
    assert attempts.seconds(50.25) == 0.75
    assert attempts.failed(error, 50.25) < 0.06
    with pytest.raises(NotReachableError, match=r"nobody \(tried for 1 s\)") as caught:
        attempts.failed(error, 50.99)
    assert caught.value.server == "b:1"


@given(st.lists(st.binary(max_size=50), max_size=400), st.lists(st.integers(1, 100), min_size=1))
def test_what_is_written_piece_by_piece_is_the_whole(buffers: list[bytes], pieces: list[int]) -> None:
    unsent = Unsent(buffers)
    written = b""
    turn = 0
    while not unsent.is_done:
        data = b"".join(unsent.buffers())[: pieces[turn % len(pieces)]]
        written += data
        unsent.written(len(data))
        turn += 1
        assert unsent.is_started
    assert written == b"".join(buffers)


@pytest.mark.parametrize(("refusals", "patience"), [(0, 1.0), (3, 60.0), (1000, 5.0)])
def test_a_producer_waits_for_room_on_a_full_disk_as_long_as_its_records_would(
    refusals: int, patience: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    asked = 0

    def refuse(_: Ask) -> Reply:
        nonlocal asked
        asked += 1
        full = DiskFullError("no room", free=0, hard=1, soft=2)
        return Reply(1, reply_header(1, full if asked <= refusals else InitProducerReply(7, 0)), memoryview(b""))

    if refusals == 1000:
        with pytest.raises(DiskFullError):
            converse(new_producer(patience), refuse)
        assert patience / 2 < sum(slept) <= patience
    else:
        assert converse(new_producer(patience), refuse).producer_id == 7
        assert len(slept) == refusals
    assert all("no room" in message for message in caplog.messages)
    assert bool(caplog.messages) == (refusals == 1000), "waits of less than three seconds are not logged"
