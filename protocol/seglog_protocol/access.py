"""Rules of access (ACLs), as Kafka has them: who may do what, from where, with which resources.

A rule is for one kind of resource, and for a name, a prefix of names, or all names (``*``). A rule that denies wins
over all that allow. Super users, and what holds while rules are not in force, are the broker's (``authority.py``).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from itertools import chain
from typing import Any, Final, NamedTuple, Self, TypeVar

from seglog_protocol.steps import Pace, Steps, finished

CLUSTER: Final = "kafka-cluster"
"""The name of the only resource of kind CLUSTER."""

ANY_NAME: Final = "*"
"""The name of a literal rule for all resources of a kind, and the host of one for all hosts."""

ANY_USER: Final = "User:*"

ANY_RESOURCE: Final = "hardcode"
"""Where any resource will do, Kafka asks for this name first: what rules let a client do with it counts."""

_PREFIX_DIGITS_MAX: Final = 3
_SCOPE: Final = re.compile("%[^/]*")

RuleT = TypeVar("RuleT")


class _Numbered(IntEnum):
    """Kafka's numbers, which may be told by their names, too; what is neither is UNKNOWN, as in Kafka."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls.__members__.get(str(value), cls(0))


class Kind(_Numbered):
    """Kinds of resources, with Kafka's numbers (ResourceType). Numbers without a name are UNKNOWN."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Numbered):
    """Kinds of names of rules, with Kafka's numbers. A filter may have any, a rule LITERAL and PREFIXED alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Numbered):
    """Operations, with Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Numbered):
    """Effects of a rule, with Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Final[Mapping[Kind, int]] = {
    Kind.TOPIC: 3576,
    Kind.GROUP: 3400,
    Kind.CLUSTER: 8096,
    Kind.TRANSACTIONAL_ID: 33040,
    Kind.DELEGATION_TOKEN: 256,
    Kind.USER: 24576,
}
"""The operations that there are with the resources of a kind, a bit for each number, as answers have them."""

