"""docs/CONFIG.md, written from the tables of keys, so that it cannot drift from what the broker checks."""

from collections.abc import Iterable, Sequence
from typing import Final

from seglog_broker.config.broker_config import BROKER_KEYS
from seglog_broker.config.keys import Change, Effect, Key
from seglog_broker.config.sources import OTHER_VARIABLES, REMOVED_BROKER_KEYS, variable_of
from seglog_broker.config.topic_config import TOPIC_KEYS
from seglog_broker.config.topic_overrides import REMOVED_TOPIC_KEYS
from seglog_broker.config.values import INT_MAX, LONG_MAX
from seglog_protocol.quantities import reading_of, unit_of

_HEAD: Final = """\
# Configuration

<!-- Written by `python -m seglog_broker.config > docs/CONFIG.md`. Change the tables in broker/seglog_broker/config. -->

seglog uses Apache Kafka's configuration keys, with Kafka's types, defaults and ranges. A few keys are its own and begin
with `seglog.`. Nothing has to be set: `seglogd` alone serves `{listen}` and keeps its data in `{log_dir}`.

Every key of the tables below is accepted and checked. A value outside its range, or an unknown key, is refused with a
sentence that names the range or the most similar key. The column *effect* says what follows from setting a key:

| effect | meaning |
|---|---|
| now | it works |
| not yet | it is checked and kept, a later version acts on it; setting it gives a warning |
| never on one node | it is accepted so that Kafka's configurations can be used as they are; it gives a warning, too |

There is no warning for a value that says what the broker does anyway, such as `retention.ms=-1`.

## Where values come from

**The broker** reads, weakest first:

1. the defaults in the tables;
2. a file in TOML. Keys are flat and stand in quotes, because they contain dots: `"log.dir" = "/var/lib/seglog"`;
3. the environment: `SEGLOG_` and the key in upper case with `_` for `.`: `{env_dir}` is `log.dir`. The prefix is not
   doubled: `{env_listen}` is `seglog.listen`. A variable `SEGLOG_...` that is no key is a warning, not an error.
   {others} are not configuration of the broker;
4. flags: `seglogd --data /var/lib/seglog --set num.partitions=3`. Of two for one key, the last counts.

**A topic** has its own values (`seglog topic create events --config segment.bytes=262144`), then what the broker sets
for all topics under the *broker-wide* names, then the default. Where there are several broker-wide names, the leftmost
counts within one source, and a stronger source counts before a stronger name.

```toml
# seglogd.toml: keep what every topic holds for 30 days, except where a topic says otherwise
"log.dir" = "/var/lib/seglog"
"seglog.listen" = "0.0.0.0:9192"
"log.retention.hours" = 720
"log.cleanup.policy" = ["delete"]
```

Every value knows its origin, and descriptions show it: `default`, `file seglogd.toml: "log.retention.hours"`,
`environment SEGLOG_LOG_DIR`, `flag --set log.dir`, `topic retention.ms`.

`seglogd --check-config`, with the other options as they are to be, prints the value and the origin of every key and
then all that is wrong, and ends: with exit code 0 when the broker would start, else 2.

## Changing a running broker

SIGHUP has a broker that was started with a configuration file read it again (`systemctl reload`, `kill -HUP`). Nothing
changes while there is a mistake in it: each is logged as `configuration_not_reloaded`, with its place. Otherwise

- keys with *at a reload* below, and all defaults for topics, are in force at once, together; each that differs is
  logged as `configuration_changed` with its old value and the new one. A topic that sets a key for itself keeps its own
  value. Index settings are in force from the next segment on;
- keys with *at a restart* keep their value, and each that differs is logged as `configuration_needs_restart`.

A key that is no longer in the file has its next weaker value again. The environment and the flags are those of the
start, and stronger than the file as ever.

Written as text, a whole number has only digits and a sign, a boolean is `true` or `false`, a list has commas between
its words. A number of milliseconds, minutes, hours or bytes may also be written with its unit: `7d`, `1d12h`, `30m`,
`10s`, `500ms` (weeks are `w`), and `1GiB`, `64MiB` (powers of 1024, also `1G`, `64M`), `500kB` (powers of 1000). That
is so wherever a value is given: `"log.retention.ms" = "30d"`, `SEGLOG_MESSAGE_MAX_BYTES=4MiB`,
`--config retention.ms=7d`, `config={{"retention.ms": "7d"}}`; kept and shown is the number. In TOML, numbers and
booleans may also stand without quotes, and lists as arrays. *int* has 32 bits (at most {int_max}), *long* 64 (at most
{long_max}).

## Where seglog differs from Kafka

- `segment.bytes` may be as small as 1024. Apache Kafka 4 refuses values below 1048576, and a warning says so.
- `internal.segment.bytes` is another name for `segment.bytes`, and the stronger one.
- `segment.index.bytes` is at least 24: room for two entries of a time index.
- There is exactly one log directory. A list in `log.dir` or `log.dirs` is refused. The default is `{log_dir}`, below
  the directory `seglogd` is started in, never a temporary one.
- Kafka 4 has dropped these keys, and they are unknown here too: {removed}.
"""

