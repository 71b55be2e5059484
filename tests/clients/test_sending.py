"""The sending core: what is on the way, what follows from silence and loss, and when to look again."""

import pytest

from seglog.batching import IN_FLIGHT_MAX, ProducerEpoch
from seglog.connection import Reply
from seglog.sending import LOOK_UP_SECONDS, REQUEST_TIMEOUT_SECONDS, SILENCE_SECONDS, ProducerOptions, Sender, Sent
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
) -> Sender:
    topic = TopicDescription("t", "i" * 22, partitions, max_message_bytes, 1 << 30)
    return Sender(topic, ProducerOptions(**{"linger_ms": 0, **options}), producer)  # type: ignore[arg-type]


def send(sender: Sender, value: bytes, now: float = 0.0, partition: int | None = None) -> None:
    record, size = sender.prepare(value, None, 1, partition, ())
    assert sender.append(partition, record, size, now) is not None


def taken(sender: Sender, now: float = 0.0) -> Sent:
    sent = sender.take(now)
    assert sent is not None
    sender.build(sent)
    assert sender.request(sent, now) is not None
    return sent


def acked(sent: Sent) -> dict[str, object]:
    return reply_header(1, AppendReply([AppendResult("t", b.partition, 7, -1, "disk", False) for b in sent.batches]))


def test_no_more_requests_are_on_the_way_than_may_be() -> None:
    sender = make()
    for number in range(IN_FLIGHT_MAX):
        send(sender, b"%d" % number)
        taken(sender)
    send(sender, b"one more")
    assert sender.take(0.0) is None
    sender.answered(sender.in_flight[2], acked(sender.in_flight[2]), 0.0)
    assert sender.unacknowledged == IN_FLIGHT_MAX
    taken(sender)


def test_an_unanswered_request_means_a_dead_connection_after_a_while() -> None:
    sender = make()
    send(sender, b"x")
    sent = taken(sender, 1.0)
    assert sender.overdue(1.0 + REQUEST_TIMEOUT_SECONDS - 0.1, "b:1") is None
    assert sender.tick(2.0, is_connected=True) == 1.0 + SILENCE_SECONDS, "then it is logged"
    assert sender.tick(2.0 + SILENCE_SECONDS, is_connected=True) == 1.0 + REQUEST_TIMEOUT_SECONDS
    assert isinstance(sender.overdue(1.0 + REQUEST_TIMEOUT_SECONDS, "b:1"), ConnectionLostError)
    sender.lost(40.0)
    assert sender.in_flight == []
    assert sender.connect_at == 40.0
    sender.answered(sent, acked(sent), 41.0)
    assert sender.unacknowledged == 1, "an answer from the old connection is none"
    assert taken(sender, 41.0).batches == sent.batches


def test_without_a_connection_nothing_but_connecting_and_giving_up_has_its_time() -> None:
    sender = make(delivery_timeout=10.0)
    assert sender.tick(0.0, is_connected=False) is None, "and no connection is made for nothing"
    send(sender, b"x", now=1.0)
    assert sender.tick(1.0, is_connected=True) == 1.0
    sender.not_connected(NotReachableError("nobody", server="b:1"), 1.0)
    assert 1.02 < sender.connect_at < 1.06
    assert sender.tick(1.0, is_connected=False) == sender.connect_at
    for _ in range(20):
        sender.not_connected(NotReachableError("nobody", server="b:1"), 5.0)
    assert 5.5 <= sender.connect_at <= 6.0
    answers = sender.answers
    assert sender.tick(11.0, is_connected=False) is None
    assert sender.answers > answers, "whoever waits for it is to look again"
    failure = sender.failure()
    assert failure is not None
    assert "nobody" in str(failure)


def test_ending_fails_what_is_not_on_the_way_and_what_would_be_sent_again() -> None:
    sender = make(partitions=2)
    send(sender, b"x", partition=0)
    sent = taken(sender)
    send(sender, b"y", partition=1)
    gone = ClientClosedError("gone")
    assert sender.end(gone) == sent.batches
    assert sender.take(0.0) is None
    refusal = AppendReply([AppendResult("t", 0, error=BrokerStoppingError("later"))])
    sender.answered(sent, reply_header(1, refusal), 0.0)
    assert sender.pending() == []
    assert sender.loss() == "seglog: not acknowledged: 2 records to t"
    assert sender.loss() is None