_IMPLYING: Final[Mapping[Operation, Collection[Operation]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""The operations whose permission is one for another, too; what denies that names it, or ALL."""


class Rule(NamedTuple):
    """One rule: ``permission`` for ``principal`` from ``host`` to do ``operation`` with the resources of a pattern.

    ``host`` is an address, a network (CIDR), or ``*``; ``principal`` is ``User:NAME`` or ``User:*``.
    """

    kind: Kind
    pattern: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def is_for(self, name: str) -> bool:
        """True if it is for the resource of its kind that has this name."""
        return name.startswith(self.name) if self.pattern is PatternType.PREFIXED else self.name in (name, ANY_NAME)

    @property
    def shown_name(self) -> str:
        """The name, with ``*`` behind the beginning of names."""
        return f"{self.name}{ANY_NAME}" if self.pattern is PatternType.PREFIXED else self.name

    def __str__(self) -> str:
        """The rule in a line, for logs and people."""
        return (
            f"{self.permission.name} {self.operation.name} on {self.kind.name} {self.shown_name} for {self.principal}"
            f"{'' if self.host == ANY_NAME else f' from {self.host}'}"
        )

    def why_impossible(self) -> str | None:
        """Why there can be no such rule, in Kafka's words; None if there can."""
        if self.kind is Kind.CLUSTER and self.name != CLUSTER:
            return f"The only valid name for the CLUSTER resource is {CLUSTER}"
        if not self.name:
            return "Invalid empty resource name"
        if self.kind in (Kind.UNKNOWN, Kind.ANY):
            return f"Invalid resourceType {self.kind.name}"
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            return f"Invalid patternType {self.pattern.name}"
        if self.operation in (Operation.UNKNOWN, Operation.ANY):
            return f"Invalid operation {self.operation.name}"
        if self.permission not in (Permission.DENY, Permission.ALLOW):
            return f"Invalid permissionType {self.permission.name}"
        if ":" not in self.principal:
            return (
                f"Could not parse principal from `{self.principal}` (no colon is present separating the principal type "
                "from the principal name)"
            )
        if not self.host:
            return "Host pattern cannot be null or empty"
        problem = _why_no_network(self.host) if "/" in self.host else None
        return None if problem is None else f"Invalid CIDR notation '{self.host}': {problem}"


class RuleFilter(NamedTuple):
    """Which rules are asked for; None and ANY stand for all. MATCH asks for all that are for a resource ``name``."""

    kind: Kind = Kind.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def why_impossible(self) -> str | None:
        """Why nothing can be found by it, in Kafka's words; None if something can."""
        if self.kind is Kind.UNKNOWN or self.pattern is PatternType.UNKNOWN:
            return "Unknown patternFilter."
        if self.operation is Operation.UNKNOWN or self.permission is Permission.UNKNOWN:
            return "Unknown entryFilter."
        return None

    def has(self, rule: Rule) -> bool:
        """True if a rule is one of those asked for."""
        is_match = self.pattern is PatternType.MATCH
        return (
            self.kind in (Kind.ANY, rule.kind)
            and (is_match or self.pattern in (PatternType.ANY, rule.pattern))
            and (self.name is None or self.name == rule.name or (is_match and rule.is_for(self.name)))
            and (self.principal is None or self.principal == rule.principal)
            and (self.host is None or self.host == rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )


def told(made: Callable[..., RuleT], *values: Any) -> RuleT:
    """The rule, or filter, that is told by numbers, as in Kafka's messages, or by names, as in files."""
    kind, pattern, name, principal, host, operation, permission = values
    return made(Kind(kind), PatternType(pattern), name, principal, host, Operation(operation), Permission(permission))


NO_RULE: Final = "no rule allows it"
UNRULED: Final = "no rule is for the resource, and allow.everyone.if.no.acl.found is true"
ABOVE_RULES: Final = "it is one of super.users, which no rule stops"
"""Reasons of decisions."""


class Decision(NamedTuple):
    """The answer of rules to one operation."""

    is_allowed: bool
    why: Rule | str
    """The rule that decided, or why none did."""


_Pattern = tuple[Kind, PatternType, str]


class Rules:
    """Rules, found by resource and principal; never changed: ``changed`` makes others.

    A decision takes a look at one entry for the name, one for each length that prefixes have, and one for all names.
    """

    __slots__ = ("_kinds", "_lengths", "_patterns", "_rules")

    def __init__(self) -> None:
        """No rules."""
        self._rules: dict[Rule, None] = {}
        self._patterns: dict[_Pattern, dict[str, list[Rule]]] = {}  # by principal
        self._kinds: dict[Kind, dict[str, list[Rule]]] = {}
        self._lengths: dict[Kind, list[int]] = {}  # the lengths of prefixes, ascending

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> "Rules":
        """These rules, made at once."""
        return finished(cls().changed(rules))

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __contains__(self, rule: object) -> bool:
        return rule in self._rules

    def changed(self, added: Iterable[Rule], removed: Iterable[Rule] = ()) -> Steps["Rules"]:
        """These rules without ``removed`` and with ``added``, in steps; what is there already is not added again."""
        gone, made, pace = frozenset(removed), Rules(), Pace()
        lengths: dict[Kind, set[int]] = {}
        for rule in chain((rule for rule in self._rules if rule not in gone), added):
            if rule not in made._rules:
                made._rules[rule] = None
                made._patterns.setdefault(rule[:3], {}).setdefault(rule.principal, []).append(rule)
                made._kinds.setdefault(rule.kind, {}).setdefault(rule.principal, []).append(rule)
                if rule.pattern is PatternType.PREFIXED:
                    lengths.setdefault(rule.kind, set()).add(len(rule.name))
            if pace.is_due():
                yield
        made._lengths = {kind: sorted(found) for kind, found in lengths.items()}
        return made

    def decide(
        self, principal: str, host: str, operation: Operation, kind: Kind, name: str, *, is_open: bool = False
    ) -> Decision:
        """The answer to a client at the address ``host`` that wants to do an operation with the resource ``name``.

        With ``is_open`` everyone may do what is done with a resource that no rule is for.
        """
        allow: Rule | None = None
        for pattern in self._patterns_for(kind, name):
            is_open = False
            for rule in _for_client(self._patterns[pattern], principal, host):
                is_named = rule.operation in (operation, Operation.ALL)
                if rule.permission is Permission.ALLOW:
                    allow = allow or (rule if is_named or rule.operation in _IMPLYING.get(operation, ()) else None)
                elif is_named:
                    return Decision(is_allowed=False, why=rule)
        if is_open:
            return Decision(is_allowed=True, why=UNRULED)
        return Decision(allow is not None, allow or NO_RULE)

    def decide_any(self, principal: str, host: str, operation: Operation, kind: Kind) -> bool:
        """True if rules let a client do an operation with some resource of a kind, as Kafka decides that.

        Rules that imply the operation do not count, and of those that allow it only the ones that no rule which denies
        it covers whole. What ``decide`` says of ``ANY_RESOURCE`` comes before this.
        """
        every = _for_client(self._kinds.get(kind, {}), principal, host)
        named = [rule for rule in every if rule.operation in (operation, Operation.ALL)]
        allowed = {rule[:3] for rule in named if rule.permission is Permission.ALLOW}
        denied = {rule[:3] for rule in named if rule.permission is Permission.DENY}
        everything = kind, PatternType.LITERAL, ANY_NAME
        if everything in denied or everything in allowed:
            return everything not in denied
        covering = {pattern for pattern in denied if pattern[1] is PatternType.PREFIXED}
        return any(covering.isdisjoint(self._patterns_for(kind, name)) for _, _, name in allowed - denied)

    def found(self, wanted: RuleFilter) -> Steps[list[Rule]]:
        """The rules that a filter asks for, in steps."""
        rules: list[Rule] = []
        pace = Pace()
        one = self._patterns.get(wanted[:3])  # type: ignore[arg-type] # None names no pattern
        for rule in self._rules if one is None else chain.from_iterable(one.values()):
            if wanted.has(rule):
                rules.append(rule)
            if pace.is_due():
                yield
        return rules

    def _patterns_for(self, kind: Kind, name: str) -> Iterator[_Pattern]:
        """The patterns of rules that are for a resource."""
        patterns = self._patterns
        pattern = (kind, PatternType.LITERAL, name)
        if pattern in patterns:
            yield pattern
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            pattern = (kind, PatternType.PREFIXED, name[:length])
            if pattern in patterns:
                yield pattern
        pattern = (kind, PatternType.LITERAL, ANY_NAME)
        if name != ANY_NAME and pattern in patterns:
            yield pattern


def _for_client(by_principal: Mapping[str, Sequence[Rule]], principal: str, host: str) -> Iterator[Rule]:
    """The rules that are for a client."""
    for who in (principal, ANY_USER):
        for rule in by_principal.get(who, ()):
            if is_from(rule.host, host):
                yield rule


def is_from(pattern: str, host: str) -> bool:
    """True if a client at the address ``host`` is one that a rule's host stands for."""
    return pattern in (ANY_NAME, host) or (("/" in pattern or ":" in pattern) and _is_within(pattern, host))


@lru_cache(maxsize=4096)
def _is_within(pattern: str, host: str) -> bool:
    """``is_from`` for a network, and for an address of IPv6, which is written in many ways."""
    try:
        return ip_address(host) in ip_network(_SCOPE.sub("", pattern), strict=False)
    except ValueError:
        return False


def _why_no_network(text: str) -> str | None:
    address, _, bits = text.partition("/")
    unclear = f"Could not parse [{text}]"
    try:
        version = ip_address(address).version
    except ValueError:
        return unclear
    if not (bits.isascii() and bits.isdigit() and len(bits) <= _PREFIX_DIGITS_MAX):
        return unclear
    if version == 4:
        return None if int(bits) <= 32 else f"Value [{int(bits)}] not in range [0,32]"
    return None if int(bits) <= 128 else f"{unclear} - prefix length must be between 0 and 128"
