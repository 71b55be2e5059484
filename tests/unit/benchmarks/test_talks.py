"""Requests that are patched for each transaction, replies that are counted, and the table of all sides."""

import socket
import struct

import pytest

from benchmarks.group_wire import Replies
from benchmarks.harness import BenchmarkError
from benchmarks.peers.load import RedisCounter
from benchmarks.peers.publish import table
from benchmarks.peers.results import KAFKA, REDIS, Measure, PeerRow, Results
from benchmarks.queues.common import JOB
from benchmarks.queues.kafka import KafkaWorker
from benchmarks.queues.rabbitmq import RabbitReplies, RabbitWorker
from benchmarks.queues.redis import RedisReplies, RedisWorker
from benchmarks.talks import header_of
from benchmarks.transactions import Epoch, KafkaProducer, NativeProducer
from seglog_protocol.kafka import messages, read_request, read_request_header, write_response
from seglog_protocol.record_batch import parse_header, verify_crc

OWN = Epoch(3, 7)


def test_requests_of_a_transaction_name_the_producer_and_hold_a_batch_of_its_own() -> None:
    produce, end = (memoryview(one.of(OWN))[4:] for one in KafkaProducer(0, records=2).requests)
    extend, append, finish = (bytes(one.of(OWN)) for one in NativeProducer(0, records=2).requests)
    asked = read_request(read_request_header(produce), produce)
    ended = read_request(read_request_header(end), end)
    assert isinstance(asked, messages.ProduceRequest)
    assert isinstance(ended, messages.EndTxnRequest)
    assert (ended.producer_id, ended.producer_epoch) == OWN
    for header in (header_of(extend[4:]), header_of(finish[4:])):
        assert (header["producer_id"], header["producer_epoch"]) == OWN
    batch = asked.topic_data[0].partition_data[0].records
    assert batch is not None
    assert append.endswith(batch)
    found = parse_header(batch)
    assert (found.producer_id, found.producer_epoch, found.base_sequence, found.record_count) == (*OWN, 0, 2)
    assert verify_crc(batch, 0, found)


def test_replies_of_redis_are_counted_wherever_they_are_cut() -> None:
    replies = b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in (b"1-0", b"1-10", b"2-0"))
    for cut in range(1, len(replies)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            counter = RedisCounter(ours)
            theirs.sendall(replies[:cut])
            counted = counter.receive()
            theirs.sendall(replies[cut:])
            assert counted + counter.receive() == 3
            theirs.sendall(b"-ERR no\r\n")
            with pytest.raises(BenchmarkError, match="ERR no"):
                counter.receive()


def test_the_table_has_a_column_for_each_peer_that_was_measured() -> None:
    sides = {"seglog, native": [Measure(30)], KAFKA: [Measure(10)], REDIS: [Measure(20)], "bare loop": [Measure(99)]}
    versions = {"seglog": "1", KAFKA: "4 on Java", REDIS: "7", "other": "1"}
    found = table(Results({}, versions, rows=[PeerRow("disk", "a case", "appends/s", sides)]))
    assert found.splitlines()[0] == "| | Kafka 4 | native | Redis |"
    assert found.splitlines()[2] == "| a case | 10 appends/s | 3.00 | 2.00 |"


def both(framing: type[Replies], sent: bytes, cut: int) -> list[bytes]:
    """The replies found in ``sent``, which comes in two pieces."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        replies = framing(ours)
        theirs.sendall(sent[:cut])
        found = replies.receive()
        theirs.sendall(sent[cut:])
        return found + replies.receive()


def test_a_worker_of_redis_acknowledges_the_ids_that_an_answer_had_wherever_it_is_cut() -> None:
    jobs = b"".join(b"*2\r\n$9\r\n1-100000%d\r\n*2\r\n$5\r\nvalue\r\n$100\r\n%s\r\n" % (n, JOB) for n in (1, 2))
    answer = b":7\r\n*1\r\n*2\r\n$10\r\nbench-jobs\r\n*2\r\n" + jobs
    for cut in range(1, len(answer)):
        [found] = both(RedisReplies, answer, cut)
        worker = RedisWorker(0, 1, 2)
        assert (worker.answered(found), worker.answered(b":2\r\n*-1\r\n")) == (0, 2)
        worker.answered(found)
        asked = worker.request() or b""
        assert asked.startswith(
            b"*5\r\n$4\r\nXACK\r\n$10\r\nbench-jobs\r\n$12\r\nbench-jobs-1\r\n$9\r\n1-1000001\r\n$9\r\n"
        )


def test_a_worker_of_rabbitmq_acknowledges_as_many_jobs_as_have_come_whole() -> None:
    frames = [struct.pack(">BHI", kind, 1, size) + bytes(size) + b"\xce" for kind, size in ((1, 40), (2, 15), (3, 100))]
    sent = b"".join(frames * 2)
    for cut in range(1, len(sent)):
        assert sum(map(len, both(RabbitReplies, sent, cut))) == 2
    worker = RabbitWorker(0, 1, 2)
    assert (worker.answered(bytes(2)), worker.answered(b"")) == (0, 2)
    worker.answered(bytes(2))
    assert len(worker.request()) == 2 * 21


def test_a_worker_of_kafkas_protocol_acknowledges_what_an_answer_gave_it() -> None:
    cls = messages.ShareFetchResponse
    given = [cls.AcquiredRecords(first_offset=n, last_offset=n + 2, delivery_count=1) for n in (4, 9)]
    part = cls.PartitionData(partition_index=0, records=memoryview(bytes(200)), acquired_records=given)
    answer = cls(acquisition_lock_timeout_ms=30_000, responses=[cls.ShareFetchableTopicResponse(partitions=[part])])
    reply = b"".join(map(bytes, write_response(7, answer, 2)))[4:]
    worker = KafkaWorker(0, 1, 2)
    assert worker.answered(reply) == 0
    frame = memoryview(bytes(worker.request() or b""))[4:]
    asked = read_request(read_request_header(frame), frame)
    assert isinstance(asked, messages.ShareFetchRequest)
    acknowledged = asked.topics[0].partitions[0].acknowledgement_batches
    assert asked.share_session_epoch == 1
    assert [(each.first_offset, each.last_offset) for each in acknowledged] == [(4, 6), (9, 11)]
    with pytest.raises(BenchmarkError, match="ShareFetch was answered"):
        worker.answered(reply[:9] + b"\0\1" + reply[11:])