def test_what_cannot_fit_is_refused_without_asking_the_broker() -> None:
    sender = make(max_message_bytes=200, compression="zstd")
    send(sender, bytes(range(256)))
    sent = sender.take(0.0)
    assert sent is not None
    sender.build(sent)
    assert sender.request(sent, 0.0) is None
    failure = sender.failure()
    assert failure is not None
    assert "max.message.bytes" in str(failure)
    assert sender.in_flight == []


def test_a_batch_given_up_while_it_was_made_is_not_sent() -> None:
    sender = make(partitions=2, delivery_timeout=10.0)
    send(sender, b"x", now=0.0, partition=0)
    send(sender, b"y", now=5.0, partition=1)
    sent = sender.take(9.0)
    assert sent is not None
    sender.tick(12.0, is_connected=True)
    sender.build(sent)
    request = sender.request(sent, 12.0)
    assert request is not None
    assert [part.partition for part in request[0].partitions] == [1]
    assert sender.write_seconds(sent, 12.0) == pytest.approx(3.0), "nobody wants it after its deadline"


def test_a_request_interrupted_while_it_was_put_together_is_put_right_by_the_loss_of_the_connection() -> None:
    sender = make(partitions=2)
    send(sender, b"x", partition=0)
    send(sender, b"y", partition=1)
    sent = Sent([], 0.0)
    sender.in_flight.append(sent)
    kept = sender.accumulator.kept()
    sent.batches.append(kept[0])  # and before it left its place came the interrupt
    sender.lost(1.0)
    assert sorted(batch.partition for batch in taken(sender, 2.0).batches) == [0, 1]
    assert sender.take(3.0) is None


def test_behind_a_failure_nothing_more_is_sent_if_that_was_asked_for() -> None:
    sender = make(stop_at_failure=True)
    for number in range(3):
        send(sender, b"%d" % number)
    refused, later = taken(sender), None
    send(sender, b"waits")
    later = taken(sender)
    send(sender, b"waits too")
    sender.answered(refused, reply_header(1, InvalidTimestampError("no")), 0.0)
    assert sender.take(0.0) is None
    assert [isinstance(batch.error, ClientClosedError) for batch in sender.pending()] == [False]
    sender.lost(0.0)  # with the second one on the way, which is not sent again
    assert sender.take(0.0) is None
    assert sender.unacknowledged == 0
    assert isinstance(later.batches[0].error, ClientClosedError)
    with pytest.raises(ClientClosedError, match="a record before it was not acknowledged"):
        sender.append_batch(0, b"", 1, 0.0)


def test_a_batch_that_is_built_already_goes_out_in_its_turn_under_the_producers_numbers() -> None:
    sender = make(producer=ProducerEpoch(7, 0), linger_ms=1e6)
    send(sender, b"0")
    built = encode_batch([(1, None, b"1", ()), (1, None, b"2", ())])
    assert sender.append_batch(0, built, 2, 0.0) is not None
    send(sender, b"3")
    sender.flush()
    found = []
    for _ in range(3):
        sent = taken(sender)
        [batch] = sent.batches
        assert batch.data is not None
        header = parse_header(batch.data)
        assert verify_crc(batch.data, 0, header)
        found.append((header.producer_id, header.base_sequence, [r.value for r in decode_records(header, batch.data)]))
        sender.answered(sent, acked(sent), 0.0)
    assert found == [(7, 0, [b"0"]), (7, 1, [b"1", b"2"]), (7, 3, [b"3"])]


def test_a_built_batch_waits_for_room_and_one_that_is_too_large_comes_apart() -> None:
    built = encode_batch([(1, None, b"%d" % n * 20, ()) for n in range(8)])
    sender = make(buffer_bytes=len(built), max_message_bytes=len(built) - 1)
    batch = sender.append_batch(0, built, 8, 0.0)
    assert batch is not None
    assert sender.append_batch(0, built, 8, 0.0) is None
    sent = sender.take(0.0)
    assert sent is not None
    sender.build(sent)
    assert sender.request(sent, 0.0) is None
    for _ in range(2):
        sent = taken(sender)
        sender.answered(sent, acked(sent), 0.0)
    assert [(piece.record_count, piece.error) for piece in batch.pieces()] == [(4, None), (4, None)]
    assert batch.is_resolved
    assert sender.append_batch(0, built, 8, 0.0) is not None


