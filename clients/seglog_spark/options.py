"""The options of source and sink: names, values and contradictions. Needs neither Spark nor a broker.

Names and defaults are those of Spark's Kafka connector, so that moving a program takes only another format and address.
Spark passes keys in lower case and values as text. Unknown options are refused, so that a misspelt one is not silently
replaced by a default.
"""

import difflib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from seglog.core.moments import AtOffset, AtTime, parse_moment
from seglog.core.security import MECHANISMS, parse_server
from seglog_protocol.compression import Codec
from seglog_protocol.isolation import ISOLATIONS, READ_UNCOMMITTED, Isolation
from seglog_protocol.messages import Ack
from seglog_spark.offsets import EARLIEST, LATEST, Offsets, TopicPartition, parse_assign, parse_offsets
from seglog_spark.servers import SECURITY_OPTIONS, SecuredServer, Server

ParsedT = TypeVar("ParsedT")

Mode = Literal["batch", "stream"]
Guarantee = Literal["at-least-once", "effectively-once", "exactly-once"]

TARGET_TASK_BYTES: Final = 128 * 1024 * 1024
"""Bytes for one task to read: starting a task costs as much as reading a few megabytes."""

TARGET_TASK_BYTES_MIN: Final = 1024 * 1024
"""Less means that a unit was forgotten: a large topic would be read in tens of thousands of tiny
tasks. To read a small topic in many tasks, set ``minPartitions``."""

BATCH_BYTES: Final = 128 * 1024
"""Uncompressed bytes of a batch that the sink writes; less if the topic's limit is lower. Vectorised readers decode
many batches at once, and are a third slower with batches of half a megabyte."""

TRIGGER_DELAY_SECONDS: Final = 15 * 60.0

MARKS_TOPIC: Final = "seglog-spark-marks"

TASKS_TOPIC: Final = "seglog-spark-tasks"
"""An empty topic. Groups commit offsets of a topic: of this one, so that no task seems to lag behind."""

TRANSACTION_SECONDS: Final = 15 * 60.0
"""How long a task's transaction may take: as long as brokers allow by default, because a slow task is no dead one."""

_SERVERS: Final = ("servers", "kafka.bootstrap.servers")
_ISOLATION: Final = ("isolation", "kafka.isolation.level")
_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_READ: Final = (
    *_SERVERS,
    *SECURITY_OPTIONS,
    "localLogDir",
    *_SELECTIONS,
    *_STARTS,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "durableOnly",
    *_ISOLATION,
    "minPartitions",
    "maxRecordsPerPartition",
    "targetTaskBytes",
)
_BATCH_READ: Final = (*_READ, *_ENDS, "pushdown")
_STREAM_READ: Final = (
    *_READ,
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "group",
)
_WRITE: Final = (
    *_SERVERS,
    *SECURITY_OPTIONS,
    "topic",
    "ack",
    "compression",
    "batchBytes",
    "createTopic",
    "deliveryGuarantee",
    "marksTopic",
    "transactionTimeout",
)
_BATCH_WRITE: Final = (*_WRITE, "jobId")
READ_NAMES: Final = frozenset(_BATCH_READ) | frozenset(_STREAM_READ)
WRITE_NAMES: Final = frozenset(_BATCH_WRITE)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})  # Spark's own, passed on to the sink
_NO_GROUP: Final = (
    "seglog's source belongs to no group: Spark keeps the offsets in its checkpoint; the option group of a stream "
    "names one to which its progress is committed, for `seglog group describe`"
)
_FOREIGN: Final = {
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "kafka.acks": "write ack: none, os or disk",
    "kafka.compression.type": "write compression",
    "kafkaconsumer.polltimeoutms": "seglog's consumer has no poll timeout",
    "fetchoffset.numretries": "the client retries by itself",
    "fetchoffset.retryintervalms": "the client retries by itself",
    "password": "Spark shows options in plans and logs; name a file on every machine with passwordFile",
    "token": "Spark shows options in plans and logs; accounts have a password, in a file that passwordFile names",
    "kafka.security.protocol": "write tls true for TLS, and user for an account",
    "kafka.sasl.mechanism": "write mechanism, or leave it to the broker",
    "kafka.sasl.jaas.config": "write user and passwordFile",
    "kafka.ssl.truststore.location": "write ca: a file in PEM",
    "kafka.ssl.keystore.location": "write certificate and key: files in PEM",
    "path": "name the topics with subscribe, or in .option('topic', ...), and call load() or save() without a path",
}


