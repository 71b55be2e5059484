"""FindCoordinator: there is no coordinator yet, for groups or transactions, and clients are told so at once."""

from typing import Final

from seglog_broker.listeners.kafka.door import Caller
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

_BATCHED_VERSION_MIN: Final = 4
_NO_NODE: Final = -1
_GROUP: Final = 0
_TRANSACTION: Final = 1

_WHY: Final = {
    _GROUP: (
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "seglog has no consumer groups yet: assign partitions, and keep offsets yourself",
    ),
    _TRANSACTION: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "seglog has no transactions yet"),
}
"""Errors that are final for every client; with others, some try again for ever, without a word."""


def find_coordinator(
    caller: Caller, request: messages.FindCoordinatorRequest, version: int
) -> messages.FindCoordinatorResponse:
    """An error for each key that no client takes for a passing one."""
    del caller
    code, why = _WHY.get(request.key_type, (ErrorCode.INVALID_REQUEST, "seglog has no such coordinators"))
    if version < _BATCHED_VERSION_MIN:
        return messages.FindCoordinatorResponse(error_code=code, error_message=why, node_id=_NO_NODE, port=_NO_NODE)
    return messages.FindCoordinatorResponse(
        coordinators=[
            messages.FindCoordinatorResponse.Coordinator(
                key=key, node_id=_NO_NODE, port=_NO_NODE, error_code=code, error_message=why
            )
            for key in request.coordinator_keys
        ]
    )
