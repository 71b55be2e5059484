"""Permissions and quotas of a Kafka, taken over from its metadata log.

Taken is what differs from what that log had when seglog last looked, which the topic registry keeps: so rules and
quotas that were made here stay, and those that were deleted here do not come back.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from seglog_broker.config.broker_config import AUTHORIZERS
from seglog_broker.config.dynamic_config import ALL_BROKERS, DynamicConfig
from seglog_broker.storage.directory.acls import why_not_kept
from seglog_broker.storage.directory.kafka_metadata import KafkaMetadata
from seglog_broker.texts import counted
from seglog_protocol.access import Rule, told
from seglog_protocol.quotas import Entity, check_entity, check_value, entity_text

AUTHORIZER: Final = "authorizer.class.name"


class Quota(NamedTuple):
    """One value of an entity."""

    entity: Entity
    key: str
    value: float

    def __str__(self) -> str:
        """The quota in a line."""
        return f"{self.key}={self.value:g} of {entity_text(self.entity)}"


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions and quotas in a metadata log."""

    rules: frozenset[Rule] = frozenset()
    quotas: frozenset[Quota] = frozenset()

    def facts(self) -> dict[str, Any]:
        """The same for JSON, in an order that stays."""
        return {"rules": sorted(self.rules), "quotas": sorted(self.quotas, key=str)}

    @classmethod
    def of_facts(cls, found: Any) -> "Access":
        """What ``facts`` gave. Raises ValueError, TypeError, KeyError."""
        quotas = (Quota(tuple((kind, name) for kind, name in of), key, value) for of, key, value in found["quotas"])
        return cls(frozenset(told(Rule, *each) for each in found["rules"]), frozenset(quotas))


NO_ACCESS: Final = Access()


def possible_access(metadata: KafkaMetadata, problems: list[str]) -> Access:
    """The permissions and quotas of a metadata log that are possible here; ``problems`` names the others."""
    quotas = [Quota(entity, key, value) for entity, values in metadata.quotas.items() for key, value in values.items()]
    impossible = {each: why for each in metadata.rules if (why := why_not_kept(each)) is not None}
    unusable = {each: why for each in quotas if (why := _why_impossible(each)) is not None}
    for what, found in (("permission", impossible), ("quota", unusable)):
        if found:
            one, why = next(iter(found.items()))
            problems.append(f"{counted(len(found), what)} of Kafka's cannot be taken over, such as {one}: {why}")
    return Access(frozenset(metadata.rules) - impossible.keys(), frozenset(quotas) - unusable.keys())


def _why_impossible(quota: Quota) -> str | None:
    try:
        check_entity(quota.entity)
        check_value(quota.entity, quota.key, quota.value)
    except ValueError as error:
        return str(error)
    return None


def with_changes(dynamic: DynamicConfig, before: Access, now: Access, *, is_enforced: bool) -> DynamicConfig:
    """The settings with the quotas that Kafka changed; its first rules are in force from then on if ``is_enforced``.

    Raises PolicyViolationError where too many clients would have quotas.
    """
    clients: dict[Entity, dict[str, float | None]] = {}
    for quota in before.quotas - now.quotas:
        clients.setdefault(quota.entity, {})[quota.key] = None
    for quota in now.quotas - before.quotas:
        clients.setdefault(quota.entity, {})[quota.key] = quota.value
    after = dynamic.with_clients(clients)
    if is_enforced and now.rules and not before.rules:
        after = after.with_broker(ALL_BROKERS, {**after.of_broker(ALL_BROKERS), AUTHORIZER: AUTHORIZERS[0]})
    return after


def told_changes(before: Access, now: Access) -> list[str]:
    """What Kafka changed, a sentence each."""
    changes = (
        ("permission {} was made", now.rules - before.rules),
        ("permission {} was deleted", before.rules - now.rules),
        ("quota {} was set", now.quotas - before.quotas),
        ("quota {} was changed or deleted", before.quotas - now.quotas),
    )
    return [sentence.format(each) for sentence, found in changes for each in sorted(map(str, found))]