class OptionError(ValueError):
    """An unknown, missing, contradictory or out-of-range option; the message is one sentence."""


# --- Parsed options ---------------------------------------------------------------------------------------------------


class Subscribe(NamedTuple):
    """All partitions of these topics."""

    topics: tuple[str, ...]


class SubscribePattern(NamedTuple):
    """All partitions of the topics whose whole name matches."""

    pattern: str


class Assign(NamedTuple):
    """These partitions."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


class AtOffsets(NamedTuple):
    """A position: offsets by partition, or one for all, ``everywhere``. EARLIEST and LATEST stand for the ends."""

    offsets: Offsets
    everywhere: int | None = None


class AtTimes(NamedTuple):
    """A position: the first record at or after a time (epoch ms), by partition, or ``everywhere``.

    ``or_latest``: in a partition without such a record it is the end; otherwise that is an error.
    """

    times: Offsets
    everywhere: int | None = None
    or_latest: bool = False


Place = AtOffsets | AtTimes


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A source's options. ``ending`` is None in a stream; sizes are bytes, delays seconds, None is no limit.

    ``server`` is the broker, or the log directory to read without a broker. ``group`` is where a stream's
    progress is committed.
    """

    server: Server | Path
    selection: Selection
    starting: Place
    ending: Place | None
    fail_on_data_loss: bool
    include_headers: bool
    durable_only: bool
    isolation: Isolation
    pushdown: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    target_task_bytes: int
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: float
    group: str | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """A sink's options. Without ``topic`` each row names its own; ``job_id`` is the batch writer's.

    ``transaction_seconds`` is how long the transaction of a task may take at "exactly-once".
    """

    server: Server
    topic: str | None
    ack: Ack
    codec: Codec
    batch_bytes: int
    create_topic: bool
    guarantee: Guarantee
    marks_topic: str
    job_id: str | None
    transaction_seconds: float = TRANSACTION_SECONDS


# --- Parsing ----------------------------------------------------------------------------------------------------------


def parse_read_options(options: Mapping[str, str], mode: Mode) -> ReadOptions:
    """Parse the source's options. Raises OptionError."""
    given = _Given(options, _BATCH_READ if mode == "batch" else _STREAM_READ, f"a {mode} read")
    starting = _place(given, _STARTS, EARLIEST if mode == "batch" else LATEST)
    ending = _place(given, _ENDS, LATEST) if mode == "batch" else None
    if mode == "batch" and isinstance(starting, AtOffsets) and _names(starting, LATEST):
        raise OptionError("startingOffsets cannot be the latest in a batch read: there would be nothing to read")
    if isinstance(ending, AtOffsets) and _names(ending, EARLIEST):
        raise OptionError("endingOffsets cannot be the earliest: there would be nothing to read")
    least, most = given.count("minOffsetsPerTrigger"), given.count("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is larger than maxOffsetsPerTrigger ({most})")
    if given.text("maxTriggerDelay") is not None and least is None:
        raise OptionError("maxTriggerDelay is how long to wait for minOffsetsPerTrigger, which is not set")
    task_bytes = given.size("targetTaskBytes")
    if task_bytes is not None and task_bytes < TARGET_TASK_BYTES_MIN:
        raise OptionError(
            f"targetTaskBytes is 1m or more, not {given.text('targetTaskBytes')!r}: a task costs as much as reading a "
            "few megabytes; for more tasks set minPartitions"
        )
    return ReadOptions(
        server=_log_directory(given) or given.server(),
        selection=_selection(given),
        starting=starting,
        ending=ending,
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=given.boolean("includeHeaders", False),
        durable_only=given.boolean("durableOnly", False),
        isolation=_isolation(given),
        pushdown=given.boolean("pushdown", False),
        min_partitions=given.count("minPartitions"),
        max_records_per_partition=given.count("maxRecordsPerPartition"),
        target_task_bytes=task_bytes or TARGET_TASK_BYTES,
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=given.size("maxBytesPerTrigger"),
        min_offsets_per_trigger=least,
        max_trigger_delay=given.seconds("maxTriggerDelay", TRIGGER_DELAY_SECONDS),
        group=_group(given),
    )


