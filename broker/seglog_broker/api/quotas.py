"""Quotas of clients, described and altered: those of one request together, on the disk before they are answered."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.api.configs import ConfigService
from seglog_broker.config.client_quotas import ENTITIES_MAX, Entity, Quotas, entity_text
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime.budget import Turns

log = get_logger()

Changes = Mapping[str, float | None]
"""New values by key; None takes a quota away."""


class Filter(NamedTuple):
    """A choice of the entities that are described."""

    names: Mapping[str, str | None]
    """Each of these types with this name, None for the default."""
    types: frozenset[str]
    """Each of these types with any name."""
    is_strict: bool
    """True if an entity may have no other types."""

    def fits(self, entity: Entity) -> bool:
        """True for an entity that is described. Without any type all are, or none where it is strict."""
        has = dict(entity)
        if self.is_strict and len(has) != len(self.names) + len(self.types):
            return False
        return self.types <= has.keys() and all(kind in has and has[kind] == name for kind, name in self.names.items())


LINE_COST: Final = 40.0
"""Microseconds for a line in the log."""

TOO_MANY: Final = f"{ENTITIES_MAX:,} users, client ids and addresses have quotas, which is the limit: take one's away"


@dataclass(eq=False, repr=False)
class QuotaService(Service):
    """The quotas that are kept."""

    _configs: ConfigService

    def described(self, wanted: Filter) -> Iterator[tuple[Entity, Quotas] | None]:
        """Each entity that is asked for, with its quotas; None for one that is not, so that others may run."""
        for entity, quotas in self._config.dynamic.clients.items():
            yield (entity, quotas) if wanted.fits(entity) else None

    async def alter(self, changes: Mapping[Entity, Changes], by: str, *, validate_only: bool) -> dict[Entity, str]:
        """Alter checked quotas for the principal ``by``; returns why those that were refused cannot be kept.

        With ``validate_only`` none is altered. Raises StorageError when they cannot be kept: nothing is altered.
        """
        refused: dict[Entity, str] = {}
        before: Mapping[Entity, Quotas] = {}

        def changed(dynamic: DynamicConfig) -> DynamicConfig:
            nonlocal before
            before = dynamic.clients
            altered: dict[Entity, Quotas] = {}
            room = ENTITIES_MAX - len(before)
            for entity, values in changes.items():
                wanted = {**before.get(entity, {}), **values}
                quotas = {key: value for key, value in wanted.items() if value is not None}
                room -= bool(quotas) - (entity in before)
                if room < 0 and entity not in before:
                    room += 1
                    refused[entity] = TOO_MANY
                else:
                    altered[entity] = quotas
            return dynamic.with_clients(altered)

        if await self._configs.alter_dynamic(changed, validate_only=validate_only):
            after, turns = self._config.dynamic.clients, Turns(self._scheduler.turn)
            for entity in changes:
                await turns.spend(LINE_COST)
                if before.get(entity) != after.get(entity):
                    quotas = dict(after.get(entity, {}))
                    log.info("client_quotas_changed", entity=entity_text(entity), quotas=quotas, principal=by)
        return refused
