"""The sending core: what is on the way, what follows from silence and loss, and when to look again."""

import pytest

from seglog.core.accumulator import IN_FLIGHT_MAX, ProducerEpoch
from seglog.core.connection import Reply
from seglog.core.producer import LOOK_UP_SECONDS, REQUEST_TIMEOUT_SECONDS, SILENCE_SECONDS, ProducerCore, Sent
from seglog.core.producer_options import ProducerOptions
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    BrokerStoppingError,
    ClientClosedError,
    ConnectionLostError,
    InconsistentTopicIdError,
    InvalidTimestampError,
    NotReachableError,
)
from seglog_protocol.frames import encode_value
from seglog_protocol.messages import AppendReply, AppendResult, TopicDescription, TopicsReply, reply_header
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import decode_records


def make(
    *,
    partitions: int = 1,
    max_message_bytes: int = 1_000_000,
    producer: ProducerEpoch | None = None,
    **options: object,
) -> ProducerCore:
    topic = TopicDescription("t", "i" * 22, partitions, max_message_bytes, 1 << 30)
    return ProducerCore(topic, ProducerOptions(**{"linger_ms": 0, **options}), producer)  # type: ignore[arg-type]


def send(core: ProducerCore, value: bytes, now: float = 0.0, partition: int | None = None) -> None:
    assert core.append((1, None, value, (), partition), lambda: now) is not None


def taken(core: ProducerCore, now: float = 0.0) -> Sent:
    sent = core.take(now)
    assert sent is not None
    core.build(sent)
    assert core.request(sent, now) is not None
    return sent


def acked(sent: Sent, throttle_ms: int | None = None) -> dict[str, object]:
    results = [AppendResult("t", b.partition, 7, -1, "disk", False) for b in sent.batches]
    return reply_header(1, AppendReply(results, throttle_ms=throttle_ms))


def test_no_more_requests_are_on_the_way_than_may_be() -> None:
    core = make()
    for number in range(IN_FLIGHT_MAX):
        send(core, b"%d" % number)
        taken(core)
    send(core, b"one more")
    assert core.take(0.0) is None
    core.answered(core.in_flight[2], acked(core.in_flight[2]), 0.0)
    assert core.unacknowledged == IN_FLIGHT_MAX
    taken(core)


def test_an_unanswered_request_means_a_dead_connection_after_a_while() -> None:
    core = make()
    send(core, b"x")
    sent = taken(core, 1.0)
    assert core.overdue(1.0 + REQUEST_TIMEOUT_SECONDS - 0.1, "b:1") is None
    assert core.tick(2.0, is_connected=True) == 1.0 + SILENCE_SECONDS, "then it is logged"
    assert core.tick(2.0 + SILENCE_SECONDS, is_connected=True) == 1.0 + REQUEST_TIMEOUT_SECONDS
    assert isinstance(core.overdue(1.0 + REQUEST_TIMEOUT_SECONDS, "b:1"), ConnectionLostError)
    core.lost(40.0)
    assert core.in_flight == []
    assert core.connect_at == 40.0
    core.answered(sent, acked(sent), 41.0)
    assert core.unacknowledged == 1, "an answer from the old connection is none"
    assert taken(core, 41.0).batches == sent.batches


def test_a_request_is_unanswered_from_when_a_broker_that_throttles_reads_it() -> None:
    core = make()
    for value in (b"x", b"y"):
        send(core, value)
        taken(core, 1.0)
    core.answered(core.in_flight[0], acked(core.in_flight[0], throttle_ms=11_000), 2.0)
    assert core.tick(12.0, is_connected=True) == 13.0 + SILENCE_SECONDS
    assert core.overdue(12.9 + REQUEST_TIMEOUT_SECONDS, "b:1") is None
    assert core.overdue(13.0 + REQUEST_TIMEOUT_SECONDS, "b:1") is not None
    core.lost(5.0)
    taken(core, 5.0)
    assert core.tick(6.0, is_connected=True) == 5.0 + SILENCE_SECONDS, "another connection is read at once"