def wants_headers(options: Mapping[str, str]) -> bool:
    """Whether rows have a column ``headers``: the only option that the schema depends on, in batch and stream."""
    given = {key: value for key, value in options.items() if key.lower() == "includeheaders"}
    return _Given(given, _READ, "a read").boolean("includeHeaders", False)


def parse_write_options(options: Mapping[str, str], mode: Mode) -> WriteOptions:
    """Parse the sink's options. Raises OptionError."""
    kept = {key: value for key, value in options.items() if key.lower() not in _SPARKS_OWN}
    given = _Given(kept, _BATCH_WRITE if mode == "batch" else _WRITE, f"a {mode} write")
    ack: Ack = given.choice("ack", get_args(Ack), "disk")
    guarantee: Guarantee = given.choice("deliveryGuarantee", get_args(Guarantee), "at-least-once")
    _check_guarantee(given, guarantee, mode, ack)
    codecs = {codec.name.lower(): codec for codec in Codec}
    return WriteOptions(
        server=given.server(),
        topic=given.text("topic"),
        ack=ack,
        codec=codecs[given.choice("compression", tuple(codecs), "none")],
        batch_bytes=given.size("batchBytes") or BATCH_BYTES,
        create_topic=given.boolean("createTopic", True),
        guarantee=guarantee,
        marks_topic=given.text("marksTopic") or MARKS_TOPIC,
        job_id=given.text("jobId"),
        transaction_seconds=given.seconds("transactionTimeout", TRANSACTION_SECONDS),
    )


def _check_guarantee(given: "_Given", guarantee: Guarantee, mode: Mode, ack: Ack) -> None:
    """Raise OptionError where ``deliveryGuarantee`` and other options do not go together."""
    for name, belongs_to in (
        ("jobId", ("effectively-once", "exactly-once")),
        ("marksTopic", ("effectively-once", "exactly-once")),
        ("transactionTimeout", ("exactly-once",)),
    ):
        if given.text(name) is not None and guarantee not in belongs_to:
            raise OptionError(f"{name} belongs to deliveryGuarantee {' or '.join(belongs_to)}, which is not set")
    if guarantee == "at-least-once":
        return
    if guarantee == "effectively-once" and ack == "none":
        raise OptionError(
            "deliveryGuarantee effectively-once needs an ack, os or disk: without one, a lost batch goes unnoticed"
        )
    if guarantee == "exactly-once" and ack != "disk":
        raise OptionError(
            f"deliveryGuarantee exactly-once is always at ack disk, not {ack}: what a transaction commits is durable"
        )
    if given.text("topic") is None:
        raise OptionError(
            f"deliveryGuarantee {guarantee} needs the option topic: what a task has written is noted for one topic"
        )
    if mode == "batch" and given.text("jobId") is None:
        raise OptionError(f"deliveryGuarantee {guarantee} needs a jobId, the same each time this job is run again")


def _log_directory(given: "_Given") -> Path | None:
    text = given.text("localLogDir")
    if text is None:
        return None
    for name in (*_SERVERS, *SECURITY_OPTIONS):
        if given.text(name) is not None:
            raise OptionError(f"localLogDir reads files without a broker: leave out {name}")
    if not Path(text).is_absolute():
        raise OptionError(f"localLogDir is an absolute path, the same on every machine that reads, not {text!r}")
    return Path(text)


def _isolation(given: "_Given") -> Isolation:
    written: set[Isolation] = {
        given.choice(name, ISOLATIONS, READ_UNCOMMITTED) for name in _ISOLATION if given.text(name) is not None
    }
    if len(written) > 1:
        raise OptionError(f"{' and '.join(_ISOLATION)} contradict each other: give one of them")
    return next(iter(written), READ_UNCOMMITTED)