# --- The topic changes ------------------------------------------------------------------------------------------------


def answered_with(sender: Sender, sent: Sent, **facts: object) -> None:
    results = [AppendResult("t", batch.partition, 7, -1, "disk", False) for batch in sent.batches]
    sender.answered(sent, reply_header(1, AppendReply(**({"partitions": results} | facts))), 0.0)  # type: ignore[arg-type]


def test_a_request_names_topic_and_partitions_where_the_broker_takes_that() -> None:
    sender = make(partitions=3)
    for version, named in ((2, ({"t": "i" * 22}, {"t": 3})), (1, (None, None))):
        send(sender, b"v")
        sent = sender.take(0.0)
        assert sent is not None
        sender.build(sent)
        made = sender.request(sent, 0.0, version=version)
        assert made is not None
        assert (made[0].topic_ids, made[0].partition_counts) == named
        assert made[0].version_needed() == version


def test_partitions_that_are_added_are_used_from_the_next_record_on_and_none_ever_goes() -> None:
    sender = make()
    for told, known in ((None, 1), ({"other": 9}, 1), ({"t": 5}, 5), ({"t": 2}, 5)):
        send(sender, b"v")
        answered_with(sender, taken(sender), partition_counts=told)
        assert sender.partitions == known
    placed = set()
    for number in range(100):
        record, size = sender.prepare(b"v", b"key %d" % number, 1, None, ())
        added = sender.append(None, record, size, 0.0)
        assert added is not None
        placed.add(added[0].partition)
    assert placed == set(range(5))


def test_a_topic_that_was_made_again_ends_a_producer_with_all_that_it_still_has() -> None:
    sender = make(partitions=2)
    send(sender, b"on the way", partition=0)
    sent = taken(sender)
    send(sender, b"behind it", partition=1)
    error = InconsistentTopicIdError("made again", topic="t", partition=0, topic_id="j" * 22)
    answered_with(sender, sent, partitions=[AppendResult("t", 0, error=error)])
    assert sender.unacknowledged == 0
    failure = sender.failure()
    assert failure is not None
    assert {type(cause) for *_, cause in failure.failures} == {InconsistentTopicIdError}
    record, size = sender.prepare(b"another", None, 1, None, ())
    with pytest.raises(InconsistentTopicIdError):
        sender.append(None, record, size, 0.0)


def test_at_ack_none_the_end_of_the_connection_tells_that_the_topic_was_made_again() -> None:
    sender = make(ack="none")
    sender.lost(0.0, ConnectionLostError("broke"))
    send(sender, b"v")
    sender.lost(0.0, InconsistentTopicIdError("made again", topic="t", partition=0, topic_id="j" * 22))
    with pytest.raises(InconsistentTopicIdError):
        send(sender, b"another")


def test_at_ack_none_the_broker_is_asked_for_partitions_every_few_seconds_and_else_never() -> None:
    assert [make().look_up(now) for now in (0.0, 100.0)] == [None, None]
    sender = make(ack="none")
    asked = [sender.look_up(now) for now in (0.0, LOOK_UP_SECONDS - 1, LOOK_UP_SECONDS, LOOK_UP_SECONDS + 1)]
    assert [request and request.names for request in asked] == [None, None, ["t"], None]
    for topic_id, partitions, known in (("j" * 22, 9, 1), ("i" * 22, 4, 4)):
        described = TopicDescription("t", topic_id, partitions, 1_000_000, 1 << 30).to_wire()
        sender.looked_up(Reply(1, reply_header(1, TopicsReply()), memoryview(encode_value([described]))))
        assert sender.partitions == known
    sender.looked_up(Reply(1, reply_header(1, BrokerStoppingError("stopping")), memoryview(b"")))
