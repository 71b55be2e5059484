"""Quotas of clients, as Kafka has them: whom they are for, which there are, and what no client can have.

An entity is a user, a client id, both, or an address of a network; instead of each of these names it may have the
default, which is for all that have no quota of their own.
"""

import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

PartT = TypeVar("PartT")

Entity = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of the types. The name None is the default."""

Quotas = Mapping[str, float]
"""Values by key."""

ClientQuotas = Mapping[Entity, Quotas]
"""All that there are."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (CLIENT_ID, IP, USER)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        PRODUCER_BYTE_RATE: "bytes a second that are produced",
        CONSUMER_BYTE_RATE: "bytes a second that are read",
        REQUEST_PERCENTAGE: "percent of the broker's loop; 100 is all of it",
        CONTROLLER_MUTATION_RATE: "partitions a second that are made or deleted",
        CONNECTION_CREATION_RATE: "connections a second, for addresses alone",
    }
)
"""The quotas, and what each of them limits."""

_WHOLE_MAX: Final[Mapping[str, tuple[float, str]]] = MappingProxyType(
    {
        PRODUCER_BYTE_RATE: (float(2**63), "a LONG"),
        CONSUMER_BYTE_RATE: (float(2**63), "a LONG"),
        CONNECTION_CREATION_RATE: (float(2**31 - 1), "an INT"),
    }
)
"""The largest values of those that are whole numbers, and the kind that Kafka calls them."""

NAME_CHARACTERS_MAX: Final = 255
"""The most characters of a user or a client id with a quota."""

_FRACTION_MAX: Final = 1e-6  # of a whole number, as in Kafka


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity with these names by type."""
    return tuple(sorted(names.items()))


def entity_in(parts: Iterable[Any]) -> Entity:
    """The entity in a message of Kafka's; a type that stands there twice has its last name."""
    return entity_of({part.entity_type: part.entity_name for part in parts})


def parts_of(part: Callable[..., PartT], entity: Entity) -> list[PartT]:
    """An entity for a message of Kafka's, whose class of such parts is ``part``."""
    return [part(entity_type=kind, entity_name=name) for kind, name in entity]


def entity_text(entity: Entity) -> str:
    """An entity for people, as ``user ann, default client-id``."""
    return ", ".join([f"default {kind}" if name is None else f"{kind} {name}" for kind, name in reversed(entity)])


def check_entity(entity: Entity) -> None:
    """Raise ValueError, with Kafka's sentence, for what can have no quotas."""
    for kind, name in entity:
        if kind not in TYPES:
            raise ValueError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise ValueError(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_CHARACTERS_MAX:
            raise ValueError(f"{kind} has more than {NAME_CHARACTERS_MAX} characters")
    names = dict(entity)
    if not names:
        raise ValueError("Invalid empty client quota entity")
    if IP in names and len(names) > 1:
        raise ValueError("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    if address := names.get(IP):
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(f"{address} is not a valid IP or resolvable host.") from None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise ValueError, with Kafka's sentence, for a quota that the entity cannot have."""
    if key not in KEYS or (key == CONNECTION_CREATION_RATE) != (entity[0][0] == IP):
        raise ValueError(f"Invalid configuration key {key[:60]}")
    if not math.isfinite(value):
        raise ValueError(f"Quota {key} must be a finite number")
    if value <= 0:
        raise ValueError(f"Quota {key} must be greater than 0")
    if key in _WHOLE_MAX:
        largest, kind = _WHOLE_MAX[key]
        if value > largest:
            raise ValueError(f"Proposed value for {key} is too large for {kind}.")
        if value % 1 > _FRACTION_MAX:
            raise ValueError(f"{key} cannot be a fractional value.")
