"""Rules of access: decisions beside an evaluator that goes through all rules, and what a rule may be."""

from collections.abc import Iterable
from functools import partial
from ipaddress import ip_address, ip_network
from itertools import product, starmap
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_protocol.access import (
    ANY_NAME,
    ANY_USER,
    CLUSTER,
    Kind,
    Operation,
    PatternType,
    Permission,
    Rule,
    RuleFilter,
    Rules,
)
from seglog_protocol.steps import finished
from tests.support import calls_of, each_case, examples

ANN: Final = "User:ann"
BOB: Final = "User:bob"
OTHERS: Final = "User:others"
HERE: Final = "10.0.0.1"
IMPLIED: Final = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

NAMES = st.sampled_from(["a", "ab", "abc", "b", "*", "h", "hardcode"])
PRINCIPALS = st.sampled_from([ANN, BOB, ANY_USER])
HOSTS = st.sampled_from([HERE, "10.0.0.2", "*", "10.0.0.0/31", "::1", "0:0:0:0:0:0:0:1", "::/0"])
KINDS = st.sampled_from([Kind.TOPIC, Kind.GROUP])
OPERATIONS = st.sampled_from([each for each in Operation if each > Operation.ANY])
PERMISSIONS = st.sampled_from([Permission.DENY, Permission.ALLOW])
RULES = st.builds(
    Rule, KINDS, st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]), NAMES, PRINCIPALS, HOSTS, OPERATIONS,
    PERMISSIONS,
)  # fmt: skip
CLIENTS = st.sampled_from([HERE, "10.0.0.2", "::1", "gone"])


def allow(operation: Operation = Operation.READ, name: str = "a", principal: str = ANN, host: str = "*") -> Rule:
    return Rule(Kind.TOPIC, PatternType.LITERAL, name, principal, host, operation, Permission.ALLOW)


def is_from(rule: Rule, host: str) -> bool:
    try:
        return rule.host in ("*", host) or ip_address(host) in ip_network(rule.host)
    except ValueError:
        return False


def decided(rules: Iterable[Rule], kind: Kind, name: str, operation: Operation, *, is_open: bool) -> bool:
    """``Rules.decide`` by a look at all rules, in which clients but the one that asks are ``OTHERS``."""
    of_resource = [rule for rule in rules if RuleFilter(kind, PatternType.MATCH, name).has(rule)]
    of_client = [rule for rule in of_resource if rule.principal != OTHERS]
    named = [rule for rule in of_client if rule.operation in (operation, Operation.ALL)]
    implied = [rule for rule in of_client if rule.operation in IMPLIED.get(operation, ())]
    if any(rule.permission is Permission.DENY for rule in named):
        return False
    return any(rule.permission is Permission.ALLOW for rule in named + implied) or (is_open and not of_resource)


def decided_any(rules: Iterable[Rule], kind: Kind, operation: Operation) -> bool:
    """``Rules.decide_any`` in the same way."""
    named = {Permission.DENY: set[tuple[object, str]](), Permission.ALLOW: set[tuple[object, str]]()}
    for rule in rules:
        if rule.kind is kind and rule.principal != OTHERS and rule.operation in (operation, Operation.ALL):
            named[rule.permission].add((rule.pattern, rule.name))
    denied, allowed = named.values()
    everything = (PatternType.LITERAL, ANY_NAME)
    if everything in denied or everything in allowed:
        return everything not in denied
    prefixes = tuple(name for pattern, name in denied if pattern is PatternType.PREFIXED)
    return any(not name.startswith(prefixes) for _, name in allowed - denied)


@settings(max_examples=examples(2_000))
@given(*[st.lists(RULES, max_size=8)] * 3, PRINCIPALS, CLIENTS, OPERATIONS, KINDS, NAMES, st.booleans())
def test_decisions_are_those_of_all_rules(
    first: list[Rule],
    added: list[Rule],
    removed: list[Rule],
    principal: str,
    host: str,
    operation: Operation,
    kind: Kind,
    name: str,
    is_open: bool,
) -> None:
    before = Rules.of(first)
    rules = finished(before.changed(added, removed))
    assert (list(before), len(rules)) == (list(dict.fromkeys(first)), len({*rules}))
    assert {*rules} == ({*first} - {*removed}) | {*added}
    of_client = [
        rule._replace(
            principal=principal if rule.principal in (principal, ANY_USER) and is_from(rule, host) else OTHERS
        )
        for rule in rules
    ]
    decision = rules.decide(principal, host, operation, kind, name, is_open=is_open)
    assert decision.is_allowed == decided(of_client, kind, name, operation, is_open=is_open)
    if isinstance(decision.why, Rule):
        assert decision.is_allowed == (decision.why.permission is Permission.ALLOW)
    assert rules.decide_any(principal, host, operation, kind) == decided_any(of_client, kind, operation)


