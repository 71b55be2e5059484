"""The benchmarks of many partitions and of handing over: that requests go where they should, and both ends agree."""

import socket
from typing import cast

import pytest

from benchmarks import hand_over, many_partitions
from benchmarks.batches import one_record
from benchmarks.peers import load
from seglog_protocol.kafka import messages, read_request, read_request_header


def test_requests_in_turn_are_equally_long_on_both_wires() -> None:
    """As the load process wants them."""
    for make in (many_partitions.kafka_append_frame, many_partitions.native_append_frame):
        frames = [make(number, one_record()) for number in (many_partitions.FIRST, many_partitions.FIRST + 999)]
        assert len(frames[0]) == len(frames[1])
        assert frames[0] != frames[1]
    data = memoryview(many_partitions.kafka_fetch_frame())[4:]
    request = read_request(read_request_header(data), data)
    assert isinstance(request, messages.FetchRequest)
    assert len(request.topics[0].partitions) == many_partitions.FETCHED


class Sink:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""

    def sendall(self, data: memoryview) -> None:
        self.sent += bytes(data)


def test_a_flow_sends_its_requests_in_turn_however_many_are_owed() -> None:
    sink = Sink()
    flow = load.Flow(cast("socket.socket", sink), [b"a", b"b", b"c"], 5)
    flow.begin()
    for owed in (1, 4, 2):
        flow._owed = owed
        assert flow.refill() == owed
    assert sink.sent == b"abcabcabcabc"
    assert flow.sent == 12


@pytest.mark.parametrize("kind", ["socketpair", "shared memory"])
@pytest.mark.parametrize("together", [1, 16])
def test_what_is_handed_over_comes_back(kind: str, together: int) -> None:
    """And the other process ends with this end."""
    measured = hand_over.hand_over(kind, together, 0.01)
    assert measured.round_trip_us > 0
    assert measured.cpu_us >= measured.system_us >= 0
