"""``seglog-configs.json``: the settings made at run time, which Kafka keeps in its metadata log.

The file is written before a setting is in force. Nothing replaces it, so a start is refused while it cannot be
understood, also where a newer version has written a key that this one does not know.
"""

from typing import Final

import msgspec

from seglog_broker.config import BrokerConfig, dynamic_config
from seglog_broker.config.group_keys import parse_group_value
from seglog_broker.config.keys import OriginKind
from seglog_broker.storage.io.filenames import DYNAMIC_CONFIGS_FILE
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.io.small_files import not_understood, seal, unseal_version
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError
from seglog_protocol.quotas import Entity, Quotas, check_entity, check_value, entity_of

_VERSION: Final = 1
_KEYS: Final = frozenset({"version", "brokers", "groups", "clients"})


class _Client(msgspec.Struct):
    """Quotas of clients, as they stand in the file."""

    entity: dict[str, str | None]
    quotas: dict[str, float]


def encode_dynamic_configs(dynamic: dynamic_config.DynamicConfig) -> bytes:
    """The content of the file."""
    facts = {"version": _VERSION, "brokers": dynamic.brokers, "groups": dynamic.groups}
    if dynamic.clients:  # earlier versions do not know them
        clients = [{"entity": dict(entity), "quotas": quotas} for entity, quotas in dynamic.clients.items()]
        facts["clients"] = clients
    return seal(facts)


def decode_dynamic_configs(content: bytes) -> dynamic_config.DynamicConfig:
    """The settings in the file. Raises ValueError, whose message is the end of a sentence."""
    found = unseal_version(content, _KEYS, _VERSION)
    try:
        clients = msgspec.convert(found.pop("clients", []), list[_Client])
        dynamic = msgspec.convert(found, dynamic_config.DynamicConfig)
    except msgspec.ValidationError as error:
        is_value = str(error).startswith("Expected `str`")
        raise ValueError("a value is not text" if is_value else "it has another form") from error
    for name, settings in dynamic.brokers.items():
        if name != dynamic_config.ALL_BROKERS and not name.isdecimal():
            raise ValueError(f"{name!r} is not the number of a broker")
        for key, text in settings.items():
            if key not in dynamic_config.DYNAMIC_KEYS:
                raise ValueError(f"{key[:60]!r} is not a key that can be set at run time")
            dynamic_config.parse_dynamic(key, text, OriginKind.DYNAMIC_BROKER if name else OriginKind.DYNAMIC_DEFAULT)
    for settings in dynamic.groups.values():
        for key, text in settings.items():
            parse_group_value(key, text)
    quotas: dict[Entity, Quotas] = {}
    for client in clients:
        check_entity(entity := entity_of(client.entity))
        for key, value in client.quotas.items():
            check_value(entity, key, value)
        quotas[entity] = client.quotas
    return dynamic.with_clients(quotas)


def read_dynamic_configs(fs: FileSystem, path: str) -> dynamic_config.DynamicConfig:
    """The settings kept in the file ``path``; none where there is no file.

    Raises OSError, and LogDirectoryError when the file cannot be understood.
    """
    if not fs.exists(path):
        return dynamic_config.DynamicConfig()
    try:
        return decode_dynamic_configs(read_file(fs, path))
    except (ValueError, InvalidConfigError) as error:
        problem = error.message if isinstance(error, InvalidConfigError) else str(error)
        raise not_understood(path, problem, "start without the settings that were made at run time") from error


def config_at_start(
    fs: FileSystem, directory: str, static: BrokerConfig
) -> tuple[dynamic_config.DynamicConfig, BrokerConfig]:
    """The settings that a log directory keeps, and the configuration in force with them.

    Raises OSError, and LogDirectoryError, which says what to do.
    """
    path = f"{directory}/{DYNAMIC_CONFIGS_FILE}"
    dynamic = read_dynamic_configs(fs, path)
    try:
        return dynamic, dynamic_config.with_dynamic(static, dynamic)
    except InvalidConfigError as error:
        raise LogDirectoryError(
            f"the settings made at run time, in {path}, and the configuration contradict each other: "
            f"{error.message.rstrip('.')}; change the configuration, or move the file away to start without them",
            path=path,
        ) from error
