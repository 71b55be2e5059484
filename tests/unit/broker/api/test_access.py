"""Rules changed while the broker runs: each is on the disk before it counts, and Kafka's words refuse the others."""

import errno
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api import access
from seglog_broker.api.broker import Broker
from seglog_broker.storage.directory.acls import ACLS_MAX
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule, RuleFilter, Rules
from tests.unit.broker.brokers import open_broker

RULE: Final = Rule(Kind.TOPIC, PatternType.LITERAL, "a", "User:ann", "*", Operation.READ, Permission.ALLOW)
OTHER: Final = RULE._replace(name="b")
ADMIN: Final = "User:admin"


def codes(results: list[Any]) -> list[Any]:
    return [result.code if isinstance(result, errors.SeglogError) else result for result in results]


async def test_rules_are_made_found_and_deleted_and_count_at_once(broker: Broker, fs: ForgetfulFileSystem) -> None:
    with capture_logs() as logged:
        assert await broker.access.create([RULE, OTHER, RULE], ADMIN) == [None, None, None]
    told = [(line["change"], line["acl"], line["principal"]) for line in logged]
    assert told == [("created", str(rule), ADMIN) for rule in (RULE, OTHER)]
    assert broker.authority.epoch == 1
    assert await broker.access.create([RULE], ADMIN) == [None]
    assert broker.authority.epoch == 1, "nothing has changed"
    again = open_broker(fs.found_after(POWER_LOSS))
    for each in (broker, again):
        assert await each.access.describe(RuleFilter()) == [RULE, OTHER]
        assert await each.access.describe(RuleFilter(name="b")) == [OTHER]
        assert each.authority.decide("User:ann", "h", Operation.READ, Kind.TOPIC, "a", by_rules=True).is_allowed
    again.close()
    both, none = RuleFilter(principal="User:ann"), RuleFilter(Kind.GROUP)
    with capture_logs() as logged:
        assert await broker.access.delete([both, RuleFilter(name="a"), none], ADMIN) == [[RULE, OTHER], [RULE], []]
    assert [line["change"] for line in logged] == ["deleted", "deleted"]
    assert not broker.authority.decide("User:ann", "h", Operation.READ, Kind.TOPIC, "a", by_rules=True).is_allowed
    again = open_broker(fs.found_after(POWER_LOSS))
    assert await again.access.describe(RuleFilter()) == []
    again.close()


async def test_what_is_not_possible_is_refused_and_the_rest_is_done(broker: Broker) -> None:
    impossible = RULE._replace(operation=Operation.ANY)
    results = await broker.access.create([impossible, RULE], ADMIN)
    assert codes(results) == ["INVALID_REQUEST", None]
    assert "Invalid operation ANY" in str(results[0])
    unknown = RuleFilter(operation=Operation(99))
    assert codes(await broker.access.delete([unknown, RuleFilter()], ADMIN)) == ["INVALID_REQUEST", [RULE]]
    with pytest.raises(errors.InvalidRequestError, match="Unknown entryFilter"):
        await broker.access.describe(unknown)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_changes_that_cannot_be_kept_are_not_in_force(
    broker: Broker, number: int, fs: ForgetfulFileSystem
) -> None:
    fs.inject(Fault("pwritev", "seglog-acls.json.tmp", error=number))
    with pytest.raises(errors.StorageError, match="the ACLs could not be kept") as caught:
        await broker.access.create([RULE], ADMIN)
    assert isinstance(caught.value, errors.DiskFullError) == (number == errno.ENOSPC)
    assert await broker.access.describe(RuleFilter()) == []
    assert broker.authority.epoch == 0
    assert await broker.access.create([RULE], ADMIN) == [None]


async def test_changes_at_the_same_time_lose_nothing(broker: Broker) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(broker.access.create, [RULE._replace(name=f"t{number}")], ADMIN)
    assert len(await broker.access.describe(RuleFilter())) == 20


async def test_beyond_the_most_rules_none_is_made_and_the_rest_is_done(broker: Broker) -> None:
    acls = broker.directory.acls
    acls.rules = Rules.of(RULE._replace(name=f"t{number}") for number in range(ACLS_MAX - 1))
    made = await broker.access.create([RULE, OTHER, RULE, RULE._replace(name="t0")], ADMIN)
    assert codes(made) == [None, "POLICY_VIOLATION", None, None]
    everything = [RuleFilter()] * (access.DELETED_MAX // ACLS_MAX + 1)
    deleted = await broker.access.delete(everything, ADMIN)
    assert codes(deleted[-2:]) == [deleted[0], "POLICY_VIOLATION"]
    assert len(acls.rules) == 0