def test_filters_find_what_a_look_at_all_rules_finds() -> None:
    names = ("a", "ab", "*", None)
    rules = [allow(name=name, principal=who) for name in names[:3] for who in (ANN, BOB)]
    for wanted in starmap(RuleFilter, product((Kind.ANY, *Kind), PatternType, names, (None, ANN))):
        assert {*finished(Rules.of(rules).found(wanted))} == {rule for rule in rules if wanted.has(rule)}


@each_case(
    ("wanted", "has"),
    [
        (RuleFilter(), True),
        (RuleFilter(Kind.GROUP), False),
        (RuleFilter(name="orders"), True),
        (RuleFilter(name="orders-1"), False),
        (RuleFilter(pattern=PatternType.MATCH, name="orders-1"), True),
        (RuleFilter(pattern=PatternType.MATCH, name="order"), False),
        (RuleFilter(pattern=PatternType.LITERAL, name="orders"), False),
        (RuleFilter(principal=ANY_USER), False),
        (RuleFilter(operation=Operation.ALL), False),
    ],
)
def test_a_filter_names_resources_as_kafkas_does(wanted: RuleFilter, has: bool) -> None:
    rule = Rule(Kind.TOPIC, PatternType.PREFIXED, "orders", ANN, "*", Operation.READ, Permission.ALLOW)
    assert wanted.has(rule) is has


@each_case(
    ("rule", "why"),
    [
        (allow(), None),
        (allow()._replace(host="10.0.0.0/8"), None),
        (allow()._replace(host="::1/128"), None),
        (allow()._replace(host="a name"), None),
        (allow()._replace(kind=Kind.CLUSTER), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (allow()._replace(kind=Kind.CLUSTER, name=CLUSTER), None),
        (allow()._replace(name=""), "Invalid empty resource name"),
        (allow()._replace(kind=Kind(99)), "Invalid resourceType UNKNOWN"),
        (allow()._replace(pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (allow()._replace(operation=Operation.ANY), "Invalid operation ANY"),
        (allow()._replace(permission=Permission(-1)), "Invalid permissionType UNKNOWN"),
        (allow()._replace(principal="ann"), ("Could not parse principal from `ann` (no colon is present separating "
         "the principal type from the principal name)")),
        (allow()._replace(host=""), "Host pattern cannot be null or empty"),
        (allow()._replace(host="10.0.0.0/33"), "Invalid CIDR notation '10.0.0.0/33': Value [33] not in range [0,32]"),
        (
            allow()._replace(host="::/129"),
            "Invalid CIDR notation '::/129': Could not parse [::/129] - prefix length must be between 0 and 128",
        ),
        (allow()._replace(host="10.0.0/8"), "Invalid CIDR notation '10.0.0/8': Could not parse [10.0.0/8]"),
        (
            allow()._replace(host=f"::/{'9' * 5000}"),
            f"Invalid CIDR notation '::/{'9' * 5000}': Could not parse [::/{'9' * 5000}]",
        ),
    ],
)  # fmt: skip
def test_impossible_rules_are_named_in_kafkas_words(rule: Rule, why: str | None) -> None:
    assert rule.why_impossible() == why


def test_a_network_of_a_scope_is_that_network() -> None:
    rules = Rules.of([allow(host="fe80::%eth0/10")])
    for host, may in (("fe80:0:0:0:0:0:0:1%eth0", True), ("0:0:0:0:0:0:0:1", False)):
        assert rules.decide(ANN, host, Operation.READ, Kind.TOPIC, "a").is_allowed is may


def test_a_rule_is_told_in_a_line() -> None:
    rule = Rule(Kind.TOPIC, PatternType.PREFIXED, "orders", ANN, HERE, Operation.READ, Permission.DENY)
    assert [str(rule), str(allow())] == [
        "DENY READ on TOPIC orders* for User:ann from 10.0.0.1", "ALLOW READ on TOPIC a for User:ann",
    ]  # fmt: skip


def test_a_decision_looks_at_none_of_the_other_rules() -> None:
    others = [allow(name=f"topic-{number}") for number in range(1_000)]
    others += [allow(principal=f"User:{number}") for number in range(1_000)]
    few, many = (
        calls_of(partial(Rules.of([*some, allow()]).decide, ANN, HERE, Operation.READ, Kind.TOPIC, "a"))
        for some in ([], others)
    )
    assert few == many
