"""Who may do what: with rules in force and without, by super.users, and where no rule is for a resource."""

from typing import Any, Final

from seglog_broker.config import BrokerConfig
from seglog_broker.config.broker_config import AUTHORIZERS
from seglog_broker.security.authority import (
    ADMINISTRATIVE,
    DECISIONS_MAX,
    NOTED_MAX,
    QUIET_MS,
    TOLD_OF_ONE_MAX,
    Authority,
    Use,
)
from seglog_broker.security.principals import ANONYMOUS
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule, Rules
from tests.support import each_case

LOGIN: Final = "SASL_PLAINTEXT://127.0.0.1:9092"
ANN: Final = "User:ann"
HERE: Final = "10.0.0.1"
READ_A: Final = Rule(Kind.TOPIC, PatternType.LITERAL, "a", ANN, "*", Operation.READ, Permission.ALLOW)


def config(**values: Any) -> BrokerConfig:
    return BrokerConfig(**values)


def enforcing(*rules: Rule, **values: Any) -> Authority:
    return Authority(config(authorizer_class_name=AUTHORIZERS[0], **values), Rules.of(rules))


@each_case(
    ("values", "principal", "may"),
    [
        ({}, ANONYMOUS, True),
        ({"listeners": (LOGIN,)}, ANONYMOUS, False),
        ({"listeners": (LOGIN,)}, "User:alice", False),
        ({"seglog_listen": "SASL_PLAINTEXT://127.0.0.1:9192"}, ANONYMOUS, False),
        ({"listeners": ("SSL://127.0.0.1:9092",)}, ANONYMOUS, True),
        ({"listeners": ("SSL://127.0.0.1:9092",), "ssl_client_auth": "requested"}, ANONYMOUS, True),
        ({"listeners": ("SSL://127.0.0.1:9092",), "ssl_client_auth": "required"}, ANONYMOUS, False),
        ({"listeners": (LOGIN,), "super_users": ("User:alice",)}, "User:alice", True),
        ({"listeners": (LOGIN,), "super_users": ("User:alice",)}, "User:alic", False),
        ({"listeners": (LOGIN,), "super_users": ("User:alice",)}, ANONYMOUS, False),
        ({"super_users": ("User:alice",)}, ANONYMOUS, False),
        ({"listeners": (LOGIN,), "super_users": (ANONYMOUS,)}, ANONYMOUS, True),
    ],
)
def test_who_administers(values: dict[str, Any], principal: str, may: bool) -> None:
    assert Authority(config(**values), Rules()).administers(principal) is may


def test_without_rules_in_force_all_but_changes_are_for_everyone() -> None:
    authority = Authority(config(super_users=("User:admin",)), Rules.of([READ_A._replace(permission=Permission.DENY)]))
    for operation in Operation:
        may = operation not in ADMINISTRATIVE
        assert authority.allows(ANN, HERE, operation, Kind.TOPIC, "a") is may
        assert authority.allows("User:admin", HERE, operation, Kind.TOPIC, "a")
    assert not authority.decide(ANN, HERE, Operation.READ, Kind.TOPIC, "a", by_rules=True).is_allowed


def test_with_rules_in_force_they_and_super_users_decide_and_nothing_else_is_open() -> None:
    authority = enforcing()
    assert not authority.administers(ANONYMOUS)
    assert not authority.allows(ANONYMOUS, HERE, Operation.DESCRIBE, Kind.TOPIC, "a")
    authority = enforcing(READ_A._replace(permission=Permission.DENY), super_users=(ANN,))
    for name in ("a", None):
        assert authority.allows(ANN, HERE, Operation.READ, Kind.TOPIC, name)


def test_what_no_rule_is_for_may_be_open() -> None:
    rule = READ_A._replace(principal="User:bob", operation=Operation.WRITE)
    for is_open in (False, True):
        authority = enforcing(rule, allow_everyone_if_no_acl_found=is_open)
        may = [authority.allows(ANN, HERE, Operation.READ, Kind.TOPIC, name) for name in ("a", "b", None)]
        assert may == [False, is_open, is_open]


