"""The continuous backup that the configuration asks for, checked at the start of a broker."""

from seglog_broker.backup.opening import why_no_place
from seglog_broker.config import BrokerConfig
from seglog_protocol.errors import InvalidConfigError


def check_backup(config: BrokerConfig) -> None:
    """Raise InvalidConfigError where the place is none, its key cannot be used, or a lease has no place.

    Reads the file of the key.
    """
    place, key_file = config.seglog_backup_to, config.seglog_backup_key_file
    if not place and config.seglog_backup_lease_ms:
        raise InvalidConfigError(
            f"seglog.backup.lease.ms = {config.seglog_backup_lease_ms} cannot be used: a lease is kept in the place of "
            "the backup, which seglog.backup.to does not name.",
            key="seglog.backup.lease.ms",
        )
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
