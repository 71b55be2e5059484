"""The configuration of a broker in tests: Kafka's keys as keyword arguments, and values that suit tests."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.config.broker_config import BROKER_NAMES, TOPIC_DEFAULT_NAMES
from seglog_broker.config.keys import nearest_name
from seglog_protocol.errors import SeglogError

ErrorT = TypeVar("ErrorT", bound=Exception)

SUPER_USERS: Final = "super.users"
"""Of several principals with semicolons between them, unlike other lists."""

FOR_TESTS: Final[Mapping[str, str]] = {
    "connection.failed.authentication.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    "group.share.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "seglog.http.listen": "",
    "share.coordinator.state.topic.num.partitions": "1",
    "seglog.log.level": "info",
}
"""Where the default of a broker would only make tests slow.

A failed login is answered at once, a new group does not wait for further members, members may have short sessions and
with them frequent heartbeats, share groups assign at once, and what groups commit is in one partition. There is no
HTTP: they run side by side.
"""


def flags_of(config: Mapping[str, object], keywords: Mapping[str, object]) -> dict[str, str]:
    """Keys and values as the daemon takes them. ``log_retention_ms`` names ``log.retention.ms``.

    Raises TypeError for a keyword that names no key, or an unknown key of ``config``, with the nearest that is known.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config is a mapping of keys to values, not {config!r}")
    names = {name: name for name in (*BROKER_NAMES, *TOPIC_DEFAULT_NAMES)}
    by_keyword = {name.replace(".", "_"): name for name in names}
    flags = dict(FOR_TESTS)
    chosen: set[str] = set()
    for given, known, what in ((keywords, by_keyword, "argument"), (config, names, "key")):
        for name, value in given.items():
            if name not in known:
                near = nearest_name(name, known)
                hint = f"; did you mean {near!r}?" if near else ""
                raise TypeError(f"a broker has no {what} {name!r}{hint}")
            if known[name] in chosen:
                raise TypeError(f"the key {known[name]!r} is given twice")
            chosen.add(known[name])
            flags[known[name]] = _text(value, ";" if known[name] == SUPER_USERS else ",")
    return flags


def config_of(flags: Mapping[str, str], log_dir: str, listen: str, kafka: str) -> BrokerConfig:
    """The checked configuration of a broker with listeners ``PROTOCOL://HOST:PORT``. Raises InvalidConfigError."""
    named = {f"Broker({name.replace('.', '_')}=…)": (name, value) for name, value in flags.items()}
    places = {
        "Broker(directory=…)": ("log.dir", log_dir),
        "Broker(listen=…)": ("seglog.listen", listen),
        "Broker(kafka=…)": ("listeners", kafka),
    }
    config, _ = load_config(None, "", {}, [], places | named)
    return config


_OPTIONS: Final = {
    "--set log.dir=DIRECTORY": "Broker(directory=…)",
    "--listen": "Broker(listen=…)",
    "--kafka": "Broker(kafka=…)",
}
"""The daemon's options that its errors name, and the arguments that do the same."""


def reworded(error: ErrorT) -> ErrorT:
    """The error with the arguments of ``Broker`` in its advice, in place of the daemon's options."""
    text = str(error)
    for option, argument in _OPTIONS.items():
        text = text.replace(option, argument)
    error.args = (text,)
    if isinstance(error, SeglogError):
        error.message = text
    return error


def in_words_of_a_command(text: str) -> str:
    """With the options again, for a command that runs a ``Broker``."""
    for option, argument in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def _text(value: Any, separator: str = ",") -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return separator.join(map(_text, value))
    return str(value)
