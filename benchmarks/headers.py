"""What the header of a request or reply costs: from its bytes to the message and back, in process."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgpack

from benchmarks.harness import Bench, Benchmark, Row, take_turns
from seglog_protocol.messages import (
    AppendPartition,
    AppendReply,
    AppendRequest,
    AppendResult,
    FetchPartition,
    FetchReply,
    FetchRequest,
    FetchResult,
    Message,
    Request,
    decode_reply,
    open_request,
    pack_reply,
    pack_request,
    reply_header,
    request_header,
)

_TOPIC: Final = "commits"
_TOPIC_IDS: Final = {_TOPIC: "IVT1Seu3QjacxS7oBTKhDQ"}
_REQUEST_ID: Final = 12_345

REQUESTS: Final[dict[str, Request]] = {
    f"append to {count}": AppendRequest(
        [AppendPartition(_TOPIC, number, 170) for number in range(count)],
        topic_ids=_TOPIC_IDS,
        partition_counts={_TOPIC: 8},
    )
    for count in (1, 8)
} | {
    "fetch from 64": FetchRequest(
        [FetchPartition(_TOPIC, number, 1_000_000 + number) for number in range(64)], topic_ids=_TOPIC_IDS
    )
}
REPLIES: Final[dict[str, Message]] = {
    "append to 1": AppendReply([AppendResult(_TOPIC, 0, 1_000_000, -1, "disk", False, 1_699_395_200_000)]),
    "fetch from 64": FetchReply(
        [FetchResult(_TOPIC, number, 131_072, 1_000_000, 0, 2_000_000, 2_000_000, 0) for number in range(64)]
    ),
}


def run(bench: Bench) -> Iterator[Row]:
    """Each of them decoded and encoded; beside it msgpack alone, to and from a map that nothing is known of."""
    seconds = bench.pick(0.3, 0.02)
    for name, request in REQUESTS.items():
        header = request_header(_REQUEST_ID, request)
        packed = pack_request(_REQUEST_ID, request)
        yield _row(bench, f"{name}, request decoded", partial(open_request, packed), _unpacked(packed), seconds)
        yield _row(
            bench, f"{name}, request encoded", partial(pack_request, _REQUEST_ID, request), _packed(header), seconds
        )
    for name, reply in REPLIES.items():
        header = reply_header(_REQUEST_ID, reply)
        packed = pack_reply(_REQUEST_ID, reply)
        yield _row(
            bench, f"{name}, reply decoded", partial(decode_reply, packed, type(reply)), _unpacked(packed), seconds
        )
        yield _row(bench, f"{name}, reply encoded", partial(pack_reply, _REQUEST_ID, reply), _packed(header), seconds)


def _packed(header: dict[str, Any]) -> Callable[[], object]:
    return partial(msgpack.Packer().pack, header)


def _unpacked(packed: bytes) -> Callable[[], object]:
    return partial(msgpack.unpackb, packed)


def _row(bench: Bench, name: str, ours: Callable[[], object], beside: Callable[[], object], seconds: float) -> Row:
    values, others = take_turns(
        bench.rounds, partial(microseconds, ours, seconds), partial(microseconds, beside, seconds)
    )
    return Row(name, "µs", values, others, "msgpack, a map")


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Processor time of one call, of as many as fit into ``seconds``."""
    clock = time.thread_time
    count, took = 1, 0.0
    while took < seconds:
        count *= 2
        began = clock()
        for _ in range(count):
            call()
        took = clock() - began
    return took / count * 1e6


BENCHMARK = Benchmark(
    "headers",
    "headers of frames to messages and back, in process; processor time",
    "msgpack to and from a map, nothing checked",
    run,
)
