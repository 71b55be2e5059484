"""The continuous backup that the configuration asks for, checked at the start of a broker."""

from seglog_broker.backup.opening import why_no_place
from seglog_broker.config import BrokerConfig
from seglog_protocol.errors import InvalidConfigError


def check_backup(config: BrokerConfig) -> None:
    """Raise InvalidConfigError where the place is no place, or its key cannot be used. Reads the key's file."""
    place, key_file = config.seglog_backup_to, config.seglog_backup_key_file
    if not place:
        return
    why = why_no_place(place)
    if why is not None:
        raise InvalidConfigError(f"seglog.backup.to cannot be used: {why}", key="seglog.backup.to")
    if key_file:
        from seglog_broker.backup.encrypted_destination import KeyFileError, read_key_file  # noqa: PLC0415 - few have a key

        try:
            read_key_file(key_file)
        except KeyFileError as error:
            raise InvalidConfigError(
                f"seglog.backup.key.file cannot be used: {error}", key="seglog.backup.key.file"
            ) from error
