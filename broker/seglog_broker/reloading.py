"""Reloading: a running broker reads its configuration file again on SIGHUP.

Everything is checked first. Then the changes that a running broker can apply are applied in one step of the loop, and
each is logged. Changes that need a restart are only logged. A file with a mistake changes nothing. Settings made at run
time stay over those of the file.
"""

from functools import partial

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import ConfigSources
from seglog_broker.config.changes import differences, taken_over
from seglog_broker.logger import get_logger
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_protocol.errors import InvalidConfigError

log = get_logger()


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
    live = broker.live_config
    async with live.lock:  # no setting is made at run time meanwhile
        old, old_static = live.current, live.static
        try:
            broker.reconfigure(taken_over(old_static, new))
        except InvalidConfigError as error:
            log.error("configuration_not_reloaded", file=file, reason=error.message)  # noqa: TRY400 - no bug
            return
    for warning in warnings:
        log.warning("config_warning", reason=warning)
    changed = differences(old, live.current)
    for key, before, after, origin, _ in changed:
        log.info("configuration_changed", key=key, old=before, new=after, origin=str(origin))
    waiting = [difference for difference in differences(old_static, new) if not difference.is_dynamic]
    for key, before, after, origin, _ in waiting:
        log.warning("configuration_needs_restart", key=key, in_force=before, new=after, origin=str(origin))
    log.info("configuration_reloaded", file=file, changed=len(changed), need_restart=len(waiting))
