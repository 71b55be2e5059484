"""One Metadata request to a listener of Kafka's clients: what they are told to connect to."""

import socket
import ssl
import struct
from typing import Final, NamedTuple

from seglog.core.dialing import Address
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.codec import read_response, write_request
from seglog_protocol.kafka.errors import Malformed

ANSWER_BYTES_MAX: Final = 1 << 20
_VERSION: Final = 5  # the cluster's id since 2, and no tagged fields, which tell us nothing
_FOREIGN: Final = "what answers there does not speak Kafka's protocol"
_SIZE: Final = struct.Struct(">i")


class Answer(NamedTuple):
    """What a listener answers."""

    cluster_id: str
    brokers: list[Address]


def why_unreachable(address: Address, seconds: float) -> str | None:
    """Why nothing can be reached at an address from here; None where something takes connections."""
    try:
        socket.create_connection(address, seconds).close()
    except OSError as error:
        return _reason(error)
    return None


def ask_metadata(address: Address, context: ssl.SSLContext | None, seconds: float) -> Answer:
    """Ask what a Kafka client would; with TLS where there is a ``context``.

    Raises OSError, with a sentence, where the listener cannot be reached or does not answer as Kafka's do.
    """
    request = messages.MetadataRequest(topics=[], allow_auto_topic_creation=False)
    try:
        with (
            socket.create_connection(address, seconds) as plain,
            plain if context is None else context.wrap_socket(plain, server_hostname=address.host) as connected,
        ):
            connected.sendall(b"".join(write_request(1, "seglog-doctor", request, _VERSION)))
            frame = _received(connected, _size(_received(connected, _SIZE.size)))
        _, response = read_response(request.API_KEY, _VERSION, memoryview(frame))
    except Malformed as error:
        raise OSError(_FOREIGN) from error
    except OSError as error:
        raise OSError(_reason(error)) from error
    assert isinstance(response, messages.MetadataResponse)
    return Answer(response.cluster_id or "", [Address(broker.host, broker.port) for broker in response.brokers])


def _size(data: bytes) -> int:
    size: int = _SIZE.unpack(data)[0]
    if not 0 < size <= ANSWER_BYTES_MAX:
        raise OSError(_FOREIGN)
    return size


def _received(connected: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = bytearray()
    while len(data) < size:
        more = connected.recv(size - len(data))
        if not more:
            raise OSError("the connection was closed without an answer")
        data += more
    return bytes(data)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return error.strerror or str(error)
