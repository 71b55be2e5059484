"""The leader epochs that clients send with their requests."""

from typing import Final

from seglog_protocol.kafka.error_codes import ErrorCode

NOT_KNOWN: Final = -1
"""The client knows no epoch: nothing is checked."""


def epoch_error(known: int, current: int) -> ErrorCode | None:
    """Error of a client that knows epoch ``known`` of a partition whose epoch is ``current``; None if there is none."""
    if known in (NOT_KNOWN, current):
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if known < current else ErrorCode.UNKNOWN_LEADER_EPOCH
