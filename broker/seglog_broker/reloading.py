"""Reloading: a running broker reads its configuration file again on SIGHUP.

Everything is checked first. Then the changes that a running broker can apply are applied in one step of the loop, and
each is logged. Changes that need a restart are only logged. A file with a mistake changes nothing.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import structlog
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import BrokerConfig, ConfigSources, Origin
from seglog_broker.config.broker_config import BROKER_KEYS, BROKER_NAMES
from seglog_broker.config.sources import check_broker_config
from seglog_broker.runtime import logs
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_protocol.errors import InvalidConfigError

log = structlog.get_logger()


class ReloadRequests:
    """Requests to reload the configuration; those that come before the first is taken count as one."""

    def __init__(self, sources: ConfigSources) -> None:
        self.sources = sources
        self._asked = trio.Event()

    def ask(self) -> None:
        """Request a reload. Call it on the loop."""
        self._asked.set()

    async def next(self) -> None:
        """Wait for a request made since the last one that was returned."""
        await self._asked.wait()
        self._asked = trio.Event()


async def run_reloads(broker: Broker, requests: ReloadRequests, manager: ServiceManager, status: str) -> None:
    """Reload the configuration on each request; ``status`` is what the service manager shows afterwards."""
    while True:
        await requests.next()
        manager.reloading()
        await reload(broker, requests.sources)
        manager.ready(status)


async def reload(broker: Broker, sources: ConfigSources) -> None:
    """Apply the configuration as it is now: all changes a running broker can apply, or none."""
    file = sources.file_name
    if not file:
        log.info("configuration_not_reloaded", reason="the broker was started without a configuration file (--config)")
        return
    new, warnings, mistakes = await broker.offload.configuration(partial(sources.examine, regular_only=True))
    if mistakes:
        for mistake in mistakes:
            log.error("configuration_not_reloaded", file=file, reason=mistake.message)
        return
    try:
        found = differences(broker.config, new)
        merged = taken_over(broker.config, new)
    except InvalidConfigError as error:
        log.error("configuration_not_reloaded", file=file, reason=error.message)  # noqa: TRY400 - no bug
        return
    for warning in warnings:
        log.warning("config_warning", reason=warning)
    broker.reconfigure(merged)
    logs.reconfigure(merged.seglog_log_format, merged.seglog_log_level)
    for key, old, value, origin, is_dynamic in found:
        if is_dynamic:
            log.info("configuration_changed", key=key, old=old, new=value, origin=str(origin))
        else:
            log.warning("configuration_needs_restart", key=key, in_force=old, new=value, origin=str(origin))
    waiting = sum(not difference.is_dynamic for difference in found)
    log.info("configuration_reloaded", file=file, changed=len(found) - waiting, need_restart=waiting)


# --- What differs -----------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """One key with two values, as Kafka writes them."""

    key: str
    old: str
    new: str
    origin: Origin
    """Of the new one."""
    is_dynamic: bool
    """Whether a running broker applies it; otherwise a restart is needed."""


def differences(old: BrokerConfig, new: BrokerConfig) -> list[Difference]:
    """Every key whose value changed, keys for topic defaults included."""
    return [
        Difference(
            after.key,
            before.value,
            after.value,
            after.origin,
            after.key not in BROKER_NAMES or BROKER_NAMES[after.key].is_dynamic,
        )
        for before, after in zip(old.describe(), new.describe(), strict=True)
        if before.value != after.value
    ]


def taken_over(old: BrokerConfig, new: BrokerConfig) -> BrokerConfig:
    """The configuration of a running broker with ``old`` after a reload of ``new``: static keys keep their values.

    Raises InvalidConfigError when the mixture contradicts itself, though neither of the two does.
    """
    kept = [key for key in BROKER_KEYS.values() if not key.is_dynamic]
    values = {key.attribute: getattr(old, key.attribute) for key in kept}
    origins = dict(new.origins)
    for key in kept:
        if values[key.attribute] != getattr(new, key.attribute):
            origins.pop(key.name, None)
            if key.name in old.origins:
                origins[key.name] = old.origins[key.name]
    merged = dataclasses.replace(new, **values, origins=origins)
    check_broker_config(merged)
    return merged
