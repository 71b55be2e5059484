"""Why the broker ends a connection; a peer that leaves needs no reason."""

from enum import Enum


class EndReason(Enum):
    """The label of ``seglog_connections_ended_total``."""

    AS_ASKED = "as_asked"
    """Of HTTP: behind an answer that is the last one, as its client or its version of the protocol want."""
    IDLE = "idle"
    """Nothing came for connections.max.idle.ms."""
    STALLED = "stalled"
    """A request stopped in its middle, or came too slowly while others waited for its memory."""
    SLOW_READER = "slow_reader"
    """It took its answers too slowly."""
    PROTOCOL_ERROR = "protocol_error"
    """What it sent is not of the protocol, or is too large."""
    NOT_GREETED = "not_greeted"
    """No valid hello came, or no login, within its time."""
    TLS_FAILED = "tls_handshake_failed"
    AUTHENTICATION_FAILED = "authentication_failed"
    ACCOUNT_DELETED = "account_deleted"
    APPEND_FAILED = "append_failed"
    """An append with ack none failed, and closing is all that tells its sender."""
    REQUEST_FAILED = "request_failed"
    """A request failed that has no answer for that."""
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY = "too_many_connections"
    """It was one more than seglog.connections.max; of HTTP also one without a request that made room for another."""
    CRASHED = "crashed"
    """A bug of the broker's: the log has it."""
