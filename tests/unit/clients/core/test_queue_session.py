"""The core of a queue against a model of the broker, in virtual time: jobs, acknowledgements, locks, sessions."""

import logging
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.queue_jobs import ACCEPT, GAP, REJECT, RELEASE, Job
from seglog.core.queue_session import LINGER_SECONDS
from seglog_protocol.batch_builder import compacted_batch
from seglog_protocol.errors import (
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    GroupAuthorizationError,
    JobLost,
    SeglogError,
    UnknownGroupError,
    UnsupportedApiError,
)
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import decode_records
from tests.support import each_case, examples
from tests.unit.clients.share_broker import (
    LOCK_SECONDS,
    TOPIC,
    Acknowledge,
    Fetch,
    Heartbeat,
    Member,
    ShareBroker,
    accepted,
    encoded,
)

LOST = ConnectionLostError("the connection broke")


@pytest.fixture
def broker() -> ShareBroker:
    return ShareBroker()


@pytest.fixture
def member(broker: ShareBroker) -> Member:
    return Member(broker)


def test_a_job_is_a_record_and_is_accepted_by_its_block(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one", b"two")
    job = member.one()
    assert (job.topic, job.partition, job.offset, job.value, job.attempt) == (TOPIC, 0, 0, b"one", 1)
    with job:
        assert not broker.done
    member.run(1)
    assert broker.done == {(0, 0): ACCEPT}
    assert broker.sessions.keys() == broker.members.keys()


def test_an_error_releases_the_job_and_goes_no_further(
    broker: ShareBroker, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    broker.append(b"one")
    for attempt in (1, 2):
        job = member.one()
        assert job.attempt == attempt
        with job:
            raise ValueError("cannot")
    assert [record.getMessage() for record in caplog.records] == [
        "job jobs-0 at offset 0 failed, attempt 1",
        "job jobs-0 at offset 0 failed, attempt 2",
    ]
    job = member.one()
    with pytest.raises(KeyboardInterrupt), job:
        raise KeyboardInterrupt
    assert member.take() is not None, "it was released"


def test_what_is_said_is_said_once(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one")
    job = member.one()
    with job:
        job.reject()
        job.reject()
        with pytest.raises(ClientError, match="once"):
            job.accept()
    with pytest.raises(ClientError, match="get"), job:
        pass
    member.run(1)
    assert broker.done == {(0, 0): REJECT}


def test_acknowledgements_go_with_the_next_fetch(broker: ShareBroker, member: Member) -> None:
    broker.append(*[b"%d" % number for number in range(9)])
    for job in [member.one() for _ in range(9)]:
        job.release() if job.offset == 4 else job.accept()
    member.take()
    last = [each for each in broker.asked if isinstance(each, Fetch) and each.share_session_epoch and each.topics][-1]
    [acknowledged] = last.topics[0].partitions[0].acknowledgement_batches
    assert (acknowledged.first_offset, acknowledged.last_offset) == (0, 8)
    assert acknowledged.acknowledge_types == [1, 1, 1, 1, 2, 1, 1, 1, 1]
    assert not any(isinstance(request, Acknowledge) for request in broker.asked)


def test_acknowledgements_do_not_wait_for_a_fetch_that_waits(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one")
    job = member.one()
    member.session.wait(1)
    member.run()  # a fetch waits
    job.accept()
    member.run(LINGER_SECONDS / 2)
    assert not broker.done
    member.run(LINGER_SECONDS)
    assert broker.done
    assert [request.share_session_epoch for request in broker.asked if not isinstance(request, Heartbeat)] == [0, 1, 2]


def test_flush_waits_for_what_was_said(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one")
    job = member.one()
    job.accept()
    assert member.session.hurry() == [job]
    assert not job.is_told
    member.run()
    assert job.is_told
    member.session.raise_lost()


# --- Offsets without jobs ---------------------------------------------------------------------------------------------


def test_offsets_without_a_record_are_gaps(broker: ShareBroker, member: Member) -> None:
    whole = encoded(*[b"job"] * 6, base=0)
    kept = [record for record in decode_records(parse_header(whole), whole) if record.offset in (1, 3)]
    broker.append(data=compacted_batch(parse_header(whole), kept), count=6)
    broker.append(data=encoded(b"mark", base=6, control=True), count=1)
    broker.append(b"seven")
    jobs = member.take_all()
    assert [job.offset for job in jobs] == [1, 3, 7]
    member.run(1)
    assert broker.done == dict.fromkeys([(0, 0), (0, 2), (0, 4), (0, 5), (0, 6)], GAP)


@each_case("cut", [False, True])
def test_jobs_that_cannot_be_read_are_released(cut: bool, caplog: pytest.LogCaptureFixture) -> None:
    broker = ShareBroker()
    member = Member(broker)
    broker.append(b"one")
    damaged = bytearray(encoded(b"two", b"three", base=1))
    damaged[-1] ^= 1
    broker.append(data=bytes(damaged[:40] if cut else damaged), count=2)
    if not cut:
        broker.append(b"four")
    jobs = [member.take() for _ in range(2 - cut)]
    assert [job and job.offset for job in jobs] == ([0] if cut else [0, 3])
    member.run(1)
    assert set(broker.done.values()) <= {RELEASE}, "the model's limit of attempts"
    assert broker.attempts[0, 1] == broker.attempts[0, 2]
    assert cut or "from offset 1 on cannot be read and are released" in caplog.text


# --- Fetching ahead ---------------------------------------------------------------------------------------------------


def work(broker: ShareBroker, member: Member, count: int, seconds: float) -> None:
    for _ in range(count):
        job = member.one()
        member.run(seconds)
        job.accept()


def test_quick_jobs_are_fetched_ahead_and_slow_ones_are_not(broker: ShareBroker) -> None:
    for seconds, prefetch, most in ((0.0, 500, 500), (0.0, 20, 20), (0.0, 0, 0), (0.1, 500, 10), (2.0, 500, 0)):
        broker = ShareBroker()
        broker.append(*[b"job"] * 2000)
        member = Member(broker, prefetch=prefetch)
        ahead = []
        for _ in range(30):
            work(broker, member, 1, seconds)
            ahead.append(len(broker.acquired))
        assert ahead[0] <= 1, "nothing is known yet"
        assert most - 1 <= max(ahead) <= most + 1, (seconds, prefetch)


def test_jobs_that_wait_too_long_are_for_others(broker: ShareBroker, member: Member) -> None:
    broker.append(*[b"job"] * 100)
    work(broker, member, 10, 0.0)
    job = member.one()
    assert len(broker.acquired) > 2
    member.run(LOCK_SECONDS)
    assert [offset for _, offset in broker.acquired] == [job.offset]


def test_what_a_loop_leaves_is_put_back(broker: ShareBroker, member: Member) -> None:
    broker.append(*[b"job"] * 50)
    work(broker, member, 50, 0.0)
    assert member.take() is None
    member.session.wait(1)
    member.run()
    member.session.wait(-1)
    member.session.put_back()  # while a fetch waits
    broker.append(*[b"job"] * 50)
    member.run(0.5)
    assert not broker.acquired
    work(broker, member, 1, 0.0)
    member.session.put_back()
    member.run(1.5)
    assert not broker.acquired


def test_a_job_that_a_loop_passes_over_is_released(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one", b"two")
    first, second = member.one(), member.one()
    with second:
        member.session.pass_over(second)  # elsewhere its block goes on
        member.session.pass_over(first)
    member.run(1)
    assert broker.done == {(0, 1): ACCEPT}
    assert broker.available == {(0, 0)}


# --- Locks ------------------------------------------------------------------------------------------------------------


def test_a_lock_is_renewed_for_as_long_as_the_program_has_the_job(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one")
    job = member.one()
    other = Member(broker)
    for _ in range(5):
        member.run(LOCK_SECONDS / 2)
        assert other.take(1.0) is None
    job.accept()
    member.run(1)
    assert broker.done == {(0, 0): ACCEPT}


def test_locks_that_the_group_does_not_renew_run_out(
    broker: ShareBroker, member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """A job whose lock is not renewed is still the member's until it runs out."""
    broker.renews = False
    broker.append(b"one", b"two")
    first, second = member.one(), member.one()
    member.run(LOCK_SECONDS * 0.9)
    [message] = caplog.messages
    assert "a lock is not renewed, so its job runs again if it takes longer than 30 s" in message
    first.accept()
    member.run(LOCK_SECONDS)
    assert broker.done == {(0, 0): ACCEPT}
    assert Member(broker).take() is not None
    second.accept()
    member.session.hurry()
    member.run()
    with pytest.raises(JobLost, match="may run again") as raised:
        member.session.raise_lost()
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == (TOPIC, 0, 1)


def test_a_lock_that_is_lost_keeps_no_other_from_being_renewed(broker: ShareBroker, member: Member) -> None:
    broker.append(b"one", b"two")
    _, second = member.one(), member.one()
    del broker.acquired[0, 0]  # as when records are deleted
    member.run(LOCK_SECONDS * 2)
    second.accept()
    member.run(1)
    assert broker.done == {(0, 1): ACCEPT}


def test_a_job_that_is_lost_does_not_take_others_with_it(broker: ShareBroker, member: Member) -> None:
    broker.append(*[b"job"] * 20)
    jobs = [member.one() for _ in range(20)]
    del broker.acquired[0, 7]
    for job in jobs:
        job.accept()
    member.run(1)
    assert [job.offset for job in jobs if job.lost is not None] == [7]
    assert len(accepted(broker)) == 19
    assert all(job.is_told for job in jobs)
    with pytest.raises(JobLost, match="offset 7"):
        member.session.raise_lost()


# --- Sessions and membership ------------------------------------------------------------------------------------------


@each_case("how", ["the connection breaks", "the broker forgets", "the member is fenced"])
def test_a_lost_session_loses_its_jobs_and_another_begins(how: str, caplog: pytest.LogCaptureFixture) -> None:
    broker = ShareBroker()
    member = Member(broker)
    caplog.clear()
    broker.append(*[b"job"] * 20)
    work(broker, member, 8, 0.0)
    member.run(1)
    job, said = member.one(), member.one()
    member.session.wait(1)
    said.accept()
    broker.lose_sessions()
    if how == "the connection breaks":
        member.lose_connection(LOST)
    elif how == "the member is fenced":
        broker.members.clear()
    member.run(6)
    member.session.wait(-1)
    assert job.lost is not None
    assert said.lost is not None
    job.accept()
    with pytest.raises(JobLost):
        member.session.raise_lost()
    member.session.raise_lost()
    assert len(caplog.messages) == 2
    again = member.take_all()
    assert len(accepted(broker)) == 8
    assert sorted(job.offset for job in again) == list(range(8, 20))
    for job in again:
        job.accept()
    member.run(1)
    assert len(accepted(broker)) == 20
    assert max(broker.attempts.values()) == 2


def test_partitions_come_and_go(member: Member) -> None:
    broker = ShareBroker(2)
    broker.assigned = [0]
    member = Member(broker)
    broker.append(b"a", partition=0)
    broker.append(b"b", partition=1)
    assert [job.partition for job in member.take_all()] == [0]
    broker.assigned = [0, 1]
    member.run(6)
    assert [job.partition for job in member.take_all()] == [1]
    broker.assigned = [1]
    member.run(6)
    broker.append(b"c", partition=0)
    assert member.take() is None
    assert next(iter(broker.sessions.values()))[1] == {1}


@each_case(
    ("response", "kind"),
    [
        (
            messages.ShareGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED),
            GroupAuthorizationError,
        ),
        (messages.ShareGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND), UnknownGroupError),
        (UnsupportedApiError("no api 'kafka'", api="kafka"), UnsupportedApiError),
    ],
)
def test_what_is_final_ends_the_queue(response: object, kind: type[SeglogError]) -> None:
    broker = ShareBroker()
    broker.scripts[Heartbeat] = [response]
    member = Member(broker)
    with pytest.raises(kind) as raised:
        member.take()
    assert raised.value.message
    assert all(lane.is_over for lane in member.lanes)


@each_case(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_what_passes_is_tried_again(code: ErrorCode) -> None:
    broker = ShareBroker()
    broker.append(b"one")
    broker.scripts[Heartbeat] = [messages.ShareGroupHeartbeatResponse(error_code=code), LOST] * 2
    cls = messages.ShareFetchResponse
    topic = cls.ShareFetchableTopicResponse(
        topic_id=bytes(range(16)), partitions=[cls.PartitionData(error_code=code, records=b"")]
    )
    broker.scripts[Fetch] = [cls(error_code=code), LOST, cls(acquisition_lock_timeout_ms=1000, responses=[topic])]
    assert Member(broker).take(20) is not None


def test_closing_releases_what_is_held_and_leaves(broker: ShareBroker, member: Member) -> None:
    broker.append(*[b"job"] * 9)
    work(broker, member, 3, 0.0)
    job = member.one()
    member.close()
    assert accepted(broker) == [(0, 0), (0, 1), (0, 2)]
    assert len(broker.available) == 6
    assert not broker.sessions
    assert not broker.members
    assert job.word == RELEASE
    member.session.fail(ClientClosedError("closed"))
    with pytest.raises(ClientClosedError):
        member.take()


def test_a_stopped_queue_hands_out_nothing_and_says_what_becomes_of_the_rest(
    broker: ShareBroker, member: Member
) -> None:
    broker.append(*[b"job"] * 9)
    work(broker, member, 3, 0.0)
    job = member.one()
    member.session.stop()
    assert member.take() is None
    job.accept()
    member.run(1)
    assert len(accepted(broker)) == 4
    assert len(broker.available) == 5


def test_logs_are_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    broker = ShareBroker()
    member = Member(broker)
    member.run()
    broker.scripts[Heartbeat] = [messages.ShareGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)]
    member.close()
    assert [record.name for record in caplog.records] == ["seglog.core.queue_session"]


# --- Whatever happens -------------------------------------------------------------------------------------------------


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_what_is_told_counts_whatever_happens(chance: Random) -> None:
    """A job that was accepted without a word of loss is done, and in the end no member holds any."""
    broker = ShareBroker(2)
    members = [Member(broker) for _ in range(3)]
    held: list[tuple[Member, Job]] = []
    accepted_jobs: list[Job] = []
    for _ in range(60):
        member = chance.choice(members)
        what = chance.randrange(10)
        if what <= 1:
            broker.append(*[b"job"] * chance.randrange(1, 20), partition=chance.randrange(2))
        elif what <= 4:
            if (job := member.take(chance.choice((0.02, 1.5)))) is not None:
                held.append((member, job))
        elif what <= 6 and held:
            owner, job = held.pop(chance.randrange(len(held)))
            word = chance.choice((ACCEPT, ACCEPT, RELEASE))
            owner.settle(job, word)
            accepted_jobs += [job] if word == ACCEPT else []
        elif what == 7:
            member.run(chance.choice((0.02, 1.0, LOCK_SECONDS)))
        elif what == 8 and chance.random() < 0.3:
            broker.lose_sessions()
            for each in members:
                each.lose_connection(LOST)
        elif what == 9 and chance.random() < 0.3:
            broker.members.clear()
    for owner, job in held:
        owner.settle(job, RELEASE)
    for member in members:
        member.run(2)
        member.close()
    assert all(job.is_told for job in accepted_jobs)
    told = {(job.partition, job.offset) for job in accepted_jobs if job.lost is None}
    assert told <= set(accepted(broker))
    assert not broker.acquired
