"""Reloading: a running broker reads its configuration file and its TLS certificate again on SIGHUP.

Everything is checked first. Then the changes that a running broker can apply are applied in one step of the loop, and
each is logged. Changes that need a restart are only logged. A file with a mistake changes nothing, nor does a
certificate that cannot be used. Settings made at run time stay over those of the file.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import ConfigSources
from seglog_broker.config.dynamic_config import differences, taken_over
from seglog_broker.logger import get_logger
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_broker.security.access_warnings import access_warnings
from seglog_broker.security.bearer_token import load_digest
from seglog_broker.security.tls import LoadedTls, ServerTls, load_all_tls
from seglog_protocol.errors import InvalidConfigError

log = get_logger()

_CONFIGURATION: Final = "the configuration"


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
    """Apply configuration and certificate as they are now: all changes a running broker can apply, or none."""
    file = sources.file_name
    if not file and (broker.tls is not None or broker.http_token.is_wanted):
        await _reload_secrets(broker)
        return
    if not file:
        log.info("configuration_not_reloaded", reason="the broker was started without a configuration file (--config)")
        return
    new, warnings, mistakes = await broker.offload.configuration(partial(sources.examine, regular_only=True))
    failed = broker.problems.not_reloaded
    if mistakes:
        for mistake in mistakes:
            log.error("configuration_not_reloaded", file=file, reason=mistake.message)
        failed[_CONFIGURATION] = "; ".join(mistake.message for mistake in mistakes)
        return
    live = broker.live_config
    async with live.lock:  # no setting is made at run time meanwhile
        old, old_static = live.current, live.static
        try:
            merged = taken_over(old_static, new)
            loaded = None if broker.tls is None else await broker.offload.configuration(load_all_tls, merged)
            digest = await broker.offload.configuration(load_digest, merged)
            broker.reconfigure(merged)
        except InvalidConfigError as error:
            log.error("configuration_not_reloaded", file=file, reason=error.message)  # noqa: TRY400 - no bug
            failed[_CONFIGURATION] = error.message
            return
    failed.clear()
    _use(broker.tls, loaded)
    _use_token(broker, digest)
    for warning in [*warnings, *await _access_warnings(broker)]:
        log.warning("config_warning", reason=warning)
    changed = differences(old, live.current)
    for key, before, after, origin, _ in changed:
        log.info("configuration_changed", key=key, old=before, new=after, origin=str(origin))
    waiting = [difference for difference in differences(old_static, new) if not difference.is_dynamic]
    for key, before, after, origin, _ in waiting:
        log.warning("configuration_needs_restart", key=key, in_force=before, new=after, origin=str(origin))
    log.info("configuration_reloaded", file=file, changed=len(changed), need_restart=len(waiting))


async def _reload_secrets(broker: Broker) -> None:
    """Without a configuration file: read the files of the certificate and of the token that the start has named."""
    config, failed = broker.live_config.static, broker.problems.not_reloaded
    failed.clear()
    try:
        loaded = None if broker.tls is None else await broker.offload.configuration(load_all_tls, config)
    except InvalidConfigError as error:
        log.error("certificate_not_reloaded", reason=error.message)  # noqa: TRY400 - no bug
        failed["the certificate"] = error.message
    else:
        _use(broker.tls, loaded)
    try:
        _use_token(broker, await broker.offload.configuration(load_digest, config))
    except InvalidConfigError as error:
        log.error("http_token_not_reloaded", reason=error.message)  # noqa: TRY400 - no bug
        failed["the token of HTTP"] = error.message
    for warning in await _access_warnings(broker):
        log.warning("config_warning", reason=warning)


async def _access_warnings(broker: Broker) -> list[str]:
    names = frozenset(broker.directory.accounts.names())
    return await broker.offload.configuration(access_warnings, broker.config, names)


def _use_token(broker: Broker, digest: bytes | None) -> None:
    if broker.http_token.replace(digest):
        log.info("http_token_reloaded", wanted=broker.http_token.is_wanted)


def _use(tls: ServerTls | None, loaded: Mapping[str, LoadedTls] | None) -> None:
    if tls is None or loaded is None:
        return
    tls.replace(loaded)
    for certificate in tls.certificates:
        log.info(
            "certificate_reloaded",
            subject=certificate.subject,
            names=certificate.names,
            ends=certificate.end,
            **({"listener": certificate.listener} if certificate.listener else {}),
        )
