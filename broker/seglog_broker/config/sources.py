"""The broker's configuration from its sources: a TOML file, the environment, flags; each overrides those before it.

The text of the file, the environment and the flags are passed in as values. Only ``read_config_file`` touches a disk.
``ConfigSources`` keeps the sources, so that a running broker can read them again.
"""

import dataclasses
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from seglog_broker.config.broker_config import BROKER_KEYS, BROKER_NAMES, CONFIG_NAMES, BrokerConfig
from seglog_broker.config.keys import Effect, Key, Origin, OriginKind, Setting, Synonym, nearest_name, refuse
from seglog_broker.config.listener_keys import LISTENER_KEYS, PREFIX, ListenerKey, ListenerSetting, parse_listener_key
from seglog_broker.config.listeners import check_listeners, check_tokens, security_warnings
from seglog_broker.config.topic_config import TOPIC_KEYS, TOPIC_NAMES, TopicConfig
from seglog_broker.config.topic_overrides import check_together, consequences
from seglog_broker.config.values import Raw, Value, shown
from seglog_protocol.errors import InvalidConfigError

ENVIRONMENT_PREFIX: Final = "SEGLOG_"

OTHER_VARIABLES: Final = frozenset(
    {"SEGLOG_CONFIG", "SEGLOG_SERVER", "SEGLOG_PROFILE", "SEGLOG_USER", "SEGLOG_PASSWORD_FILE", "SEGLOG_CA"}
)
"""Variables with our prefix that do not belong to the broker's configuration."""

SECURITY_KEYS: Final[Mapping[str, str]] = {
    "sasl.jaas.config": "accounts are not part of the configuration: make one by seglogd user add NAME --data DIR.",
    "ssl.keystore.password": "a keystore in PEM has no password; ssl.key.password is that of the private key.",
    "ssl.truststore.password": "a truststore in PEM has no password.",
    "delegation.token.": "there are no delegation tokens in seglog: give each program an account of its own.",
    "principal.builder.class": "ssl.principal.mapping.rules makes names of certificates, and classes of Java cannot be "
    "loaded.",
}
"""How Kafka's keys of security begin that are refused, as to ignore them would leave something open; what to do."""

REMOVED_BROKER_KEYS: Final = frozenset(
    {"log.message.format.version", "log.message.downconversion.enable", "log.message.timestamp.difference.max.ms"}
)
"""Broker keys that Apache Kafka 4 no longer has."""

CLUSTER_PREFIX: Final = "zookeeper."
"""Keys that begin so stand in the files of Kafka 3, and have no effect: one node has no cluster."""

PROPERTIES_SUFFIX: Final = ".properties"
"""The end of the name of a file in Kafka's own format."""

CONFIG_BYTES_MAX: Final = 1_048_576
"""Bytes of a configuration file: every key with its longest value needs a small part of it."""

CLEANER_BUFFER_BYTES_MIN: Final = 1_048_576
"""Each cleaner thread needs more than this."""

