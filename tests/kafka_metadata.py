"""What Kafka's clients are told first: the brokers of the cluster."""

import socket

from seglog_protocol.kafka import read_response, write_request
from seglog_protocol.kafka.messages import MetadataRequest, MetadataResponse

_API_KEY = 3
_VERSION = 1


def brokers_at(address: str) -> list[tuple[int, str, int]]:
    """Number, host and port of each broker that a listener at ``HOST:PORT`` names."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connected, connected.makefile("rb") as answers:
        connected.sendall(b"".join(write_request(1, "a client", MetadataRequest(topics=[]), _VERSION)))
        frame = answers.read(int.from_bytes(answers.read(4), "big"))
    _, response = read_response(_API_KEY, _VERSION, memoryview(frame))
    assert isinstance(response, MetadataResponse)
    return [(broker.node_id, broker.host, broker.port) for broker in response.brokers]
