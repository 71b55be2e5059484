"""FindCoordinator: the only node coordinates all groups. Clients learn at once that there are no transactions yet."""

from typing import Final

from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.errors import Failure
from seglog_broker.listeners.kafka.group_errors import group_failure
from seglog_broker.listeners.kafka.turns import EFFORT_A_TURN, in_turns
from seglog_protocol.errors import CoordinatorLoadingError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

_BATCHED_VERSION_MIN: Final = 4
_NO_NODE: Final = -1
_GROUP: Final = 0
_TRANSACTION: Final = 1

_NO_TRANSACTIONS: Final = Failure(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "seglog has no transactions yet")
_UNKNOWN_KIND: Final = Failure(ErrorCode.INVALID_REQUEST, "seglog has no such coordinators")
"""Errors that are final for every client; with others, some try again for ever, without a word."""

_Coordinator = messages.FindCoordinatorResponse.Coordinator


def find_coordinator(
    caller: Caller, request: messages.FindCoordinatorRequest, version: int
) -> messages.FindCoordinatorResponse | None:
    """The coordinator of each key; None for very many of them."""
    if version < _BATCHED_VERSION_MIN:
        found = _found(caller, request.key, request.key_type)
        return messages.FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    if len(request.coordinator_keys) > EFFORT_A_TURN:
        return None
    return messages.FindCoordinatorResponse(
        coordinators=[_found(caller, key, request.key_type) for key in request.coordinator_keys]
    )


async def find_coordinators(
    caller: Caller, request: messages.FindCoordinatorRequest, version: int
) -> messages.FindCoordinatorResponse:
    """The coordinators of very many keys."""
    del version
    return messages.FindCoordinatorResponse(
        coordinators=[_found(caller, key, request.key_type) async for key in in_turns(caller, request.coordinator_keys)]
    )


def _found(caller: Caller, key: str, kind: int) -> _Coordinator:
    failure = _why_none(caller, key, kind)
    if failure is not None:
        return _Coordinator(
            key=key, node_id=_NO_NODE, port=_NO_NODE, error_code=failure.code, error_message=failure.message
        )
    return _Coordinator(
        key=key, node_id=caller.node_id, host=caller.endpoint.host, port=caller.endpoint.port, error_message=None
    )


def _why_none(caller: Caller, key: str, kind: int) -> Failure | None:
    if kind == _TRANSACTION:
        return _NO_TRANSACTIONS
    if kind != _GROUP:
        return _UNKNOWN_KIND
    try:
        caller.groups.check(key)
    except CoordinatorLoadingError:
        return None  # the node is known; it says itself that its groups are being loaded
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return group_failure(error, "FindCoordinator")
    return None
