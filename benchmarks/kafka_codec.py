"""What frames of Kafka's wire cost: from their bytes to messages and back, in process, beside kafka-python's codec."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from benchmarks.harness import Bench, Benchmark, Row, take_turns
from benchmarks.headers import microseconds
from seglog_protocol.kafka import (
    messages,
    read_request,
    read_request_header,
    read_response,
    write_request,
    write_response,
)

_RECORDS: Final = memoryview(bytes(16 * 1024))


def produce_request(partitions: int) -> messages.ProduceRequest:
    """A batch of 16 KiB for each of so many partitions."""
    cls = messages.ProduceRequest
    batches = [cls.PartitionProduceData(index=index, records=_RECORDS) for index in range(partitions)]
    return cls(acks=-1, timeout_ms=30_000, topic_data=[cls.TopicProduceData(name="commits", partition_data=batches)])


def produce_response(partitions: int) -> messages.ProduceResponse:
    """An offset for each of so many partitions."""
    cls = messages.ProduceResponse
    results = [cls.PartitionProduceResponse(index=index, base_offset=1_000_000) for index in range(partitions)]
    return cls(responses=[cls.TopicProduceResponse(name="commits", partition_responses=results)])


def fetch_response(partitions: int) -> messages.FetchResponse:
    """16 KiB of each of so many partitions."""
    cls = messages.FetchResponse
    results = [
        cls.PartitionData(
            partition_index=index,
            high_watermark=1_000_000,
            last_stable_offset=1_000_000,
            log_start_offset=0,
            records=_RECORDS,
        )
        for index in range(partitions)
    ]
    return cls(responses=[cls.FetchableTopicResponse(topic="commits", partitions=results)])


def metadata_response(topics: int) -> messages.MetadataResponse:
    """So many topics of ten partitions each, on one node."""
    cls = messages.MetadataResponse
    described = [
        cls.MetadataResponseTopic(
            name=f"topic-{number}",
            topic_id=bytes(15) + b"\1",
            partitions=[
                cls.MetadataResponsePartition(
                    partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
                )
                for index in range(10)
            ],
        )
        for number in range(topics)
    ]
    broker = cls.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092)
    return cls(brokers=[broker], cluster_id="IVT1Seu3QjacxS7oBTKhDQ", controller_id=1, topics=described)


def run(bench: Bench) -> Iterator[Row]:
    """Each message read or written by both, in turns."""
    seconds = bench.pick(0.3, 0.02)
    for partitions in (1, 10):
        frame = _frame(write_request(1, "client", produce_request(partitions), 9))
        name = f"Produce v9, {partitions} x 16 KiB, request read"
        yield _row(bench, name, partial(_read, frame), partial(_peer("ProduceRequest").decode, frame, 9, True), seconds)
    written: list[tuple[str, Callable[[int], Any], int, int]] = [
        ("Produce v9, {} x 16 KiB, response", produce_response, 9, 1),
        ("Fetch v12, {} x 16 KiB, response", fetch_response, 12, 1),
        ("Fetch v12, {} x 16 KiB, response", fetch_response, 12, 10),
        ("Metadata v12, {} x 10 partitions, response", metadata_response, 12, 1),
        ("Metadata v12, {} x 10 partitions, response", metadata_response, 12, 20),
    ]
    for name, make, version, count in written:
        message = make(count)
        frame = _frame(write_response(1, message, version))
        peer = _peer(type(message).__name__)
        decoded = peer.decode(frame, version, True)
        write = partial(write_response, 1, message, version)
        yield _row(bench, f"{name.format(count)} written", write, partial(_write_peer, decoded), seconds)
    frame = _frame(write_response(1, metadata_response(20), 12))
    read = partial(read_response, 3, 12, frame)
    name = "Metadata v12, 20 x 10 partitions, response read"
    yield _row(bench, name, read, partial(_peer("MetadataResponse").decode, frame, 12, True), seconds)


def _frame(chunks: list[Any]) -> memoryview:
    return memoryview(b"".join(chunks)[4:])


def _read(frame: memoryview) -> object:
    return read_request(read_request_header(frame), frame)


def _peer(name: str) -> Any:
    """kafka-python's class of a message."""
    import kafka.protocol.consumer  # noqa: PLC0415 - for this benchmark alone, and slow to import
    import kafka.protocol.metadata  # noqa: PLC0415 - as above
    import kafka.protocol.producer  # noqa: PLC0415 - as above

    for module in (kafka.protocol.consumer, kafka.protocol.metadata, kafka.protocol.producer):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


def _write_peer(message: Any) -> object:
    return message.encode(header=True, framed=True)


def _row(bench: Bench, name: str, ours: Callable[[], object], beside: Callable[[], object], seconds: float) -> Row:
    values, others = take_turns(
        bench.rounds, partial(microseconds, ours, seconds), partial(microseconds, beside, seconds)
    )
    return Row(name, "µs", values, others, "kafka-python")


BENCHMARK = Benchmark(
    "kafka-codec",
    "frames of Kafka's wire to messages and back, in process; processor time",
    "kafka-python's codec",
    run,
)