def test_any_resource_begins_with_the_name_that_kafka_asks_for() -> None:
    """A rule that implies the operation, for a prefix of that name, allows it; for another prefix it does not."""
    for name, may in (("hard", True), ("soft", False)):
        authority = enforcing(READ_A._replace(pattern=PatternType.PREFIXED, name=name))
        assert authority.allows(ANN, HERE, Operation.READ, Kind.TOPIC, None)
        assert authority.allows(ANN, HERE, Operation.DESCRIBE, Kind.TOPIC, None) is may


@each_case(
    ("values", "rises"),
    [
        ({}, False),
        ({"num_partitions": 7}, False),
        ({"super_users": (ANN,)}, True),
        ({"authorizer_class_name": ""}, True),
        ({"allow_everyone_if_no_acl_found": True}, True),
    ],
)
def test_the_epoch_rises_with_what_decisions_go_by(values: dict[str, Any], rises: bool) -> None:
    authority = enforcing()
    authority.reconfigure(config(**{"authorizer_class_name": AUTHORIZERS[0], **values}))
    assert authority.epoch == rises


def test_uses_that_rules_would_refuse_are_known_until_a_rule_allows_them() -> None:
    authority = Authority(config(super_users=("User:admin",)), Rules())
    read, write = Use(ANN, Operation.READ, Kind.TOPIC, "a"), Use(ANN, Operation.WRITE, Kind.TOPIC, None)
    for at, use in enumerate((read, write, read._replace(principal="User:admin"))):
        assert authority.decided((use.principal, HERE, *use[1:]), at)
    assert authority.refused_if_enforced() == [(write, 1), (read, 0)]
    assert authority.decided((ANN, "10.0.0.2", *read[1:]), 4)
    assert authority.refused_if_enforced() == [(read, 4), (write, 1)]
    authority.adopt(Rules.of([READ_A]))
    assert authority.refused_if_enforced() == [(write, 1)]


def test_a_refusal_that_is_repeated_is_told_once_a_minute_with_how_often() -> None:
    authority, use = enforcing(), Use(ANN, Operation.READ, Kind.TOPIC, "a")
    moments = [0, 1, 2, QUIET_MS - 1, QUIET_MS, QUIET_MS + 1, 2 * QUIET_MS]
    assert [authority.note_refusal(use, at) for at in moments] == [0, None, None, None, 3, None, 1]
    assert authority.note_refusal(use._replace(name="b"), 2 * QUIET_MS) == 0


def test_decisions_refusals_and_uses_that_are_kept_are_so_many() -> None:
    authority = enforcing()
    for number in range(DECISIONS_MAX + 2):
        authority.decided((ANN, HERE, Operation.READ, Kind.TOPIC, f"t{number}"))
    assert len(authority.decisions) == 2
    authority.decided((ANN, HERE, Operation.READ, Kind.GROUP, "g" * 32_000))
    assert len(authority.decisions) == 2
    authority.reconfigure(config(super_users=("User:admin",)))
    use = Use(ANN, Operation.READ, Kind.TOPIC, "")
    for number in range(NOTED_MAX + 2):
        use = Use(f"User:{number // TOLD_OF_ONE_MAX}", Operation.READ, Kind.TOPIC, f"t{number}")
        authority.decided((use.principal, HERE, *use[1:]), number)
        assert authority.note_refusal(use, 0) == (0 if number < NOTED_MAX else None)
    assert [at for _, at in authority.refused_if_enforced()] == list(range(NOTED_MAX + 1, 1, -1))
    assert len(authority._told) == NOTED_MAX
    assert authority.note_refusal(use, QUIET_MS) == 0


def test_whoever_asks_for_much_silences_nobody_else() -> None:
    authority, use = enforcing(), Use(ANN, Operation.READ, Kind.TOPIC, "")
    told = [authority.note_refusal(use._replace(name=f"t{number}"), 0) for number in range(2 * TOLD_OF_ONE_MAX)]
    assert told == [0] * TOLD_OF_ONE_MAX + [None] * TOLD_OF_ONE_MAX
    assert authority.note_refusal(use._replace(principal="User:bob"), 0) == 0
    assert authority.note_refusal(use._replace(name="later"), QUIET_MS) == 0