def test_without_a_connection_nothing_but_connecting_and_giving_up_has_its_time() -> None:
    core = make(delivery_timeout=10.0)
    assert core.tick(0.0, is_connected=False) is None, "and no connection is made for nothing"
    send(core, b"x", now=1.0)
    assert core.tick(1.0, is_connected=True) == 1.0
    core.not_connected(NotReachableError("nobody", server="b:1"), 1.0)
    assert 1.02 < core.connect_at < 1.06
    assert core.tick(1.0, is_connected=False) == core.connect_at
    for _ in range(20):
        core.not_connected(NotReachableError("nobody", server="b:1"), 5.0)
    assert 5.5 <= core.connect_at <= 6.0
    answers = core.answers
    assert core.tick(11.0, is_connected=False) is None
    assert core.answers > answers, "whoever waits for it is to look again"
    failure = core.failure()
    assert failure is not None
    assert "nobody" in str(failure)


def test_ending_fails_what_is_not_on_the_way_and_what_would_be_sent_again() -> None:
    core = make(partitions=2)
    send(core, b"x", partition=0)
    sent = taken(core)
    send(core, b"y", partition=1)
    gone = ClientClosedError("gone")
    assert core.end(gone) == sent.batches
    assert core.take(0.0) is None
    refusal = AppendReply([AppendResult("t", 0, error=BrokerStoppingError("later"))])
    core.answered(sent, reply_header(1, refusal), 0.0)
    assert core.pending() == []
    assert core.loss() == "seglog: not acknowledged: 2 records to t"
    assert core.loss() is None


def test_what_cannot_fit_is_refused_without_asking_the_broker() -> None:
    core = make(max_message_bytes=200, compression="zstd")
    send(core, bytes(range(256)))
    sent = core.take(0.0)
    assert sent is not None
    core.build(sent)
    assert core.request(sent, 0.0) is None
    failure = core.failure()
    assert failure is not None
    assert "max.message.bytes" in str(failure)
    assert core.in_flight == []


def test_a_batch_given_up_while_it_was_made_is_not_sent() -> None:
    core = make(partitions=2, delivery_timeout=10.0)
    send(core, b"x", now=0.0, partition=0)
    send(core, b"y", now=5.0, partition=1)
    sent = core.take(9.0)
    assert sent is not None
    core.tick(12.0, is_connected=True)
    core.build(sent)
    request = core.request(sent, 12.0)
    assert request is not None
    assert [part.partition for part in request[0].partitions] == [1]
    assert core.write_seconds(sent, 12.0) == pytest.approx(3.0), "nobody wants it after its deadline"


def test_a_request_interrupted_while_it_is_built() -> None:
    """A request interrupted while it was put together is put right by the loss of the connection."""
    core = make(partitions=2)
    send(core, b"x", partition=0)
    send(core, b"y", partition=1)
    sent = Sent([], 0.0)
    core.in_flight.append(sent)
    kept = core.accumulator.kept()
    sent.batches.append(kept[0])  # and before it left its place came the interrupt
    core.lost(1.0)
    assert sorted(batch.partition for batch in taken(core, 2.0).batches) == [0, 1]
    assert core.take(3.0) is None


def test_behind_a_failure_nothing_more_is_sent_if_that_was_asked_for() -> None:
    core = make(stop_at_failure=True)
    for number in range(3):
        send(core, b"%d" % number)
    refused, later = taken(core), None
    send(core, b"waits")
    later = taken(core)
    send(core, b"waits too")
    core.answered(refused, reply_header(1, InvalidTimestampError("no")), 0.0)
    assert core.take(0.0) is None
    assert [isinstance(batch.error, ClientClosedError) for batch in core.pending()] == [False]
    core.lost(0.0)  # with the second one on the way, which is not sent again
    assert core.take(0.0) is None
    assert core.unacknowledged == 0
    assert isinstance(later.batches[0].error, ClientClosedError)
    with pytest.raises(ClientClosedError, match="a record before it was not acknowledged"):
        core.append_batch(0, b"", 1, 0.0)


def test_a_batch_that_is_built_already() -> None:
    """A batch that is built already goes out in its turn under the producer's numbers."""
    core = make(producer=ProducerEpoch(7, 0), linger_ms=1e6)
    send(core, b"0")
    built = encode_batch([(1, None, b"1", ()), (1, None, b"2", ())])
    assert core.append_batch(0, built, 2, 0.0) is not None
    send(core, b"3")
    core.flush()
    found = []
    for _ in range(3):
        sent = taken(core)
        [batch] = sent.batches
        assert batch.data is not None
        header = parse_header(batch.data)
        assert verify_crc(batch.data, 0, header)
        found.append((header.producer_id, header.base_sequence, [r.value for r in decode_records(header, batch.data)]))
        core.answered(sent, acked(sent), 0.0)
    assert found == [(7, 0, [b"0"]), (7, 1, [b"1", b"2"]), (7, 3, [b"3"])]


