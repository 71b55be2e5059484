"""Who asks in the matrix of permissions: principals, and the rules of each, which hold before the first asks.

Names say what somebody has: ``topic_READ`` that alone, on the ruled topics; ``rest_topic_READ`` that, and everything on
resources of other kinds; ``but_topic_READ`` everything but that, which a rule denies.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from seglog_protocol.access import CLUSTER, Kind, Operation, PatternType, Permission

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
DENY, ALLOW = Permission.DENY, Permission.ALLOW


class Ruled(NamedTuple):
    """A kind of resource: its number, which of them the rules of most principals name, and what rules can be about."""

    kind: int
    names: tuple[str, ...]
    operations: tuple[str, ...]


KINDS: Final[Mapping[str, Ruled]] = {
    "topic": Ruled(
        Kind.TOPIC,
        ("orders", "fresh", "doomed", "auto"),
        ("ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    ),
    "group": Ruled(
        Kind.GROUP,
        ("workers", "workers-848", "workers-share", "workers-share-empty", "workers-gone"),
        ("ALL", "READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    ),
    "cluster": Ruled(Kind.CLUSTER, (CLUSTER,), (
        "ALL", "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE",
    )),
    "transactional_id": Ruled(
        Kind.TRANSACTIONAL_ID, ("tx", "tx-open"), ("ALL", "WRITE", "DESCRIBE", "TWO_PHASE_COMMIT")
    ),
}  # fmt: skip
"""The kinds whose resources requests are about; beside the ruled ones of each there are others that nobody is given."""

_TOKENS: Final = {
    "user": Ruled(Kind.USER, ("User:owner",), ("ALL", "CREATE_TOKENS", "DESCRIBE_TOKENS")),
    "delegation_token": Ruled(Kind.DELEGATION_TOKEN, ("token",), ("ALL", "DESCRIBE")),
}

_PREFIXES: Final = {"topic": "ord", "group": "workers", "transactional_id": "t"}


class Rule(NamedTuple):
    """A creation of CreateAcls but for the principal."""

    resource_type: int
    resource_name: str
    operation: int
    permission_type: int = ALLOW
    resource_pattern_type: int = LITERAL
    host: str = "*"


def _on(kind: str, operation: str = "ALL", permission: int = ALLOW, host: str = "*") -> list[Rule]:
    """An operation on all ruled resources of a kind."""
    ruled = {**KINDS, **_TOKENS}[kind]
    return [Rule(ruled.kind, name, Operation[operation], permission, host=host) for name in ruled.names]


def _everything(but: str = "", host: str = "*") -> list[Rule]:
    """Every operation on all ruled resources, but for a kind."""
    return [rule for kind in KINDS if kind != but for rule in _on(kind, host=host)]


def _everywhere(permission: int = ALLOW, host: str = "*") -> list[Rule]:
    """Every operation on whatever there is."""
    kinds = (ruled.kind for ruled in KINDS.values())
    return [
        Rule(kind, CLUSTER if kind == Kind.CLUSTER else "*", Operation.ALL, permission, host=host) for kind in kinds
    ]


def _prefixed(permission: int = ALLOW) -> list[Rule]:
    return [Rule(KINDS[kind].kind, prefix, Operation.ALL, permission, PREFIXED) for kind, prefix in _PREFIXES.items()]


def _write(name: str, permission: int = ALLOW, pattern_type: int = LITERAL) -> Rule:
    return Rule(Kind.TOPIC, name, Operation.WRITE, permission, pattern_type)


def _principals() -> Iterator[tuple[str, list[Rule]]]:
    yield "none", []
    for kind, ruled in {**KINDS, **_TOKENS}.items():
        for operation in ruled.operations:
            yield f"{kind}_{operation}", _on(kind, operation)
    for kind, ruled in KINDS.items():
        for operation in ruled.operations[1:]:
            yield f"rest_{kind}_{operation}", _everything(kind) + _on(kind, operation)
            yield f"but_{kind}_{operation}", _everything() + _on(kind, operation, DENY)
        yield f"but_{kind}", _everything() + _on(kind, permission=DENY)
    yield "everything", _everything()
    yield "prefixed", _prefixed()
    yield "prefix_denied", _everything() + _prefixed(DENY)
    yield "everywhere", _everywhere()
    yield "everywhere_but_ruled", _everywhere() + [rule._replace(permission_type=DENY) for rule in _everything()]
    yield "denied_everywhere", _everything() + _everywhere(DENY)
    yield "here", _everything(host="127.0.0.1")
    yield "elsewhere", _everything(host="10.1.2.3")
    yield "everywhere_but_here", _everywhere() + _everywhere(DENY, "127.0.0.1")
    yield "everywhere_but_elsewhere", _everywhere() + _everywhere(DENY, "10.1.2.3")
    # Whoever may write to any topic gets an id of a producer: what "any" means where rules deny.
    yield "writes_within_denied_prefix", [_write("orders"), _write("or", DENY, PREFIXED)]
    yield "writes_prefix_beside_denied", [_write("or", pattern_type=PREFIXED), _write("orders", DENY)]
    yield "writes_prefix_within_denied", [_write("orde", pattern_type=PREFIXED), _write("or", DENY, PREFIXED)]
    yield "writes_what_is_denied", [_write("orders"), _write("orders", DENY)]
    yield "writes_and_all_denied", [_write("orders"), _write("*", DENY)]
    yield "writes_all_but_orders", [_write("*"), _write("orders", DENY)]
    yield "ANONYMOUS", _on("topic", "READ") + _on("group", "DESCRIBE")
    yield "admin", []


PRINCIPALS: Final[Mapping[str, list[Rule]]] = dict(_principals())
"""Rules by the name of who has them; ``admin`` is a super user, and ANONYMOUS comes without a login."""

WITHOUT_CLUSTER: Final[Mapping[str, list[Rule]]] = {
    "none": [],
    "topic_READ": _on("topic", "READ"),
    "topic_denied": _on("topic", permission=DENY),
    "group_DELETE": _on("group", "DELETE"),
    "transactional_id_WRITE": _on("transactional_id", "WRITE"),
    "ANONYMOUS": [],
}
"""The same where whatever no rule is about is allowed to everybody: none is about the cluster."""

EVERYBODY: Final = (Rule(Kind.TOPIC, "public", Operation.DESCRIBE), Rule(Kind.GROUP, "public", Operation.READ))
"""Rules of ``User:*``."""

DESCRIBED: Final = Rule(Kind.TOPIC, "described", Operation.READ)
"""The rule of ``User:described``, for whom it is there: those who look."""
