"""Who is warned about: super users that nobody is, listeners without accounts, files that others can read."""

import os
from pathlib import Path

import pytest

from seglog_broker.config import load_config
from seglog_broker.config.broker_config import AUTHORIZERS
from seglog_broker.security.access_warnings import access_warnings
from tests.support import each_case

SASL = "listeners=SASL_PLAINTEXT://127.0.0.1:9092"
TOKENS = ("sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER", "seglog.sasl.oauthbearer.unsecured=true")
CERTIFICATES = (f"{SASL},SSL://127.0.0.1:9093", "ssl.keystore.location=none.pem", "ssl.client.auth=requested")


def warned(names: list[str] | None, *flags: str) -> list[str]:
    config, _ = load_config(None, "", {}, ["log.dir=/nowhere/data", *flags])
    return access_warnings(config, names)


def test_a_super_user_without_an_account_is_named() -> None:
    [found] = warned(["admin", "alice"], SASL, "super.users=User:admin;User:Alice;User:ANONYMOUS")
    assert "super.users has User:Alice, and there is no account Alice" in found


def test_rules_of_a_kafka_that_are_not_in_force_are_told_until_they_are() -> None:
    [found] = warned(None, "seglog.acls.not.enforced=true")
    assert "are kept, and not in force, so whoever can connect reads and writes" in found
    enforced = ("super.users=User:admin", f"authorizer.class.name={AUTHORIZERS[0]}")
    assert warned(None, "seglog.acls.not.enforced=true", *enforced) == []


def test_a_listener_for_accounts_without_any_is_told_with_the_way_to_make_one() -> None:
    [found] = warned([], SASL, "super.users=User:admin")
    assert "nobody can log in to SASL_PLAINTEXT of listeners" in found
    assert "seglogd init --data /nowhere/data" in found


def test_rules_in_force_with_nobody_above_them_are_told() -> None:
    rules = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    [found] = warned(None, rules)
    assert "nobody is above them" in found
    assert warned(None, rules, "super.users=User:admin") == []


@each_case(
    ("names", "flags"),
    [
        (["admin"], (SASL, "super.users=User:admin")),
        (None, (SASL, "super.users=User:admin")),
        ([], ("super.users=User:admin",)),
        ([], (SASL, "super.users=User:admin", *TOKENS)),
        (["alice"], (*CERTIFICATES, "super.users=User:CN=admin")),
    ],
    ids=["there", "not known", "no accounts wanted", "tokens", "certificates"],
)
def test_where_all_is_well_or_other_names_count_nothing_is_said(
    names: list[str] | None, flags: tuple[str, ...]
) -> None:
    assert warned(names, *flags) == []


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_a_key_or_accounts_that_others_can_read_are_named_with_their_mode(
    tmp_path: Path, mode: int, is_open: bool
) -> None:
    store, accounts = tmp_path / "server.pem", tmp_path / "seglog-accounts.json"
    for file in (store, accounts):
        file.touch()
        file.chmod(mode)
    found = warned(None, f"log.dir={tmp_path}", f"ssl.keystore.location={store}")
    assert [str(file) in sentence for file, sentence in zip((store, accounts), found, strict=False)] == [True] * len(
        found
    )
    assert len(found) == 2 * is_open
    assert all(f"(mode {mode:04o})" in sentence for sentence in found)


def test_a_key_that_is_read_through_its_group_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Secret in a pod, which root owns."""
    store = tmp_path / "server.pem"
    store.touch()
    monkeypatch.setattr(os, "geteuid", lambda: store.stat().st_uid + 1)
    store.chmod(0o440)
    assert warned(None, f"ssl.keystore.location={store}") == []
    store.chmod(0o444)
    assert len(warned(None, f"ssl.keystore.location={store}")) == 1