def test_a_built_batch_waits_for_room_and_one_that_is_too_large_comes_apart() -> None:
    built = encode_batch([(1, None, b"%d" % n * 20, ()) for n in range(8)])
    core = make(buffer_bytes=len(built), max_message_bytes=len(built) - 1)
    batch = core.append_batch(0, built, 8, 0.0)
    assert batch is not None
    assert core.append_batch(0, built, 8, 0.0) is None
    sent = core.take(0.0)
    assert sent is not None
    core.build(sent)
    assert core.request(sent, 0.0) is None
    for _ in range(2):
        sent = taken(core)
        core.answered(sent, acked(sent), 0.0)
    assert [(piece.record_count, piece.error) for piece in batch.pieces()] == [(4, None), (4, None)]
    assert batch.is_resolved
    assert core.append_batch(0, built, 8, 0.0) is not None


# --- The topic changes ------------------------------------------------------------------------------------------------


def answered_with(core: ProducerCore, sent: Sent, **facts: object) -> None:
    results = [AppendResult("t", batch.partition, 7, -1, "disk", False) for batch in sent.batches]
    core.answered(sent, reply_header(1, AppendReply(**({"partitions": results} | facts))), 0.0)  # type: ignore[arg-type]


def test_a_request_names_topic_and_partitions() -> None:
    core = make(partitions=3)
    send(core, b"v")
    made = core.request(taken(core), 0.0)
    assert made is not None
    assert (made[0].topic_ids, made[0].partition_counts) == ({"t": "i" * 22}, {"t": 3})


def test_added_partitions_are_used() -> None:
    """Partitions that are added are used from the next record on and none ever goes."""
    core = make()
    for told, known in ((None, 1), ({"other": 9}, 1), ({"t": 5}, 5), ({"t": 2}, 5)):
        send(core, b"v")
        answered_with(core, taken(core), partition_counts=told)
        assert core.partitions == known
    placed = set()
    for number in range(100):
        batch = core.append((1, b"key %d" % number, b"v", (), None), lambda: 0.0)
        assert batch is not None
        placed.add(batch.partition)
    assert placed == set(range(5))


def test_a_topic_that_was_made_again_ends_a_producer_with_all_that_it_still_has() -> None:
    core = make(partitions=2)
    send(core, b"on the way", partition=0)
    sent = taken(core)
    send(core, b"behind it", partition=1)
    error = InconsistentTopicIdError("made again", topic="t", partition=0, topic_id="j" * 22)
    answered_with(core, sent, partitions=[AppendResult("t", 0, error=error)])
    assert core.unacknowledged == 0
    failure = core.failure()
    assert failure is not None
    assert {type(cause) for *_, cause in failure.failures} == {InconsistentTopicIdError}
    with pytest.raises(InconsistentTopicIdError):
        core.append((1, None, b"another", (), None), lambda: 0.0)


def test_at_ack_none_the_end_of_the_connection_tells_that_the_topic_was_made_again() -> None:
    core = make(ack="none")
    core.lost(0.0, ConnectionLostError("broke"))
    send(core, b"v")
    core.lost(0.0, InconsistentTopicIdError("made again", topic="t", partition=0, topic_id="j" * 22))
    with pytest.raises(InconsistentTopicIdError):
        send(core, b"another")


def test_when_a_producer_asks_for_partitions() -> None:
    """At ack none the broker is asked for partitions every few seconds and else never."""
    assert [make().look_up(now) for now in (0.0, 100.0)] == [None, None]
    core = make(ack="none")
    asked = [core.look_up(now) for now in (0.0, LOOK_UP_SECONDS - 1, LOOK_UP_SECONDS, LOOK_UP_SECONDS + 1)]
    assert [request and request.names for request in asked] == [None, None, ["t"], None]
    for topic_id, partitions, known in (("j" * 22, 9, 1), ("i" * 22, 4, 4)):
        described = TopicDescription("t", topic_id, partitions, 1_000_000, 1 << 30).to_wire()
        core.looked_up(Reply(1, reply_header(1, TopicsReply()), memoryview(encode_value([described]))))
        assert core.partitions == known
    core.looked_up(Reply(1, reply_header(1, BrokerStoppingError("stopping")), memoryview(b"")))