_TOPIC_HEAD: Final = """
## Topic keys

"""

_BROKER_HEAD: Final = """
## Broker keys

The broker-wide names in the table above are broker keys, too. `log.roll.hours`, `log.roll.jitter.hours` and
`log.retention.hours` count hours, `log.retention.minutes` counts minutes. Any negative broker-wide retention time means
-1, and 0 is refused (a topic may have 0).

"""


def render_document() -> str:
    """The whole page, ending with a line feed."""
    head = _HEAD.format(
        listen=BROKER_KEYS["seglog.listen"].default,
        log_dir=BROKER_KEYS["log.dir"].default,
        env_dir=variable_of("log.dir"),
        env_listen=variable_of("seglog.listen"),
        others=", ".join(f"`{name}`" for name in sorted(OTHER_VARIABLES)),
        removed=", ".join(f"`{name}`" for name in sorted(REMOVED_TOPIC_KEYS | REMOVED_BROKER_KEYS)),
        int_max=INT_MAX,
        long_max=LONG_MAX,
    )
    columns = ["key", "type", "default", "valid", "effect", "meaning", "when to change it"]
    topic_rows = [[*_row(key), _names(key)] for key in TOPIC_KEYS.values()]
    broker_rows = [[*_row(key), _change(key)] for key in BROKER_KEYS.values()]
    topics = _table([*columns, "broker-wide"], topic_rows)
    return head + _TOPIC_HEAD + topics + _BROKER_HEAD + _table([*columns, "a new value is in force"], broker_rows)


def _change(key: Key) -> str:
    """When a running broker takes a new value; empty where that would make no difference."""
    return str(Change.RELOAD if key.is_dynamic else Change.RESTART) if key.effect is Effect.NOW else ""


def _row(key: Key) -> list[str]:
    note = f" ({key.note})" if key.note else ""
    valid = "true, false" if key.kind.type_name == "boolean" else key.kind.valid or "any"
    names = [key.name, *key.aliases]
    if not key.is_topic_key:
        names += [synonym.name for synonym in key.synonyms if synonym.name != key.name]
    return [
        " ".join(f"`{name}`" for name in names),
        key.kind.type_name,
        _default(key),
        valid,
        key.effect + note,
        key.doc,
        key.when,
    ]


def _default(key: Key) -> str:
    text = key.text(key.default)
    is_number = isinstance(key.default, int) and not isinstance(key.default, bool)
    reading = reading_of(int(text), unit_of(key.name)) if is_number else ""
    return (f"`{text}`" if text else "empty") + (f" ({reading})" if reading else "")


def _names(key: Key) -> str:
    return " ".join(f"`{synonym.name}`" for synonym in key.synonyms)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
