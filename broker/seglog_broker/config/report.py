"""``seglogd --check-config``: the configuration as it would be in force, its mistakes, warnings, and this machine.

Values beyond the machine's memory, its disk or the permissions of this user are valid, so a start finds them only when
it is too late.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from seglog_broker.config.broker_config import BROKER_KEYS, TOPIC_DEFAULT_NAMES, BrokerConfig
from seglog_broker.config.keys import Described, Effect, Key, OriginKind
from seglog_broker.config.listeners import (
    ServedListener,
    all_listeners,
    asks_for_certificates,
    has_authentication,
    http_listener,
    native_listener,
    offered_mechanisms,
    served_listeners,
    takes_any_token,
)
from seglog_broker.config.sources import Examined
from seglog_broker.texts import counted
from seglog_protocol.quantities import with_reading
from seglog_protocol.tables import columns, table_lines

_COLUMNS: Final = columns("KEY", "VALUE", "ORIGIN", "A NEW VALUE IS IN FORCE")

_ACCESS: Final = columns("LISTENER", "ADDRESS", "SPEAKS", "OPEN TO", "CLIENTS")

_UNKNOWN: Final = "?"
"""Stands for the value of a key whose setting cannot be used."""

_MEMORY_KEYS = ("seglog.request.memory.max", "log.cleaner.dedupe.buffer.size")
_MARK_KEYS = ("seglog.disk.free.hard.bytes", "seglog.disk.free.soft.bytes", "seglog.disk.ballast.bytes")
_LOG_KEYS = ("log.segment.bytes", "log.retention.bytes")


def configuration_lines(examined: Examined) -> list[str]:
    """A table of every key with its value, its origin, and when a new value is in force."""
    wrong = {error.facts.get("key") for error in examined.mistakes}
    config = examined.config
    rows = [_row(described, wrong) for described in config.describe()]
    rows += [_described_row(own.described(), own.key) for own in config.listener_settings]
    return list(table_lines(_COLUMNS, rows))


def verdict_lines(examined: Examined, more_warnings: Sequence[str]) -> list[str]:
    """Warnings, mistakes, and a line that counts both; ``more_warnings`` are those about this machine."""
    warnings = [*examined.warnings, *more_warnings]
    mistakes = [error.message for error in examined.mistakes]
    found = [counted(len(items), what) for items, what in ((mistakes, "mistake"), (warnings, "warning")) if items]
    if mistakes:
        verdict = f"{' and '.join(found)}: the broker would not start."
    else:
        verdict = f"The configuration can be used ({found[0]})." if found else "The configuration can be used."
    return [
        *(f"warning: {_sentence(warning)}" for warning in warnings),
        *(f"mistake: {_sentence(mistake)}" for mistake in mistakes),
        verdict,
    ]


def access_lines(config: BrokerConfig) -> list[str]:
    """A table of the listeners: where each is, what is spoken there, to whom it is open; and who administers."""
    listeners = all_listeners(config)
    rows = [
        (
            listener.name or "seglog.listen",
            listener.address,
            listener.protocol,
            "this machine" if listener.is_loopback else "every machine that reaches it",
            _clients(listener, config),
        )
        for listener in listeners
    ]
    http = http_listener(config)
    if http is not None:
        where = "this machine" if http.is_loopback else "every machine that reaches it"
        rows.append((http.key, http.address, f"HTTP, {http.protocol}", where, _readers(http, config)))
    if config.authorizer_class_name:
        administrators = ", ".join((*config.super_users, "whoever rules (ACLs) allow to"))
    elif config.super_users:
        administrators = ", ".join(config.super_users)
    elif has_authentication(config):
        administrators = "nobody, as super.users is empty"
    else:
        administrators = "everyone"
    return [*table_lines(_ACCESS, rows), f"Topics, configurations and accounts are administered by: {administrators}"]


def _clients(listener: ServedListener, config: BrokerConfig) -> str:
    asked = asks_for_certificates(listener, config)
    certificate = {"required": "a certificate", "requested": "a certificate or none"}.get(asked, "")
    if takes_any_token(listener, config):
        return "anyone, as any account"
    if listener.has_sasl:
        behind = f" and {certificate}" if certificate else ""
        return f"accounts, by {', '.join(offered_mechanisms(listener, config))}{behind}"
    if certificate:
        return f"whoever has {certificate}"
    return "everyone, as User:ANONYMOUS"


def _readers(http: ServedListener, config: BrokerConfig) -> str:
    if config.seglog_http_token_file:
        who = "whoever has the token"
    elif http.is_loopback or config.seglog_open_to_everyone:
        who = "everyone"
    elif asks_for_certificates(http, config) != "none":
        who = "whoever has a certificate"
    else:
        who = "nobody"
    return f"/metrics and /healthz: {who}"


def _row(described: Described, wrong: set[object]) -> tuple[str, str, str, str]:
    name = described.key
    key = BROKER_KEYS[name] if name in BROKER_KEYS else TOPIC_DEFAULT_NAMES[name][0]
    names = {synonym.name for synonym in (*key.synonyms, *key.names)} | {name}
    if names & wrong:
        return name, _UNKNOWN, "see below", ""
    return _described_row(described, key)


def _described_row(described: Described, key: Key) -> tuple[str, str, str, str]:
    change = str(key.change) if key.effect is Effect.NOW else "has no effect here"
    value = with_reading(described.key, described.value) or '""'
    return described.key, value, str(described.origin), change


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def why_unusable(config: BrokerConfig) -> str | None:
    """The reason why the broker cannot keep its data in ``log.dir``; None when it can."""
    path = Path(config.log_dir)
    try:
        found = _nearest(path)
        if not found.is_dir():
            return f"log.dir = {path} cannot be used: {found} is not a directory"
        if not os.access(found, os.W_OK | os.X_OK):
            return f"log.dir = {path} cannot be used: this user may not write in {found}"
    except OSError as error:
        return f"log.dir = {path} cannot be used: {error.strerror or error} ({error.filename or path})"
    return None


def machine_warnings(config: BrokerConfig) -> list[str]:
    """Warnings about values beyond the machine's memory and disk, and about ports that are used twice."""
    values = {described.key: described.value for described in config.describe()}
    written = {described.key for described in config.describe() if described.origin.kind is not OriginKind.DEFAULT}
    memory = memory_bytes()
    warnings = [
        f"{key} = {_gib(int(values[key]))} is more than the {_gib(memory)} of memory that this machine has"
        for key in _MEMORY_KEYS
        if memory and int(values[key]) > memory
    ]
    disk = _disk_bytes(config)
    for keys, follows in (
        (_MARK_KEYS, "no record would ever be appended"),
        (_LOG_KEYS, "the disk is full before that is reached"),
    ):
        warnings += [
            f"{key} = {_gib(int(values[key]))} is more than the {_gib(disk)} of the disk of log.dir: {follows}"
            for key in keys
            if disk and key in written and int(values[key]) > disk
        ]
    return warnings + _same_ports(config)


def _same_ports(config: BrokerConfig) -> list[str]:
    served = [f"{listener.name}://{listener.address}" for listener in served_listeners(config)]
    others = {"seglog.http.listen": [config.seglog_http_listen], "listeners": served}
    port = native_listener(config).port
    return [
        f"{key} = {address} uses port {port}, which is that of seglog.listen = {config.seglog_listen}: choose "
        "another for one of them"
        for key, addresses in others.items()
        for address in addresses
        if port and address.rpartition(":")[2] == str(port)
    ]


def _nearest(path: Path) -> Path:
    """The directory itself, or the nearest existing one above it."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def memory_bytes() -> int:
    """Of this machine; 0 where it is not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _disk_bytes(config: BrokerConfig) -> int:
    """0 where it is not known."""
    try:
        found = os.statvfs(_nearest(Path(config.log_dir)))
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
