"""Kafka's wire protocol: frames to messages and back, for the versions of Kafka 4.4.0. Pure: no sockets, no files.

    header = read_request_header(frame)           # a memoryview, without its size; UnsupportedVersion, Malformed
    request = read_request(header, frame)         # a messages.ProduceRequest, ...; Malformed
    ...
    chunks = write_response(header.correlation_id, messages.ProduceResponse(responses=[...]), header.version)

``messages`` has a class for each message, with the fields of all its versions; ``messages.pyi`` lists them. Readers and
writers are generated from a table, ``definitions.txt``, one for each message and version, when they are first used.
docs/decisions/0019 says why.
"""
# ruff: noqa: F403 - the package has the names of its modules

from seglog_protocol.kafka import messages as messages
from seglog_protocol.kafka.codec import *
from seglog_protocol.kafka.errors import *
from seglog_protocol.kafka.structs import *
