"""Share sessions: epochs, places that come and go, and how many there may be."""

from collections.abc import Callable

import pytest

from seglog_broker.api.share_sessions import Place, SessionRefusedError, ShareSession, ShareSessions
from seglog_broker.runtime.begun import Signal
from seglog_protocol.kafka.error_codes import ErrorCode

A, B, C = [(b"%d" % number * 16, number) for number in range(3)]


def sessions(sessions_max: int = 10) -> ShareSessions:
    return ShareSessions(lambda: sessions_max)


def begun(sessions: ShareSessions, *places: Place, member: str = "m", connection: str = "c") -> ShareSession:
    return sessions.begin("g", member, connection, places)


def test_each_request_has_the_next_epoch_and_epoch_minus_one_is_always_taken() -> None:
    known = sessions()
    session = begun(known, A)
    assert known.go_on("g", "m", 1) is session
    assert known.go_on("g", "m", 2) is session
    for epoch in (2, 4, 0):
        with pytest.raises(SessionRefusedError) as refused:
            known.go_on("g", "m", epoch)
        assert refused.value.code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert known.go_on("g", "m", -1) is session
    assert known.go_on("g", "m", 3) is session
    with pytest.raises(SessionRefusedError) as refused:
        known.go_on("g", "another", 1)
    assert refused.value.code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_epochs_begin_again_at_one_behind_the_largest() -> None:
    known = sessions()
    begun(known).epoch = 2**31 - 1
    assert known.go_on("g", "m", 2**31 - 1).epoch == 1


def test_places_come_and_go_and_each_request_begins_with_another() -> None:
    known = sessions()
    session = begun(known, A, B)
    known.change(session, [B, C], [(b"none" * 4, 1)])
    assert [session.rotated(epoch) for epoch in (0, 1, 3)] == [[A, B, C], [B, C, A], [A, B, C]]
    known.change(session, [], [A, C])
    assert session.rotated(5) == [B]
    assert known.partitions == 1


def test_another_session_of_a_member_takes_the_place_of_the_first_and_ends_its_wait() -> None:
    known, waits = sessions(sessions_max=1), Signal()
    first = begun(known, A, B)
    first.note_wait(waits)
    second = begun(known, C, connection="d")
    assert known.find("g", "m") is second
    assert waits.is_set
    assert (first.fetches, second.fetches) == (1, 0)
    assert (len(known), known.partitions) == (1, 1)
    known.remove(first)
    assert known.find("g", "m") is second, "it had ended"
    assert (known.of_connection("c"), known.of_connection("d")) == ([], [second])
    known.remove(second)
    known.remove(second)
    assert (len(known), known.partitions, known.of_connection("d")) == (0, 0, [])


def test_there_are_only_so_many_sessions_and_partitions_in_them() -> None:
    known = sessions(sessions_max=2)
    known.partitions_max = 2
    begun(known, A)
    session = begun(known, member="n")
    refusals: list[Callable[[], object]] = [
        lambda: begun(known, member="o"),
        lambda: known.change(session, [A, B], []),
    ]
    for refusal in refusals:
        with pytest.raises(SessionRefusedError) as refused:
            refusal()
        assert refused.value.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert known.partitions == 2
