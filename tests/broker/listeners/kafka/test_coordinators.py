"""FindCoordinator without groups and transactions: an error in every version that no client waits behind."""

from typing import Any, cast

import pytest

from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.coordinators import find_coordinator
from seglog_broker.listeners.kafka.door import Caller
from seglog_protocol.kafka import messages, write_response
from seglog_protocol.kafka.error_codes import ErrorCode

GROUP, TRANSACTION, SHARE = 0, 1, 2
NOBODY = cast("Caller", None)


def found(version: int, kind: int) -> tuple[int, str | None]:
    """The error for one key, from where a client of this version looks for it."""
    request = messages.FindCoordinatorRequest(key="readers", key_type=kind, coordinator_keys=["readers", "others"])
    response: Any = find_coordinator(NOBODY, request, version)
    assert b"".join(write_response(1, response, version))
    if version < 4:
        assert (response.node_id, response.host, response.port) == (-1, "", -1)
        return response.error_code, response.error_message
    assert [each.key for each in response.coordinators] == ["readers", "others"]
    assert {(each.node_id, each.host, each.port) for each in response.coordinators} == {(-1, "", -1)}
    ((code, why),) = {(each.error_code, each.error_message) for each in response.coordinators}
    return code, why


@pytest.mark.parametrize("version", range(7))
def test_nobody_waits_for_a_coordinator(version: int) -> None:
    for kind, code in (
        (GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (TRANSACTION, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (SHARE, ErrorCode.INVALID_REQUEST),
    ):
        given, why = found(version, kind)
        assert given == code
        assert not ErrorCode(given).retriable
        assert why is not None
        assert "seglog has no" in why


def test_its_version_0_is_offered_without_which_old_librdkafkas_do_not_compress_with_lz4() -> None:
    assert APIS[10].versions == range(7)
