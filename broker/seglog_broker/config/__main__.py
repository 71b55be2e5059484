"""``python -m seglog_broker.config`` prints the page CONFIG.md, of the tables of keys that the broker checks with."""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from seglog_broker.config.broker_config import BROKER_KEYS, CONFIG_NAMES
from seglog_broker.config.kafka_configs import kafka_keys
from seglog_broker.config.keys import Effect, Key
from seglog_broker.config.listener_keys import LISTENER_KEYS
from seglog_broker.config.sources import OTHER_VARIABLES, REMOVED_BROKER_KEYS
from seglog_broker.config.topic_config import TOPIC_KEYS
from seglog_broker.config.topic_overrides import REMOVED_TOPIC_KEYS
from seglog_protocol.quantities import reading_of, unit_of

_PAGE: Final = """\
# Configuration

<!-- Printed by `python -m seglog_broker.config` from the tables in broker/seglog_broker/config. -->

seglog uses Apache Kafka's configuration keys, with Kafka's types, defaults and ranges. A few keys are its own and begin
with `seglog.`. Nothing has to be set: `seglogd` alone listens on `{listen}` and keeps its data in `{log_dir}`.

Every key in the tables below is accepted and checked. A value outside its range, or an unknown key, is refused with a
sentence that names the range or the most similar key. Topic keys and broker keys work, except where their meaning says
*not yet*: such a key is checked and stored, a later version uses it, and setting it gives a warning. [Keys without
effect](#keys-without-effect) are accepted so that Kafka's configurations can be used unchanged.

## Where values come from

**The broker** reads, weakest first:

1. the defaults in the tables;
2. a TOML file. Keys are flat and written in quotes, because they contain dots: `"log.dir" = "/var/lib/seglog"`. A file
   whose name ends in `.properties` is read in Kafka's own format: `log.dir=/var/lib/seglog`;
3. the environment: `SEGLOG_` and the key in upper case with `_` for `.`: `SEGLOG_LOG_DIR` is `log.dir`. The prefix is \
not
   doubled: `SEGLOG_LISTEN` is `seglog.listen`. An unknown variable `SEGLOG_...` gives a warning, not an error.
   {others} do not belong to the broker's configuration;
4. flags: `seglogd --data /var/lib/seglog --set num.partitions=3`. If a key is set twice, the last flag counts;
5. settings that Kafka's clients make at run time for all brokers;
6. settings that they make for this broker. See [Settings made at run time](#settings-made-at-run-time).

**A topic** uses its own values first (`seglog topic create events --config segment.bytes=262144`), then those that the
broker sets for all topics under the *broker-wide* names, then the defaults. Of several broker-wide names, the leftmost
counts within one source; a stronger source counts before a stronger name.

```toml
# seglogd.toml: keep what every topic holds for 30 days, except where a topic says otherwise
"log.dir" = "/var/lib/seglog"
"seglog.listen" = "[::1]:9192"
"log.retention.hours" = 720
"log.cleanup.policy" = ["delete"]
```

Descriptions show the origin of every value: `default`, `file seglogd.toml: "log.retention.hours"`,
`environment SEGLOG_LOG_DIR`, `flag --set log.dir`, `dynamic default num.partitions` (5.),
`dynamic broker num.partitions` (6.), `topic retention.ms`.

`seglogd --check-config`, together with the other options, prints the value and the origin of every key, also of
settings made at run time, and then all mistakes and warnings. Its exit code is 0 when the broker would start, else 2.

## Changing a running broker

SIGHUP makes a broker that was started with a configuration file read it again (`systemctl reload`, `kill -HUP`). A file
with a mistake changes nothing: each mistake is logged as `configuration_not_reloaded`, with its place, and `seglog
ping` names them until a reload succeeds. Otherwise

- keys with *at a reload* below, and all defaults for topics, take effect at once, together; each change is logged as
  `configuration_changed` with the old value and the new one. A topic that sets a key for itself keeps its own value.
  Index settings take effect with the next segment;
- keys with *at a restart* keep their value, and each change is logged as `configuration_needs_restart`;
- certificate, key and truststore are read again (`certificate_reloaded`), also by a broker without a configuration
  file. New connections have them, those that are open stay as they are. One that cannot be used changes nothing.

A key that is no longer in the file falls back to its next weaker value. The environment and the flags are those of the
start; they still override the file.

## Settings made at run time

Kafka's clients set keys with *at a reload*, and defaults of topics, in a running broker:

```text
kafka-configs.sh --bootstrap-server localhost:9092 --alter --entity-type brokers \\
    --entity-name 1 --add-config num.partitions=3
kafka-configs.sh --bootstrap-server localhost:9092 --alter --entity-type brokers \\
    --entity-default --add-config log.retention.ms=7d
```

`1` is the `node.id` of the broker; `--entity-default` is for all brokers, and weaker. A default of topics has one name
here, the first of its broker-wide names: `log.retention.ms`, not `log.retention.hours`. A value is checked as one in a
file is, kept in `seglog-configs.json` in the log directory, and then in force at once; the change is logged as
`configuration_changed`. It stays over file, environment and flags, after SIGHUP and after a restart, until it is
deleted (`--delete-config`): then the next weaker value is in force again.

A key without effect that Kafka's clients set at run time, such as `num.io.threads`, is kept, too, and the log warns as
at a start. A key with *at a restart* is refused with INVALID_REQUEST and a sentence that says so; so is
`advertised.listeners`, as in Kafka. A start is refused where file and settings contradict each other, and where
`seglog-configs.json` is not understood: no setting is dropped in silence.

## How values are written

As text, a whole number has only digits and a sign, a boolean is `true` or `false`, and a list has commas between its
words. A number of milliseconds, minutes, hours or bytes may also have a unit: `7d`, `1d12h`, `30m`, `10s`, `500ms`
(weeks are `w`), and `1GiB`, `64MiB` (powers of 1024, also `1G`, `64M`), `500kB` (powers of 1000). This holds wherever a
value is given: `"log.retention.ms" = "30d"`, `SEGLOG_MESSAGE_MAX_BYTES=4MiB`, `--config retention.ms=7d`,
`config={{"retention.ms": "7d"}}`. The number itself is stored and shown. In TOML, numbers and booleans may be written
without quotes, and lists as arrays. *int* has 32 bits (at most 2147483647), *long* 64 (at most 9223372036854775807).

## Keys of one listener

`listener.name.NAME.KEY` is for the listener `NAME` of `listeners` what `KEY` is for all, as in Kafka; `NAME` stands
there in small letters: `listener.name.external.ssl.keystore.location=/etc/seglog/external.pem`. As a variable that is
`SEGLOG_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_LOCATION`. The address of seglog's own protocol and that of HTTP
have no name, and what holds for all. A listener may have these for itself, and a key of any other, or of a listener
that is not there, is refused:

{listener_keys}

## Where seglog differs from Kafka

- `segment.bytes` may be as small as 1024. Apache Kafka 4 refuses values below 1048576, and a warning says so.
- `internal.segment.bytes` is another name for `segment.bytes`, and the stronger one.
- `segment.index.bytes` is at least 24: room for two entries of a time index.
- There is exactly one log directory. A list in `log.dir` or `log.dirs` is refused. The default is `{log_dir}` in the
  directory where `seglogd` is started, never a temporary directory.
- Kafka 4 has removed these keys, and they are unknown here, too: {removed}.

## Topic keys

{topics}
## Broker keys

The broker-wide names in the table above are broker keys, too. `log.roll.hours`, `log.roll.jitter.hours` and
`log.retention.hours` count hours, `log.retention.minutes` counts minutes. Any negative broker-wide retention time means
-1, and 0 is refused (a topic may have 0).

{brokers}
## Keys without effect

These keys of Kafka's never have an effect on one node. They are accepted and checked so that Kafka's configurations can
be used unchanged; setting one gives a warning with the reason, setting several one with their names. A value that
describes what the broker does anyway, such as `preallocate=false`, gives no warning. Keys that begin with `zookeeper.`
are accepted likewise.

{without_effect}
## What Kafka's clients see and change

Kafka's clients and tools ask for configuration by name (DescribeConfigs), and many write back what they have read. They
get every key of Apache Kafka 4.4.0 with Kafka's type, documentation and synonyms, and seglog's own keys beside them. Of
a key in the tables above they get the value and the default that hold here.

- **Topics** can be changed as a whole (AlterConfigs) or key by key (IncrementalAlterConfigs: set, delete, append to a
  list, subtract from it). Either can be only validated. What is refused gets Kafka's error. The ranges are those of the
  table of topic keys: numbers with units and small segments are taken, which Kafka refuses. A setting without effect is
  accepted as everywhere else, `remote.storage.enable=true` too, and logged as `config_warning`.
- **Brokers**, one by its number or all of them, can be changed in the keys that [need no
  restart](#settings-made-at-run-time), which are not the same ones as in Kafka; all others are read-only. Of each key
  the weaker values follow as synonyms, in Kafka's order. `min.insync.replicas` is always set for all brokers, as in a
  new Kafka cluster, and cannot be set for one. Kafka keeps keys that it does not know for its plugins; here they are
  refused.
- **Loggers of a broker**: one, `root`, with the level of `seglog.log.level`; read-only.
- **Groups** can be changed in `consumer.session.timeout.ms` and `consumer.heartbeat.interval.ms`, see
  [GROUPS.md](GROUPS.md#two-protocols). All other keys of groups, and those of **client metrics**, have Kafka's defaults
  and are read-only.
- A broker key with several names (`log.retention.hours`) is shown under the name it was set with. Of several set names
  the strongest one is shown.

These broker keys are shown with Kafka's defaults, or with the one value that fits a cluster of one node. They have no
effect here, and are unknown in a configuration file:

{described_only}
"""


