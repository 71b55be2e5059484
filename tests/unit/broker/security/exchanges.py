"""Accounts, an authenticator for them, and clients that log in."""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from scramp import ScramClient

from seglog_broker.config import load_config
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.security.authenticator import Authenticator
from seglog_broker.security.credentials import from_password
from seglog_broker.security.sasl import Exchange
from seglog_broker.storage.directory.accounts import AccountStore, Change, Credential
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.scram import HASHES
from tests.logs import ManualClock

PATH: Final = "/data/seglog-accounts.json"
NOW_MS: Final = 1_800_000_000_000
ITERATIONS: Final = 4096


def empty_store(fs: ForgetfulFileSystem | None = None) -> AccountStore:
    if fs is None:
        fs = ForgetfulFileSystem()
        fs.make_directory("/data")
        fs.sync_directory("/")
    return AccountStore(fs, PATH)


def put(accounts: AccountStore, *changes: Change) -> None:
    accounts.change(changes)


def changes_for(name: str, password: str, iterations: int = ITERATIONS, *mechanisms: str) -> list[Change]:
    return [Change(name, each, from_password(each, password, iterations)) for each in mechanisms or HASHES]


def store(passwords: Mapping[str, str]) -> AccountStore:
    accounts = empty_store()
    put(accounts, *(change for name, password in passwords.items() for change in changes_for(name, password)))
    return accounts


def made_of(mechanism: str, salt: bytes, iterations: int, keys: bytes = b"k") -> Credential:
    size = 32 if mechanism == "SCRAM-SHA-256" else 64
    return Credential(mechanism, iterations, salt, keys * size, keys * size)


def authenticator(accounts: AccountStore, *flags: str, offload: Offload | None = None) -> Authenticator:
    config, _ = load_config(None, "", {}, list(flags))
    return Authenticator(accounts, LiveConfig(config), ManualClock(NOW_MS), offload or InlineOffload())


def log_in_scram_client(mechanism: str, name: str, password: str, **more: Any) -> ScramClient:
    return ScramClient([mechanism], name, password, **more)


async def log_in_scram(exchange: Exchange, name: str, password: str) -> None:
    """As a client of scramp's does; it raises where the broker does not know the password."""
    client = log_in_scram_client(exchange.mechanism, name, password)
    client.set_server_first((await exchange.respond(client.get_client_first().encode())).decode())
    client.set_server_final((await exchange.respond(client.get_client_final().encode())).decode())


def plain(name: str, password: str, acting_as: str = "") -> bytes:
    return f"{acting_as}\0{name}\0{password}".encode()


def base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def unsecured(claims: Mapping[str, Any], algorithm: str = "none") -> str:
    parts = (json.dumps({"alg": algorithm}).encode(), json.dumps(claims).encode())
    return f"{'.'.join(map(base64url, parts))}."


def bearer(token: str, acting_as: str = "", more: str = "") -> bytes:
    return f"n,{acting_as},\x01{more}auth=Bearer {token}\x01\x01".encode()