_CONTINUED: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*")
_ENTRY: Final = re.compile(r"((?:\\.|[^\\\s=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

Layer = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class ConfigSources:
    """The sources of a process's configuration.

    ``file_name`` is that of a TOML file, empty for none. ``flags`` are ``key=value``; the last for a key counts.
    ``named`` are flags with a name of their own, flag -> (key, value); they override ``flags``. Flags override the
    environment, which overrides the file. Within one source the stronger name of a setting counts
    (``log.retention.ms`` before ``log.retention.hours``).
    """

    file_name: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def load(self) -> tuple[BrokerConfig, list[str]]:
        """``load_config`` with the file's present text."""
        return self.examine().checked()

    def examine(self, *, regular_only: bool = False) -> "Examined":
        """``examine_config`` with the file's present text; a file that cannot be read counts as a mistake.

        ``regular_only`` as for ``read_config_file``.
        """
        try:
            text = read_config_file(self.file_name, regular_only=regular_only) if self.file_name else None
        except InvalidConfigError as error:
            rest = examine_config(None, "", self.environ, self.flags, self.named)
            return rest._replace(mistakes=[error, *rest.mistakes])
        return examine_config(text, self.file_name, self.environ, self.flags, self.named)


class Examined(NamedTuple):
    """A configuration that was read, with its warnings and mistakes."""

    config: BrokerConfig
    """To be used only without mistakes: a key with a mistake has its default."""
    warnings: list[str]
    """Sentences about settings without the effect they seem to have."""
    mistakes: list[InvalidConfigError]
    """All settings that cannot be used."""

    def checked(self) -> tuple[BrokerConfig, list[str]]:
        """The configuration and its warnings. Raises the first mistake, if there is one."""
        if self.mistakes:
            raise self.mistakes[0]
        return self.config, self.warnings


def load_config(
    file_text: str | None,
    file_name: str,
    environ: Mapping[str, str],
    flags: Sequence[str],
    named: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[BrokerConfig, list[str]]:
    """The configuration and its warnings.

    ``file_text`` is TOML, or None when there is no file; for the others see ``ConfigSources``.

    Raises InvalidConfigError for the first setting that cannot be used, even where a stronger one overrides it. An
    unknown variable ``SEGLOG_...`` is only a warning: it may be meant for another version, or another program.
    """
    return examine_config(file_text, file_name, environ, flags, named).checked()


def examine_config(
    file_text: str | None,
    file_name: str,
    environ: Mapping[str, str],
    flags: Sequence[str],
    named: Mapping[str, tuple[str, str]] | None = None,
) -> Examined:
    """As ``load_config``, but collects all mistakes and raises none."""
    mistakes = _Mistakes()
    variables, warnings = _from_environment(environ, mistakes)
    layers = [
        _from_flags(flags, named or {}, mistakes),
        variables,
        {} if file_text is None else _from_file(file_text, file_name, mistakes),
    ]
    topic_keys, broker_keys = TOPIC_KEYS.values(), BROKER_KEYS.values()
    idle = [(name, "") for layer in layers for name in layer if name.startswith(CLUSTER_PREFIX)]
    topic_values, topic_settings = _resolve(
        ((key, key.synonyms) for key in topic_keys), layers, warnings, idle, mistakes
    )
    values, settings = _resolve(((key, key.names) for key in broker_keys), layers, warnings, idle, mistakes)
    warnings += _without_effect(idle)
    topic_origins = {name: setting.origin for name, setting in topic_settings.items()}
    origins = {name: setting.origin for name, setting in settings.items()}
    defaults = dataclasses.replace(TopicConfig(), **topic_values, origins=topic_origins)  # type: ignore[arg-type] # each value is of its key's kind
    own = _of_listeners(layers, mistakes)
    config = BrokerConfig(**values, topic_defaults=defaults, listener_settings=own, origins=origins)  # type: ignore[arg-type] # as above
    if not mistakes.found:  # else a default used for a wrong value might contradict a valid one
        for check in (partial(check_together, defaults), partial(check_broker_config, config)):
            with mistakes.noted():
                check()
        with mistakes.noted():
            warnings += security_warnings(config)
    warnings += consequences(topic_settings, defaults)
    return Examined(config, list(dict.fromkeys(warnings)), list(mistakes.found.values()))


def _without_effect(idle: Sequence[tuple[str, str]]) -> list[str]:
    """The warnings about settings that never have an effect, (name, sentence) each: of several, one that names all."""
    names = ", ".join(sorted({name for name, _ in idle}))
    if len(idle) == 1 and idle[0][1]:
        return [idle[0][1]]
    return [f'{names}: no effect here. "Keys without effect" in docs/CONFIG.md says why.'] if idle else []


def read_config_file(path: str, *, regular_only: bool = False) -> str:
    """The text of a configuration file.

    With ``regular_only`` a pipe or a device is refused and not waited for. Raises InvalidConfigError when the file
    cannot be read, or is larger than CONFIG_BYTES_MAX.
    """
    try:
        if regular_only and not stat.S_ISREG(Path(path).stat().st_mode):
            raise InvalidConfigError(
                f"The configuration file {path} is not a regular file any more, and only such a file is read again.",
                key="",
            )
        with Path(path).open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
        if len(content) > CONFIG_BYTES_MAX:
            raise InvalidConfigError(
                f"The configuration file {path} is larger than {CONFIG_BYTES_MAX} bytes, so it is none of seglog's.",
                key="",
            )
        return content.decode()
    except OSError as error:
        raise InvalidConfigError(f"The configuration file {path} cannot be read: {error.strerror}.", key="") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"The configuration file {path} is not UTF-8 text.", key="") from error


def variable_of(name: str) -> str:
    """The environment variable of a key: ``log.dir`` -> ``SEGLOG_LOG_DIR``, ``seglog.listen`` -> ``SEGLOG_LISTEN``."""
    return ENVIRONMENT_PREFIX + name.removeprefix("seglog.").upper().replace(".", "_")


# --- Sources ----------------------------------------------------------------------------------------------------------


class _Mistakes:
    """Collects the errors of a configuration, each message once."""

    def __init__(self) -> None:
        self.found: dict[str, InvalidConfigError] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an InvalidConfigError raised in the block, and go on after the block."""
        try:
            yield
        except InvalidConfigError as error:
            self.found.setdefault(error.message, error)


def _from_file(text: str, file_name: str, mistakes: _Mistakes) -> Layer:
    layer: dict[str, Setting] = {}
    with mistakes.noted():
        is_kafkas = file_name.endswith(PROPERTIES_SUFFIX)
        found = parse_properties(text) if is_kafkas else _toml(text, file_name)
        for name, raw in found.items():
            with mistakes.noted():
                if isinstance(raw, dict):
                    _refuse_table(name, raw, file_name)
                layer[name] = _known(Setting(name, raw, Origin(OriginKind.FILE, f'{file_name}: "{name}"')))
    return layer


def _toml(text: str, file_name: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most starts have no file

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised by int() for thousands of digits
        raise InvalidConfigError(
            f"{file_name} is not valid TOML: {error}. A file of Kafka's has a name that ends in {PROPERTIES_SUFFIX}.",
            key="",
        ) from error


def parse_properties(text: str) -> dict[str, str]:
    """The properties, in the format of Java; of equal keys the last wins. Any text has some: nothing is an error."""
    found = {}
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "!")))
    for line in _CONTINUED.sub(r"\1", kept).split("\n"):
        entry = _ENTRY.fullmatch(line.lstrip())
        if entry is not None and line.strip():
            found[_plain(entry[1])] = _plain(entry[2]).strip()
    return found


def _plain(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        escaped = found[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _CONTROLS.get(escaped, escaped)

    return _ESCAPE.sub(character, text)


def _from_environment(environ: Mapping[str, str], mistakes: _Mistakes) -> tuple[Layer, list[str]]:
    names = {variable_of(name): name for name in CONFIG_NAMES}
    short_names = frozenset(
        variable.removeprefix(ENVIRONMENT_PREFIX) for variable in names
    )  # the common prefix would spoil the comparison
    layer: dict[str, Setting] = {}
    warnings: list[str] = []
    for variable, raw in sorted(environ.items()):
        name = names.get(variable) or _listener_key_of(variable)
        if name:
            layer[name] = Setting(name, raw, Origin(OriginKind.ENVIRONMENT, variable))
        elif variable.startswith(variable_of(PREFIX)):
            with mistakes.noted():  # no other program has this prefix, and a listener might be weaker than it is to be
                raise InvalidConfigError(
                    f"The environment variable {variable} does not end in a key of one listener. Those keys are: "
                    f"{', '.join(LISTENER_KEYS)}.",
                    key=variable,
                )
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in OTHER_VARIABLES:
            nearest = nearest_name(variable.removeprefix(ENVIRONMENT_PREFIX), short_names)
            hint = f"; did you mean {ENVIRONMENT_PREFIX}{nearest}?" if nearest else "."
            warnings.append(f"The environment variable {variable} is not a configuration key and was ignored{hint}")
    return layer, warnings


def _listener_key_of(variable: str) -> str:
    """The key of one listener, as of SEGLOG_LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH; empty for other variables."""
    begin = variable_of(PREFIX)
    rest = variable.removeprefix(begin) if variable.startswith(begin) else ""
    for key in LISTENER_KEYS:
        listener = rest.removesuffix(variable_of(key).replace(ENVIRONMENT_PREFIX, "_", 1))
        if listener and listener != rest:
            return ListenerKey(listener, key).name
    return ""


def _from_flags(flags: Iterable[str], named: Mapping[str, tuple[str, str]], mistakes: _Mistakes) -> Layer:
    layer: dict[str, Setting] = {}
    for flag in flags:
        with mistakes.noted():
            name, equals, raw = (part.strip() for part in flag.partition("="))
            if not equals or not name:
                raise InvalidConfigError(
                    f"--set {flag} cannot be used: write --set key=value, for example --set log.dir=./data.", key=name
                )
            layer[name] = _known(Setting(name, raw, Origin(OriginKind.FLAG, f"--set {name}")))
    for flag, (name, raw) in named.items():
        layer[name] = Setting(name, raw, Origin(OriginKind.FLAG, flag))
    return layer


# --- Resolving --------------------------------------------------------------------------------------------------------


def _resolve(
    wanted: Iterable[tuple[Key, tuple[Synonym, ...]]],
    layers: Sequence[Layer],
    warnings: list[str],
    idle: list[tuple[str, str]],
    mistakes: _Mistakes,
) -> tuple[dict[str, Value], dict[str, Setting]]:
    """The values that were set, by attribute, and their settings, by key; layers and names come strongest first.

    Settings that never have an effect are added to ``idle``, each with its name and a sentence.
    """
    values: dict[str, Value] = {}
    settings: dict[str, Setting] = {}
    for key, synonyms in wanted:
        found = [[(layer[name.name], name) for name in synonyms if name.name in layer] for layer in layers]
        parsed = [_parsed(key, layer, mistakes) for layer in found]
        strongest = next((layer for layer in parsed if layer), None)
        if strongest is None:
            continue
        (setting, value), *hidden = strongest
        values[key.attribute], settings[key.name] = value, setting
        warning = _warning(key, setting, value)
        if warning is not None and key.is_noted(value):  # named with its value where another one describes the broker
            idle.append((setting.name if key.holds is None else f"{setting.name} = {shown(setting.raw)}", warning))
        elif warning is not None:
            warnings.append(warning)
        warnings += [
            f"{weaker.name} ({weaker.origin}) has no effect beside {setting.name}, which is the stronger name for the "
            "same setting."
            for weaker, other in hidden
            if other != value and BROKER_KEYS.get(weaker.name, key) is key  # else it is also a key of its own
        ]
    return values, settings


def _of_listeners(layers: Sequence[Layer], mistakes: _Mistakes) -> tuple[ListenerSetting, ...]:
    """The settings of single listeners, each of the strongest layer that has it."""
    found: dict[str, ListenerSetting] = {}
    for layer in reversed(layers):
        for setting in layer.values():
            written = parse_listener_key(setting.name)
            if written is not None:
                key = BROKER_KEYS[written.key]
                with mistakes.noted():
                    value = key.parse(setting)
                    found[written.name] = ListenerSetting(written.listener, key, value, setting.origin)
    return tuple(setting for _, setting in sorted(found.items()))


def _parsed(key: Key, found: Iterable[tuple[Setting, Synonym]], mistakes: _Mistakes) -> list[tuple[Setting, Value]]:
    parsed = []
    for setting, name in found:
        with mistakes.noted():
            parsed.append((setting, key.parse(setting, name)))
    return parsed


def _warning(key: Key, setting: Setting, value: Value) -> str | None:
    own = BROKER_NAMES.get(setting.name)
    if own is not None and own is not key and own.effect is not Effect.NOW:
        return None  # the key itself gives the same warning
    return key.warning(setting, value)


def check_broker_config(config: BrokerConfig) -> None:
    """Raise InvalidConfigError when values of broker keys contradict each other."""
    check_listeners(config)
    check_tokens(config)
    _check_share_groups(config)
    threads = max(config.log_cleaner_threads, 1)
    if config.log_cleaner_dedupe_buffer_size // threads <= CLEANER_BUFFER_BYTES_MIN:
        raise InvalidConfigError(
            f"log.cleaner.dedupe.buffer.size = {config.log_cleaner_dedupe_buffer_size} cannot be used: it must be more "
            f"than {CLEANER_BUFFER_BYTES_MIN} for each of the {threads} of log.cleaner.threads.",
            key="log.cleaner.dedupe.buffer.size",
        )


def _check_share_groups(config: BrokerConfig) -> None:
    """Refuse limits of share groups that contradict each other, as Kafka does."""
    in_order = [("group.share.max.size", "group.share.max.share.sessions")]
    for least in BROKER_KEYS:
        if least.startswith("group.share.min."):
            name = least.replace(".min.", ".")
            in_order += [(least, name), (name, least.replace(".min.", ".max."))]
    for smaller, larger in in_order:
        if getattr(config, BROKER_KEYS[smaller].attribute) > getattr(config, BROKER_KEYS[larger].attribute):
            raise InvalidConfigError(f"{larger} must be greater than or equal to {smaller}", key=larger)
    if config.group_share_heartbeat_interval_ms >= config.group_share_session_timeout_ms:
        name = "group.share.heartbeat.interval.ms"
        raise InvalidConfigError(f"{name} must be less than group.share.session.timeout.ms", key=name)


# --- Refusing ---------------------------------------------------------------------------------------------------------


def _known(setting: Setting) -> Setting:
    name = setting.name
    if name in CONFIG_NAMES or name.startswith(CLUSTER_PREFIX) or parse_listener_key(name) is not None:
        return setting
    bare = name.removeprefix(PREFIX).partition(".")[2] if name.startswith(PREFIX) else name
    if name in REMOVED_BROKER_KEYS:
        hint = "it was removed in Apache Kafka 4."
    elif name in TOPIC_NAMES:
        default = next((synonym.name for synonym in TOPIC_NAMES[name].synonyms), "")
        hint = f"it is a topic key, and {default} is the broker's default for it." if default else "it is a topic key."
    elif name.endswith("sasl.jaas.config"):  # Kafka's accounts of PLAIN stand in listener.name.X.plain.sasl.jaas.config
        hint = SECURITY_KEYS["sasl.jaas.config"]
    elif prefix := next((prefix for prefix in SECURITY_KEYS if bare.startswith(prefix)), ""):
        hint = SECURITY_KEYS[prefix]
    elif name.startswith(PREFIX):
        hint = f"a listener may have these for itself: {', '.join(LISTENER_KEYS)}; all others hold for all listeners."
    elif _is_kafkas(name):
        hint = "it is Kafka's, and seglogd has no use for it: leave it out."
    else:
        nearest = nearest_name(name, CONFIG_NAMES)
        hint = f"did you mean {nearest}?" if nearest else "docs/CONFIG.md lists the known keys."
    raise InvalidConfigError(f"{name} ({setting.origin}) is not a broker configuration key: {hint}", key=name)


def _is_kafkas(name: str) -> bool:
    """Whether it is a broker key of Kafka's that says how TLS and SASL are done."""
    from seglog_broker.config.kafka_configs import kafka_keys  # noqa: PLC0415 - a correct configuration never needs it

    return name.startswith(("ssl.", "sasl.", "security.")) and name in kafka_keys("broker")


def _refuse_table(name: str, table: Mapping[str, Raw], file_name: str) -> NoReturn:
    inner: Raw = table
    path = [name]
    while isinstance(inner, Mapping) and inner:
        first, inner = next(iter(inner.items()))
        path.append(first)
    key = whole = ".".join(path)
    if parse_listener_key(whole) is None:
        key = next((known for first in range(len(path)) if (known := ".".join(path[first:])) in CONFIG_NAMES), "")
    if isinstance(inner, Mapping):
        refuse(Setting(key or whole, {}, Origin(OriginKind.FILE, file_name)), "must be a value, not a table")
    if not key:
        raise InvalidConfigError(
            f'{file_name} holds a table "{name}", but the file may hold no tables: keys are written in quotes at its '
            'top, as in "num.partitions" = 3, and docs/CONFIG.md lists them.',
            key=whole,
        )
    raise InvalidConfigError(
        f'{file_name} holds a table "{name}", but configuration keys are flat and written in quotes: write "{key}" = '
        "... at the top of the file, above any line in brackets.",
        key=key,
    )