def render_document() -> str:
    """The whole page, ending with a line feed."""
    keys = [*TOPIC_KEYS.values(), *BROKER_KEYS.values()]
    working = [key for key in keys if key.effect is not Effect.NEVER]
    topics = [(*_row(key), _names(key)) for key in working if key.is_topic_key]
    brokers = [
        (*_row(key), str(key.change) if key.effect is Effect.NOW else "") for key in working if not key.is_topic_key
    ]
    idle = [
        (*_cells(key), "topic" if key.is_topic_key else "broker", _meaning_in_kafka(key), key.note, _names(key))
        for key in keys
        if key.effect is Effect.NEVER
    ]
    columns = ["key", "type", "default", "valid"]
    more = ["meaning", "when to change it"]
    return _PAGE.format(
        listen=BROKER_KEYS["seglog.listen"].default,
        log_dir=BROKER_KEYS["log.dir"].default,
        listener_keys=_filled(LISTENER_KEYS),
        others=_listed(sorted(OTHER_VARIABLES)),
        removed=_listed(sorted(REMOVED_TOPIC_KEYS | REMOVED_BROKER_KEYS)),
        topics=_table([*columns, *more, "broker-wide"], topics),
        brokers=_table([*columns, *more, "a new value is in force"], brokers),
        without_effect=_table([*columns, "of", "meaning in Kafka", "why it has no effect", "broker-wide"], idle),
        described_only=_filled(name for name in kafka_keys("broker") if name not in CONFIG_NAMES),
    )


