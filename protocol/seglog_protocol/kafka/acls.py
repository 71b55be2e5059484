"""Rules of access in Kafka's messages: their fields come last, in one order, whatever they are called."""

from collections.abc import Callable
from typing import Final, TypeVar

from seglog_protocol.access import Rule, RuleFilter, told
from seglog_protocol.kafka.structs import Struct

RuleT = TypeVar("RuleT")
StructT = TypeVar("StructT", bound=Struct)

_FIELDS: Final = len(Rule._fields)


def with_rule(cls: type[StructT], rule: Rule | RuleFilter) -> StructT:
    """The struct of a rule or filter, with as much of it as there are fields for."""
    kind, pattern, name, *entry = rule
    return cls(**dict(zip(reversed(cls.__slots__), reversed((kind, name, pattern, *entry)), strict=False)))


def rule_of(made: Callable[..., RuleT], *structs: Struct) -> RuleT:
    """The rule, or filter, in a struct, or in that of a resource and one of its ``acls``."""
    values = [getattr(struct, field) for struct in structs for field in struct.__slots__ if field != "acls"]
    kind, name, pattern, *entry = values[-_FIELDS:]
    return told(made, kind, pattern, name, *entry)
