"""FindCoordinator in every version: this node for groups, and for others an error that no client waits behind."""

from typing import Any

import pytest

from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.fake_groups import FakeGroups
from tests.unit.broker.listeners.kafka.group_requests import serve, served_now

GROUP, SHARE = 0, 2
VERSIONS = range(7)
HERE = (1, "here", 9092)
NOWHERE = (-1, "", -1)


async def found(groups: FakeGroups, version: int, kind: int, key: str = "readers") -> tuple[Any, int, str | None]:
    """The address and the error for a key, from where a client of this version looks for it."""
    request = messages.FindCoordinatorRequest()
    if version < 4:
        request.key = key
    else:
        request.coordinator_keys = [key, "others"]
    if version >= 1:
        request.key_type = kind
    response = await serve(groups, request, version)
    answer = response
    if version >= 4:
        assert [each.key for each in response.coordinators] == [key, "others"]
        answer = response.coordinators[0]
    return (answer.node_id, answer.host, answer.port), answer.error_code, answer.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_this_node_coordinates_every_group(groups: FakeGroups, version: int) -> None:
    assert await found(groups, version, GROUP) == (HERE, 0, "" if version == 0 else None)
    names = ["readers", "others"] if version >= 4 else ["readers"]
    assert groups.asked == [("check", name) for name in names]


@each_case("version", VERSIONS)
@each_case(
    ("error", "key", "where", "code", "why"),
    [
        (None, "", NOWHERE, ErrorCode.INVALID_GROUP_ID, "the group id is empty"),
        (errors.CoordinatorLoadingError("loading"), "readers", HERE, 0, None),
        (
            errors.CoordinatorNotAvailableError("no disk"),
            "readers",
            NOWHERE,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "no disk",
        ),
    ],
)
async def test_groups_without_a_name_and_those_that_cannot_be_written_have_no_coordinator(
    error: Exception | None, key: str, where: object, code: int, why: str | None, version: int
) -> None:
    groups = FakeGroups()
    groups.error = error
    assert await found(groups, version, GROUP, key) == (where, code, why if version else "")


@each_case("version", VERSIONS[1:])
async def test_nobody_waits_for_a_coordinator_that_there_is_not(version: int) -> None:
    where, given, why = await found(FakeGroups(), version, SHARE)
    assert (where, given) == (NOWHERE, ErrorCode.INVALID_REQUEST)
    assert why is not None
    assert "seglog has no" in why


async def test_very_many_groups_are_looked_up_in_turns(groups: FakeGroups) -> None:
    request = messages.FindCoordinatorRequest(coordinator_keys=[f"g-{number}" for number in range(1201)])
    assert served_now(groups, request, 6) is None
    assert groups.asked == []
    response = await serve(groups, request, 6)
    assert [(each.key, each.port) for each in response.coordinators] == [(f"g-{n}", 9092) for n in range(1201)]


async def test_version_0_is_offered_for_old_librdkafka() -> None:
    """Its version 0 is offered without which old librdkafka do not compress with lz4."""
    assert APIS[10].versions == range(7)
