"""Warnings about who gets in and may do what: super users without an account, rules not in force, files others read."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from seglog_broker.config import BrokerConfig, all_listeners
from seglog_broker.config.listeners import asks_for_certificates, authenticates, offered_mechanisms
from seglog_broker.security.principals import ANONYMOUS
from seglog_broker.storage.io.filenames import ACCOUNTS_FILE


def takes_accounts_alone(config: BrokerConfig) -> bool:
    """Whether nobody has a name but by an account: no listener takes tokens, or certificates in place of a login."""
    return not any(
        "OAUTHBEARER" in offered_mechanisms(each, config)
        or (asks_for_certificates(each, config) != "none" and not each.has_sasl)
        for each in all_listeners(config)
    )


def needed_accounts(config: BrokerConfig) -> frozenset[str]:
    """The accounts of which one has to be there, so that somebody administers; empty where others may, too."""
    is_open = any(not authenticates(each, config) for each in all_listeners(config))
    if (is_open and ANONYMOUS in config.super_users) or not takes_accounts_alone(config):
        return frozenset()
    return frozenset(principal.removeprefix("User:") for principal in config.super_users)


def access_warnings(config: BrokerConfig, names: Collection[str] | None) -> list[str]:
    """Sentences about accounts and files of a configuration that can be used; looks at files, so it blocks.

    ``names`` are those of all accounts; None where they are not known.
    """
    of_accounts = [] if names is None else _account_warnings(config, names)
    return [*_file_warnings(config), *_rule_warnings(config), *of_accounts]


def _rule_warnings(config: BrokerConfig) -> Iterator[str]:
    if config.seglog_acls_not_enforced and not config.authorizer_class_name:
        yield (
            "seglog.acls.not.enforced=true: ACLs that a Kafka left in the log directory are kept, and not in force, "
            "so whoever can connect reads and writes every topic; set authorizer.class.name to enforce them"
        )
    if config.authorizer_class_name and not config.super_users:
        yield (
            "super.users is empty, and rules are in force (authorizer.class.name): nobody is above them, and where "
            "there are none nobody may do anything; name who administers, as in super.users=User:admin"
        )


def _account_warnings(config: BrokerConfig, names: Collection[str]) -> Iterator[str]:
    listeners = all_listeners(config)
    with_accounts = [listener for listener in listeners if listener.has_sasl]
    if not with_accounts or any("OAUTHBEARER" in offered_mechanisms(each, config) for each in with_accounts):
        return  # who has a token needs no account
    if not names:
        titles = " and ".join(listener.title for listener in with_accounts)
        yield (
            f"there are no accounts in {config.log_dir}, so nobody can log in to {titles}: stop the broker, and make "
            f"one by seglogd init --data {config.log_dir}, as the broker's user"
        )
        return
    if not takes_accounts_alone(config):
        return  # the names of certificates are no accounts
    for principal in config.super_users:
        name = principal.removeprefix("User:")
        if principal != ANONYMOUS and name not in names:
            yield (
                f"super.users has {principal}, and there is no account {name}: names are compared exactly, and seglogd "
                f"user list --data {config.log_dir} shows them"
            )


def _file_warnings(config: BrokerConfig) -> Iterator[str]:
    key = "ssl.keystore.location"
    stores = {config.ssl_keystore_location: key}
    stores |= {str(own.value): own.name for own in config.listener_settings if own.key.name == key}
    token, accounts = config.seglog_http_token_file, f"{config.log_dir}/{ACCOUNTS_FILE}"
    for path, title, danger in (
        *((store, f"{name} = {store}", "pose as the broker") for store, name in stores.items()),
        (token, f"seglog.http.token.file = {token}", "see metrics and problems with it"),
        (accounts, accounts, "try passwords against it, and pose as the broker"),
    ):
        if path and (mode := _open_mode(path)) is not None:
            who = f"other users of this machine (mode {mode:04o}), who could {danger}"
            yield f"{title} can be read by {who}: chmod 600 it"


def _open_mode(path: str) -> int | None:
    """The mode of a file that others can use; None for a private one, and for one that cannot be looked at.

    What another user owns, such as a Secret in a pod, this one reads as a member of its group: that is no opening.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return None
    others = 0o077 if found.st_uid == os.geteuid() else 0o007
    return found.st_mode & 0o7777 if found.st_mode & others else None
