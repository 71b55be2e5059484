"""Requests that are patched for each transaction, replies that are counted, and the table of all sides."""

import socket

import pytest

from benchmarks.harness import BenchmarkError
from benchmarks.peers.load import RedisCounter
from benchmarks.peers.publish import table
from benchmarks.peers.results import KAFKA, REDIS, Measure, PeerRow, Results
from benchmarks.talks import header_of
from benchmarks.transactions import Epoch, KafkaProducer, NativeProducer
from seglog_protocol.kafka import messages, read_request, read_request_header
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
