"""What a session may do: decided once for the same, and again when rules, the switch or the client change."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Final

import pytest
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.config.broker_config import AUTHORIZERS
from seglog_broker.listeners.session import Session
from seglog_protocol import errors
from seglog_protocol.access import CLUSTER, Kind, Operation, PatternType, Permission, Rule, Rules
from tests.unit.broker.listeners.real_broker import open_session, real_broker

READ_A: Final = Rule(Kind.TOPIC, PatternType.LITERAL, "a", "User:ANONYMOUS", "*", Operation.READ, Permission.ALLOW)
SWITCH: Final = f"authorizer.class.name={AUTHORIZERS[0]}"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with real_broker(SWITCH, "super.users=User:admin", topics=()) as broker:
        yield broker


@pytest.fixture
def session(broker: Broker) -> Session:
    return open_session(broker)


async def test_a_decision_is_made_once_for_all_sessions_of_a_principal_and_address_until_rules_change(
    broker: Broker, session: Session
) -> None:
    assert not session.allows(Operation.READ, Kind.TOPIC, "a")
    broker.authority.adopt(Rules.of([READ_A]))
    for each in (session, open_session(broker)):
        assert each.allows(Operation.READ, Kind.TOPIC, "a")
        assert each.allows(Operation.READ, Kind.TOPIC, None)
        broker.authority.rules = Rules()  # unnoticed: nobody is asked again
    session.principal = "User:bob"
    assert not session.allows(Operation.READ, Kind.TOPIC, "a")
    broker.authority.adopt(Rules())
    assert not each.allows(Operation.READ, Kind.TOPIC, "a")
    assert not each.allows(Operation.READ, Kind.TOPIC, None)


async def test_the_switch_counts_at_once(broker: Broker, session: Session) -> None:
    for switch, may in ((AUTHORIZERS[0], False), ("", True), (AUTHORIZERS[1], False)):
        broker.reconfigure(dataclasses.replace(broker.live_config.static, authorizer_class_name=switch))
        assert session.allows(Operation.READ, Kind.TOPIC, "a") is may


async def test_a_refusal_is_counted_and_logged_and_what_is_left_out_is_not(broker: Broker, session: Session) -> None:
    deny = READ_A._replace(permission=Permission.DENY)
    broker.authority.adopt(Rules.of([deny]))
    with capture_logs() as logged:
        assert not session.sees(Operation.READ, Kind.TOPIC, "a")
        assert session.operations(Kind.TOPIC, "a") == 0
        assert (logged, broker.metrics.authorization_refusals) == ([], 0)
        for kind, name in ((Kind.TOPIC, "a"), (Kind.TOPIC, "a"), (Kind.TOPIC, None), (Kind.GROUP, "g" * 32_000)):
            assert not session.allows(Operation.READ, kind, name)
    assert broker.metrics.authorization_refusals == 4
    fields = ("principal", "operation", "resource", "name", "rule")
    assert [tuple(line[field] for field in fields) for line in logged] == [
        ("User:ANONYMOUS", "READ", "TOPIC", "a", str(deny)),
        ("User:ANONYMOUS", "READ", "TOPIC", "*", "no rule allows it"),
        ("User:ANONYMOUS", "READ", "GROUP", "g" * 249, "no rule allows it"),
    ]


async def test_what_rules_would_refuse_is_noted_and_told_to_administrators() -> None:
    async with real_broker("super.users=User:admin", topics=()) as broker:
        session = open_session(broker)
        assert session.sees(Operation.DESCRIBE, Kind.TOPIC, "a")
        assert session.allows(Operation.READ, Kind.TOPIC, "a")
        for principal, told in (("User:ANONYMOUS", []), ("User:admin", [("User:ANONYMOUS", "READ", "TOPIC", "a")])):
            access = (await broker.describer.describe(principal)).access
            assert access is not None
            assert (access.enforced, access.rules) == (False, 0)
            found = [(each.principal, each.operation, each.resource, each.name) for each in access.refused_if_enforced]
            assert found == told


async def test_a_stranger_is_told_what_is_refused_and_no_rule(broker: Broker, session: Session) -> None:
    for kind, name, error in (
        (Kind.TOPIC, "a", errors.TopicAuthorizationError),
        (Kind.GROUP, "a", errors.GroupAuthorizationError),
        (Kind.TRANSACTIONAL_ID, "a", errors.TransactionalIdAuthorizationError),
        (Kind.CLUSTER, CLUSTER, errors.AuthorizationError),
    ):
        broker.authority.adopt(Rules.of([READ_A._replace(kind=kind, name=name, permission=Permission.DENY)]))
        refusal = session.refusal(Operation.READ, kind, name)
        assert type(refusal) is error
        assert f"User:ANONYMOUS may not READ {kind.name} {name}" in refusal.message
        assert "DENY" not in refusal.message


async def test_the_operations_of_a_resource_are_bits(broker: Broker, session: Session) -> None:
    broker.authority.adopt(Rules.of([READ_A]))
    assert session.operations(Kind.TOPIC, "a") == 1 << Operation.READ | 1 << Operation.DESCRIBE
