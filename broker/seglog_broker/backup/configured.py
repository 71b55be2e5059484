"""The continuous backup that the configuration asks for, checked at the start of a broker."""

from pathlib import Path

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
    # They take what only the broker needs, and --check-config is for a client's installation, too.
    from seglog_broker.backup.encrypted_destination import KeyFileError, read_key_file  # noqa: PLC0415
    from seglog_broker.backup.opening import why_no_place  # noqa: PLC0415

    why = why_no_place(place) or _why_lost_together(place, config.log_dir)
    if why is not None:
        raise InvalidConfigError(f"seglog.backup.to cannot be used: {why}", key="seglog.backup.to")
    if key_file:
        try:
            read_key_file(key_file)
        except KeyFileError as error:
            raise InvalidConfigError(
                f"seglog.backup.key.file cannot be used: {error}", key="seglog.backup.key.file"
            ) from error


def _why_lost_together(place: str, log_dir: str) -> str | None:
    """The reason against a place that would be lost with the log directory; None for another one."""
    files, kept = Path(log_dir).resolve(), Path(place).resolve()
    if "://" in place or not (kept.is_relative_to(files) or files.is_relative_to(kept)):
        return None
    return (
        f"one of {place} and the log directory, {log_dir}, lies in the other, and would be lost with it: name a "
        "directory of another disk, or an address such as s3://BUCKET/PATH"
    )
