"""Quotas of clients: whom they are for, which there are, which of them counts for a client, and who shares its bucket.

An entity is a user, a client id, both, or an address of a network; instead of each of these names it may have the
default, which is for all that have no quota of their own.
"""

import ipaddress
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

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

_WHOLE_MAX: Final[Mapping[str, tuple[float, str]]] = MappingProxyType(
    {
        PRODUCER_BYTE_RATE: (float(2**63), "a LONG"),
        CONSUMER_BYTE_RATE: (float(2**63), "a LONG"),
        CONNECTION_CREATION_RATE: (float(2**31 - 1), "an INT"),
    }
)
"""The largest values of those that are whole numbers, and the kind that Kafka calls them."""

KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""Of users and client ids."""

ENTITIES_MAX: Final = 5_000
"""The most entities with quotas: a new quota writes the file of all."""

NAME_CHARACTERS_MAX: Final = 255
"""The most characters of a user or a client id with a quota."""

_FRACTION_MAX: Final = 1e-6  # of a whole number, as in Kafka


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity with these names by type."""
    return tuple(sorted(names.items()))


def check_entity(names: Mapping[str, str | None]) -> None:
    """Raise ValueError, with Kafka's sentence, for what can have no quotas."""
    for kind, name in names.items():
        if kind not in TYPES:
            raise ValueError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise ValueError(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_CHARACTERS_MAX:
            raise ValueError(f"{kind} has more than {NAME_CHARACTERS_MAX} characters")
    if not names:
        raise ValueError("Invalid empty client quota entity")
    if IP not in names:
        return
    if len(names) > 1:
        raise ValueError("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    address = names[IP]
    try:
        if address is not None:
            ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{address} is not a valid IP or resolvable host.") from None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise ValueError, with Kafka's sentence, for a quota that the entity cannot have."""
    if key not in ((CONNECTION_CREATION_RATE,) if entity[0][0] == IP else KEYS):
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


def entity_text(entity: Entity) -> str:
    """An entity for people, as ``user ann, default client-id``."""
    return ", ".join([f"default {kind}" if name is None else f"{kind} {name}" for kind, name in reversed(entity)])


class Limit(NamedTuple):
    """The quota that counts for a client, and the bucket in which it is counted."""

    value: float
    user: str
    """Empty where all users share the bucket."""
    client_id: str
    """Empty where all client ids share it."""


class QuotaTable:
    """The quotas of users and client ids that are in force."""

    def __init__(self, quotas: ClientQuotas) -> None:
        self._of: dict[str, dict[Entity, float]] = {key: {} for key in KEYS}
        self.addresses: dict[str | None, float] = {}
        """Connections a second of each address in its shortest form; under None those of all others."""
        for entity, values in quotas.items():
            for key, value in values.items():
                if key in self._of:
                    self._of[key][entity] = value
                else:
                    ((_, address),) = entity
                    self.addresses[address and str(ipaddress.ip_address(address))] = value
        self.has_any = any(self._of.values())
        """True if any client has one."""
        self.has_times = bool(self._of[REQUEST_PERCENTAGE])
        """True if any client has one of the loop's time."""

    def limit(self, key: str, user: str, client_id: str | None) -> Limit | None:
        """The quota of a kind that counts for a client, the most specific one; None if there is none.

        A client without an id has those of users alone.
        """
        quotas = self._of[key]
        if not quotas:
            return None
        by_user: tuple[Entity, ...] = (((USER, user),), ((USER, None),), ())
        for whose in by_user:
            for ids in (client_id, None) if client_id else ():
                found = quotas.get(((CLIENT_ID, ids), *whose))
                if found is not None:
                    return Limit(found, user if whose else "", client_id or "")
            found = quotas.get(whose) if whose else None
            if found is not None:
                return Limit(found, user, "")
        return None