def _group(given: "_Given") -> str | None:
    text = given.text("group")
    if text is not None and given.text("localLogDir") is not None:
        raise OptionError("group needs a broker, which keeps what groups commit: leave out localLogDir")
    if text is not None and not text.strip():
        raise OptionError("group names no group")
    return text


def _selection(given: "_Given") -> Selection:
    chosen = [name for name in _SELECTIONS if given.text(name) is not None]
    if len(chosen) != 1:
        found = f"{' and '.join(chosen)} exclude each other" if chosen else "no topic is named"
        raise OptionError(f"{found}: exactly one of {', '.join(_SELECTIONS)} says what to read")
    text = given.text(chosen[0]) or ""
    if chosen[0] == "assign":
        return Assign(tuple(_parsed(lambda: parse_assign(text))))
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern {text!r} is not a regular expression: {error}") from None
        return SubscribePattern(text)
    topics = sorted({topic.strip() for topic in text.split(",")} - {""})
    if not topics:
        raise OptionError("subscribe names no topic")
    return Subscribe(tuple(topics))


def _place(given: "_Given", names: tuple[str, str, str], otherwise: int) -> Place:
    """The position by the first of the three options that is set; the others are ignored, as in Kafka's connector."""
    everywhere, by_time, by_offset = names
    or_latest = names is _ENDS
    if names is _STARTS:
        strategy = given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        or_latest = strategy == "latest"
    text = given.text(everywhere)
    if text is not None:
        return AtTimes({}, _time(text, everywhere), or_latest)
    times = given.text(by_time)
    if times is not None:
        return AtTimes(_parsed(lambda: _times(parse_offsets(times, by_time), by_time)), None, or_latest)
    offsets = given.text(by_offset)
    if offsets is None:
        return AtOffsets({}, otherwise)
    word = offsets.strip().lower()
    if word in {"earliest", "latest"}:
        return AtOffsets({}, EARLIEST if word == "earliest" else LATEST)
    return AtOffsets(_parsed(lambda: parse_offsets(offsets, by_offset)))


def _names(place: AtOffsets, offset: int) -> bool:
    return place.everywhere == offset or offset in place.offsets.values()


def _times(times: Offsets, option: str) -> Offsets:
    for partition, time_ms in times.items():
        if time_ms < 0:
            raise OptionError(f"{option} gives {partition} the time {time_ms}; write milliseconds since 1970")
    return times


