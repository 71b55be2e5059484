"""A running broker reads its configuration file again, when SIGHUP asks for it.

Everything is checked first; then what a running broker can take is put in force in one step of the loop, and each
change is logged. What it cannot take is logged, too, and waits for a restart. A file with a mistake changes nothing.
"""

from typing import TYPE_CHECKING

import structlog
import trio

from seglog_broker.config import ConfigSources
from seglog_broker.config.changes import differences, taken_over
from seglog_broker.runtime import logs
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from seglog_broker.api.broker import Broker

log = structlog.get_logger()


class ReloadRequests:
    """Reloads that were asked for; several before the first has begun are one."""

    def __init__(self, sources: ConfigSources) -> None:
        self.sources = sources
        self._asked = trio.Event()

    def ask(self) -> None:
        """Have the configuration read again. On the loop."""
        self._asked.set()

    async def next(self) -> None:
        """Return when somebody has asked since this returned last."""
        await self._asked.wait()
        self._asked = trio.Event()


async def run_reloads(broker: "Broker", requests: ReloadRequests, manager: ServiceManager, status: str) -> None:
    """Read the configuration again whenever it is asked for; ``status`` is for the service manager."""
    while True:
        await requests.next()
        manager.reloading()
        reload(broker, requests.sources)
        manager.ready(status)


def reload(broker: "Broker", sources: ConfigSources) -> None:
    """Put in force what can be of the configuration as it is now; on the loop, all of it or nothing."""
    file = sources.file_name
    if not file:
        log.info("configuration_not_reloaded", reason="there is no configuration file, see --config")
        return
    new, warnings, mistakes = sources.examine()
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
        log.warning("configuration_doubted", reason=warning)
    broker.reconfigure(merged)
    logs.reconfigure(merged.seglog_log_format, merged.seglog_log_level)
    for key, old, value, origin, is_dynamic in found:
        if is_dynamic:
            log.info("configuration_changed", key=key, old=old, new=value, origin=str(origin))
        else:
            log.warning("configuration_needs_restart", key=key, in_force=old, new=value, origin=str(origin))
    waiting = sum(not difference.is_dynamic for difference in found)
    log.info("configuration_reloaded", file=file, changed=len(found) - waiting, need_restart=waiting)
