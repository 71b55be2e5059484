"""The native request ``describe_broker``: configuration, listeners and process, for `seglog doctor`.

Everyone who is served may ask, as Kafka's clients may ask for the broker's configuration: secrets are hidden, and which
accounts there are is told to administrators alone.
"""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.config import BrokerConfig, ServedListener, advertised_listener, join_address
from seglog_broker.config.listeners import security_warnings
from seglog_broker.config.report import machine_warnings, memory_bytes
from seglog_broker.engine import append
from seglog_broker.runtime import descriptors
from seglog_broker.runtime.interpreter import build_of, describe_interpreter
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.security.access_warnings import access_warnings
from seglog_broker.security.authority import Authority
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.access import ANY_NAME
from seglog_protocol.messages import (
    AccessDescription,
    ConfigEntry,
    DescribeBrokerReply,
    DescribedListener,
    RefusedAccess,
)
from seglog_protocol.version import VERSION

VALUE_CHARACTERS_MAX: Final = 1_000
"""The most characters of a value in the reply, which is one header; lists of principals can be longer."""

WARNINGS_MAX: Final = 50

REFUSED_MAX: Final = 200
"""The most uses in the reply that rules would refuse."""

BUILD: Final = build_of(append.__file__)
"""Whether the modules are compiled: a wheel compiles the hot path, which every request passes, whole or not at all."""


class OpenedListener(NamedTuple):
    """A socket that listens."""

    served: ServedListener
    address: str
    """``HOST:PORT``, with the port that the system chose where 0 was asked for."""
    place: int | None = None
    """Which of ``served_listeners`` it is; None for seglog's own."""


@dataclass(eq=False, repr=False)
class BrokerDescriber:
    """Answers ``describe_broker``."""

    _config: LiveConfig
    _clock: Clock
    _offload: Offload
    _authority: Authority
    listening: Sequence[OpenedListener] = ()
    """The sockets that listen, from the moment they do."""

    async def describe(self, principal: str) -> DescribeBrokerReply:
        """The reply to a principal; files and the file system are looked at in a thread, which may be slow."""
        config, system = self._config.current, os.uname()
        warnings = [*security_warnings(config), *await self._offload.configuration(_look, config)]
        return DescribeBrokerReply(
            config={
                found.key: ConfigEntry(
                    _shortened(found.value), str(found.origin.kind), found.origin.where, found.shortfall
                )
                for found in (*config.describe(), *(own.described() for own in config.listener_settings))
            },
            warnings=[_shortened(warning) for warning in warnings[:WARNINGS_MAX]],
            listeners=[_described(opened, config) for opened in self.listening],
            versions={
                "seglogd": VERSION,
                "build": BUILD,
                "python": describe_interpreter(),
                "kernel": f"{system.sysname} {system.release} {system.machine}",
            },
            limits={
                "open_files": _open_files(),
                "connections": descriptors.connections_max(config),
                "processors": os.cpu_count() or 0,
                "memory_bytes": memory_bytes(),
            },
            now_ms=self._clock.now_ms(),
            process=os.getpid(),
            user=os.geteuid(),
            access=self._access(principal),
        )

    def _access(self, principal: str) -> AccessDescription:
        """The state of rules; what clients do is for administrators to know."""
        authority = self._authority
        is_told = authority.administers(principal) and not authority.is_enforced
        refused = authority.refused_if_enforced()[:REFUSED_MAX] if is_told else []
        told = [
            RefusedAccess(_shortened(principal), operation.name, kind.name, _shortened(name or ANY_NAME), at)
            for (principal, operation, kind, name), at in refused
        ]
        return AccessDescription(authority.is_enforced, len(authority.rules), told)


def _look(config: BrokerConfig) -> list[str]:
    return [*machine_warnings(config), *access_warnings(config, None)]


def _described(opened: OpenedListener, config: BrokerConfig) -> DescribedListener:
    advertised = None if opened.place is None else advertised_listener(config, opened.place)
    return DescribedListener(
        opened.served.name,
        opened.served.protocol,
        opened.address,
        None if advertised is None else join_address(advertised.host, advertised.port),
    )


def _open_files() -> int:
    """The soft limit; 0 where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _shortened(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS_MAX else f"{text[:VALUE_CHARACTERS_MAX]}..."