def _time(text: str, option: str) -> int:
    """Milliseconds, as Kafka's connector takes them, or a time in any form that the command line accepts."""
    try:
        moment = parse_moment(text, now_ms=time.time_ns() // 1_000_000)
    except ValueError:  # its advice is about positions, offsets included
        raise OptionError(
            f"{option} is a time: milliseconds since 1970 (1546300800000), a relative time (-1h, -2d12h), now, today, "
            f"yesterday, or ISO 8601 (2019-01-01, 2019-01-01T10:00Z), not {text!r}"
        ) from None
    if isinstance(moment, AtOffset):
        return moment.offset  # a bare number: here it is a time
    if isinstance(moment, AtTime):
        return moment.timestamp
    raise OptionError(f"{option} is a time; for an end of the log write startingOffsets or endingOffsets {text!r}")


def _parsed(parse: Callable[[], ParsedT]) -> ParsedT:
    try:
        return parse()
    except ValueError as error:
        raise OptionError(str(error)) from None


# --- Single options ---------------------------------------------------------------------------------------------------

_SIZE: Final = re.compile(r"(\d{1,18})\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DELAY: Final = re.compile(r"(\d{1,9})\s*(ms|s|sec|m|min|h)", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class _Given:
    """The options that were given, looked up by their documented names."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {key.lower(): value for key, value in options.items()}
        names = {name.lower(): name for name in known}
        for key in sorted(self._values.keys() - names.keys()):
            raise OptionError(self._unknown(key, names, what))

    @staticmethod
    def _unknown(key: str, names: Mapping[str, str], what: str) -> str:
        if key in _FOREIGN:
            return f"the option {key} is not supported: {_FOREIGN[key]}"
        everywhere = {name.lower(): name for name in READ_NAMES | WRITE_NAMES}
        if key in everywhere:
            return f"the option {everywhere[key]} has no meaning in {what}"
        nearest = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {names[nearest[0]]}?" if nearest else f"; {what} has {', '.join(names.values())}"
        return f"there is no option {key}{hint}"

    def text(self, name: str) -> str | None:
        """The text as given, None if the option was not given."""
        return self._values.get(name.lower())

    def server(self) -> Server:
        """The broker, and how to come to it."""
        address = self._address()
        given = {name: text for name in SECURITY_OPTIONS if (text := self.text(name)) is not None}
        if not given and "://" not in address:
            return address
        for name, text in given.items():
            if not text.strip():
                raise OptionError(f"{name} is empty")
        for name, owner in (("passwordFile", "user"), ("mechanism", "user"), ("key", "certificate")):
            if name in given and owner not in given:
                raise OptionError(f"{name} belongs to the option {owner}, which is not set")
        if (mechanism := given.get("mechanism")) is not None:
            given["mechanism"] = mechanism.upper()
            if given["mechanism"] not in MECHANISMS[:-1]:
                raise OptionError(f"mechanism is {' or '.join(MECHANISMS[:-1])}, not {mechanism!r}")
        if "tls" in given:
            given["tls"] = str(self.boolean("tls", False)).lower()
        return SecuredServer(address, given)

    def _address(self) -> str:
        """HOST:PORT of the broker, with its scheme if it was given one."""
        written = {name: text.strip() for name in _SERVERS if (text := self.text(name)) is not None}
        if len(set(written.values())) > 1:
            raise OptionError(f"{' and '.join(written)} name different brokers; give one of them")
        for name, text in written.items():
            if "," in text:
                raise OptionError(f"{name} lists several brokers; seglog is one: HOST:PORT")
            try:
                address, says_tls = parse_server(text)
            except ValueError as error:
                raise OptionError(f"{name}: {error}") from None
            return str(address) if says_tls is None else f"seglog{'s' if says_tls else ''}://{address}"
        raise OptionError("no broker is named: .option('servers', 'HOST:PORT'), its native port")

    def boolean(self, name: str, otherwise: bool) -> bool:
        """True or false, in any case."""
        return bool(self.choice(name, ("true", "false"), str(otherwise).lower()) == "true")

    def choice(self, name: str, choices: tuple[str, ...], otherwise: str) -> Any:
        """One of ``choices``, in any case."""
        text = self.text(name)
        word = otherwise if text is None else text.strip().lower()
        if word not in choices:
            raise OptionError(f"{name} is {' or '.join(choices)}, not {text!r}")
        return word

    def count(self, name: str) -> int | None:
        """A whole number, 1 or more."""
        text = self.text(name)
        if text is None:
            return None
        word = text.strip().replace("_", "")
        if not (word.isascii() and word.isdecimal() and 0 < int(word[:20]) < 1 << 63):
            raise OptionError(f"{name} is a whole number from 1 to {(1 << 63) - 1}, written in digits, not {text!r}")
        return int(word)

    def size(self, name: str) -> int | None:
        """Bytes, with or without a unit: 512k, 64m, 1g."""
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text.strip())
        if found is None or not int(found[1]):
            raise OptionError(f"{name} is a number of bytes, for example 65536, 512k or 64m, not {text!r}")
        return int(found[1]) * _UNITS[found[2].lower()]

    def seconds(self, name: str, otherwise: float) -> float:
        """A time span: 500ms, 30s, 15m, 1h."""
        text = self.text(name)
        if text is None:
            return otherwise
        found = _DELAY.fullmatch(text.strip())
        if found is None:
            raise OptionError(f"{name} is a time span, for example 500ms, 30s, 15m or 1h, not {text!r}")
        return int(found[1]) * _SECONDS[found[2].lower()]
