"""Kafka's wire protocol: frames to messages and back, for the versions of Kafka 4.4.0. Pure: no sockets, no files.

    header = read_request_header(frame)           # a memoryview, without its size; UnsupportedVersion, Malformed
    request = read_request(header, frame)         # a messages.ProduceRequest, ...; Malformed
    ...
    chunks = write_response(header.correlation_id, messages.ProduceResponse(responses=[...]), header.version)

``messages`` has a class for each message, with the fields of all its versions; ``messages.pyi`` lists them. Readers and
writers are generated from a table, ``definitions.txt``, one for each message and version, when they are first used.
docs/decisions/0019 says why.
"""
# ruff: noqa: I001 - a name is exported by an alias of the same name; they stand by module

from seglog_protocol.kafka import messages as messages
from seglog_protocol.kafka.codec import (
    Chunks as Chunks,
    RequestHeader as RequestHeader,
    RequestHeaderReader as RequestHeaderReader,
    decoded_bytes_max as decoded_bytes_max,
    is_flexible as is_flexible,
    read_message as read_message,
    read_request as read_request,
    read_request_header as read_request_header,
    read_request_in_pieces as read_request_in_pieces,
    read_response as read_response,
    versions as versions,
    write_message as write_message,
    write_message_in_pieces as write_message_in_pieces,
    write_request as write_request,
    write_response as write_response,
    write_response_in_pieces as write_response_in_pieces,
)
from seglog_protocol.kafka.errors import (
    Malformed as Malformed,
    UnsupportedVersion as UnsupportedVersion,
    WireError as WireError,
)
from seglog_protocol.kafka.structs import Message as Message, Request as Request, Response as Response, Struct as Struct