def _row(key: Key) -> list[str]:
    note = "" if key.effect is Effect.NOW else f" *{key.effect.capitalize()}*: {key.note}."
    return [*_cells(key), key.doc + note, key.when]


def _cells(key: Key) -> list[str]:
    """Names, type, default and valid values."""
    valid = "true, false" if key.kind.type_name == "boolean" else key.kind.valid or "any"
    synonyms = [] if key.is_topic_key else [synonym.name for synonym in key.synonyms if synonym.name != key.name]
    return [_listed((key.name, *key.aliases, *synonyms), " "), key.kind.type_name, _default(key), valid]


def _meaning_in_kafka(key: Key) -> str:
    """The first sentence of Kafka's own documentation."""
    documentation = kafka_keys("topic" if key.is_topic_key else "broker")[key.name].doc
    sentence = re.split(r"\.(?:\s|<|$)", documentation, maxsplit=1)[0]
    return re.sub(r"<[^>]*>", "", sentence) + "."


def _default(key: Key) -> str:
    text = key.text(key.default)
    is_number = isinstance(key.default, int) and not isinstance(key.default, bool)
    reading = reading_of(int(text), unit_of(key.name)) if is_number else ""
    return (f"`{text}`" if text else "empty") + (f" ({reading})" if reading else "")


def _names(key: Key) -> str:
    return _listed((synonym.name for synonym in key.synonyms), " ")


def _listed(names: Iterable[str], between: str = ", ") -> str:
    return between.join(f"`{name}`" for name in names)


def _filled(names: Iterable[str]) -> str:
    return textwrap.fill(f"{_listed(names)}.", 120, break_on_hyphens=False)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.buffer.write(render_document().encode())  # UTF-8, whatever the terminal speaks
