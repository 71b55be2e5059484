"""Settings made at run time: altered one after the other, kept in the log directory, then in force."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.config.changes import differences
from seglog_broker.config.dynamic_config import DynamicConfig, with_dynamic
from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.dynamic_configs import encode_dynamic_configs
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.filenames import DYNAMIC_CONFIGS_FILE
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.os_errors import is_no_room, storage_error, why
from seglog_protocol.steps import Steps

log = get_logger()

Reconfigured = Callable[[BrokerConfig, DynamicConfig], Steps[None]]

_NOT_KEPT: Final = "the settings could not be kept"


@dataclass(eq=False)
class DynamicConfigs:
    """The settings made at run time. ``reconfigured`` are the steps that put them in force."""

    _live: LiveConfig
    _directory: LogDirectory
    _fs: FileSystem
    _offload: Offload
    _scheduler: Scheduler
    _reconfigured: Reconfigured

    async def alter(self, changed: Callable[[DynamicConfig], DynamicConfig], *, validate_only: bool = False) -> bool:
        """Replace the settings by what ``changed`` makes of them, which may raise; return whether they differ.

        Nothing else changes the configuration meanwhile. With ``validate_only`` they are checked, and stay.

        Raises InvalidConfigError for values that contradict each other, StorageError when the settings cannot be kept:
        then the former ones stay.
        """
        live = self._live
        async with live.lock:
            altered = changed(live.dynamic)
            with_dynamic(live.static, altered)
            if validate_only or altered == live.dynamic:
                return False
            before = live.current
            with trio.CancelScope(shield=True):  # what is on the disk is to be in force
                await self._keep(altered)
                if altered.brokers == live.dynamic.brokers:
                    live.replace(live.static, altered)
                else:
                    await self._scheduler.in_turns(self._reconfigured(live.static, altered))
        for key, old, new, origin, _ in differences(before, live.current):
            log.info("configuration_changed", key=key, old=old, new=new, origin=str(origin))
        return True

    async def _keep(self, altered: DynamicConfig) -> None:
        path = f"{self._directory.path}/{DYNAMIC_CONFIGS_FILE}"
        content = encode_dynamic_configs(altered)
        try:
            await self._offload.maintenance(write_file_atomically, self._fs, path, content)
        except OSError as error:
            if is_no_room(error):
                raise self._directory.space.refusal_now(_NOT_KEPT) from error
            raise storage_error(f"{_NOT_KEPT}: {why(error)}; send them again", error) from error
