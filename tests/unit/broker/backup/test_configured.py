"""A continuous backup that cannot be made is refused before the broker serves, with what to do."""

import sys
from pathlib import Path

import pytest

from seglog_broker.backup.configured import check_backup
from seglog_broker.config import BrokerConfig, load_config
from seglog_protocol.errors import InvalidConfigError


def config_of(**settings: str | Path) -> BrokerConfig:
    flags = [f"seglog.backup.{name.replace('_', '.')}={value}" for name, value in settings.items()]
    return load_config(None, "", {}, ["log.dir=/data", *flags])[0]


def test_without_a_place_nothing_is_looked_at(tmp_path: Path) -> None:
    check_backup(config_of(key_file=tmp_path / "absent"))


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s3:copies", "s3:copies is no address: that has two slashes"),
        (
            "/data/copies",
            "one of /data/copies and the log directory, /data, lies in the other, and would be lost with it",
        ),
        ("/", "one of / and the log directory, /data, lies in the other, and would be lost"),
    ],
)
def test_a_place_is_an_address_or_a_directory_beside_the_log_directory(place: str, why: str) -> None:
    check_backup(config_of(to="/data-copies"))
    with pytest.raises(InvalidConfigError, match=why) as refused:
        check_backup(config_of(to=place))
    assert refused.value.key == "seglog.backup.to"
    for address, reason in (("s4://bucket/copies", "no kind of destination s4"), ("s3://", "names no bucket")):
        with pytest.raises(InvalidConfigError, match=reason):
            check_backup(config_of(to=address))


def test_a_store_needs_its_library_and_not_what_a_daemon_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    check_backup(config_of(to="s3://bucket/path"))
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InvalidConfigError, match=r"needs the package obstore, .*seglog\[backup\]"):
        check_backup(config_of(to="s3://bucket/path"))


def test_its_key_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    check_backup(config_of(to="/mnt/copies", key_file=key))
    key.chmod(0o644)
    for file, reason in ((key, "can be read by others"), (tmp_path / "absent", "No such file")):
        with pytest.raises(InvalidConfigError, match=reason) as refused:
            check_backup(config_of(to="/mnt/copies", key_file=file))
        assert refused.value.key == "seglog.backup.key.file"


def test_a_lease_is_kept_in_a_place() -> None:
    check_backup(config_of(to="/mnt/copies", lease_ms="3000"))
    with pytest.raises(InvalidConfigError, match="a lease is kept in the place of the backup") as refused:
        check_backup(config_of(lease_ms="3000"))
    assert refused.value.key == "seglog.backup.lease.ms"
