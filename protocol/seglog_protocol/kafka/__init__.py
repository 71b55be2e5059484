"""Kafka's wire protocol: frames to messages and back, for the versions of Kafka 4.3.1. Pure: no sockets, no files.

    header = read_request_header(frame)           # a memoryview, without its size; UnsupportedVersion, Malformed
    request = read_request(header, frame)         # a messages.ProduceRequest, ...; Malformed
    ...
    chunks = write_response(header.correlation_id, messages.ProduceResponse(responses=[...]), header.version)

``messages`` has a class for each message, with the fields of all its versions; ``messages.pyi`` lists them. Readers and
writers are generated from a table, ``definitions.txt``, one for each message and version, when they are first used.
docs/decisions/0019 says why.
"""

from seglog_protocol.kafka import messages
from seglog_protocol.kafka.codec import (
    Chunks,
    RequestHeader,
    RequestHeaderReader,
    is_flexible,
    read_message,
    read_request,
    read_request_header,
    read_request_in_pieces,
    read_response,
    versions,
    write_message,
    write_message_in_pieces,
    write_request,
    write_response,
    write_response_in_pieces,
)
from seglog_protocol.kafka.errors import Malformed, UnsupportedVersion, WireError
from seglog_protocol.kafka.structs import Message, Request, Response, Struct

__all__ = [
    "Chunks",
    "Malformed",
    "Message",
    "Request",
    "RequestHeader",
    "RequestHeaderReader",
    "Response",
    "Struct",
    "UnsupportedVersion",
    "WireError",
    "is_flexible",
    "messages",
    "read_message",
    "read_request",
    "read_request_header",
    "read_request_in_pieces",
    "read_response",
    "versions",
    "write_message",
    "write_message_in_pieces",
    "write_request",
    "write_response",
    "write_response_in_pieces",
]
