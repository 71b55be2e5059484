"""A first look at a broker, for ``seglog quickstart``: a topic, records, a seek, the same in Python; and its end."""

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC
from itertools import islice
from types import FrameType
from typing import Any, Final, NamedTuple

from seglog import __version__
from seglog.cli.envelope import to_map
from seglog.cli.explain import seek_lines
from seglog.cli.tables import aligned, labelled
from seglog.cli.terminal import columns_of_terminal, handled, print_line
from seglog.client import Client
from seglog.core.moments import AtTime, format_time
from seglog.core.records import Record
from seglog_protocol.messages import ExplainReply

TOPIC: Final = "readings"
MINUTES: Final = 2 * 24 * 60
SENSORS: Final = 3
SEGMENT: Final = "12h"
BATCH_BYTES: Final = 1024
"""Small batches, so that a few records make indexes in which there is something to seek."""
AGO: Final = "-1d"
AGO_MS: Final = 24 * 60 * 60 * 1000
SHOWN: Final = 3

_INDENT: Final = "  "

_CONNECT_THERE: Final = """\
import time
import seglog

with seglog.connect("{server}") as client:
"""
_START_ANOTHER: Final = """\
import time
import seglog
from seglog.testing import Broker

with Broker() as broker, seglog.connect(broker.address) as client:
"""
_PROGRAM: Final = f"""\
    client.create_topic("{TOPIC}", config={{"segment.ms": "{SEGMENT}"}}, exist_ok=True)
    with client.producer("{TOPIC}", batch_bytes={BATCH_BYTES}) as producer:
        for minutes in range({MINUTES}, 0, -1):
            key, value = f"sensor-{{minutes % {SENSORS}}}", f"{{18 + minutes % 7}}.5"
            when = time.time_ns() // 1_000_000 - minutes * 60_000
            producer.send(value, key, timestamp=when)
    with client.consumer("{TOPIC}", start="{AGO}") as consumer:
        for _, record in zip(range({SHOWN}), consumer):
            print(record.offset, record.key, record.value)
    print(client.explain.seek("{TOPIC}", 0, "{AGO}").why)
"""


class Places(NamedTuple):
    """Where the broker listens, for seglog's clients and for Kafka's, and where its data is."""

    server: str
    kafka: str
    log_dir: str


class Seen(NamedTuple):
    """The first records, those from a moment on, and how that place was found."""

    first: list[Record]
    since: AtTime
    consumed: list[Record]
    seek: ExplainReply


def look(client: Client) -> Seen:
    """Make the topic, and produce to it and read it. Raises SeglogError."""
    client.create_topic(TOPIC, config={"segment.ms": SEGMENT})
    with client.producer(TOPIC, batch_bytes=BATCH_BYTES) as producer:
        for minutes in range(MINUTES, 0, -1):
            key, value = f"sensor-{minutes % SENSORS}", f"{18 + minutes % 7}.5"
            producer.send(value, key, timestamp=time.time_ns() // 1_000_000 - minutes * 60_000)
    with client.consumer(TOPIC, start="earliest") as consumer:
        first = list(islice(consumer, SHOWN))
    since = AtTime(time.time_ns() // 1_000_000 - AGO_MS)
    with client.consumer(TOPIC, start=since) as consumer:
        consumed = list(islice(consumer, SHOWN))
    return Seen(first, since, consumed, client.explain.seek(TOPIC, 0, since))


def program_at(server: str | None) -> str:
    """Python that does what ``look`` does, at ``server``, or without one at a broker that it starts itself."""
    return (_START_ANOTHER if server is None else _CONNECT_THERE.format(server=server)) + _PROGRAM


def as_map(places: Places, seen: Seen, program: str) -> dict[str, Any]:
    """All that would be printed, for JSON."""
    return places._asdict() | {
        "topic": TOPIC,
        "records": MINUTES,
        "since": seen.since.timestamp,
        "consumed": [to_map(record) for record in seen.consumed],
        "seek": seen.seek.to_wire(),
        "python": program,
    }


def print_places(places: Places, ready_ms: int) -> None:
    """The broker, which was ready after ``ready_ms``."""
    print_line(f"seglog {__version__}: a broker in this process, ready in {ready_ms} ms", bold=True)
    labels = ("seglog's clients", "Kafka's clients", "data, until the end")
    _print_indented(labelled(zip(labels, places, strict=True), indent=0, label_width=21))


def print_seen(seen: Seen, program: str) -> None:
    """The topic, its records, the seek, and the program, each with the command for it."""
    create = f"seglog topic create {TOPIC} --config segment.ms={SEGMENT}"
    _print_part("A topic, with a new segment for every 12 hours of records", create)
    _print_part(f"{MINUTES:,} records of {SENSORS} sensors, one a minute for two days, all acknowledged")
    _print_records(seen.first)
    consume = f"seglog consume {TOPIC} --from {AGO} --count {SHOWN} --keys"
    _print_part("The first since this time yesterday", consume)
    _print_records(seen.consumed)
    _print_part("How that place was found", f"seglog explain seek {TOPIC} 0 --timestamp {AGO}")
    columns = columns_of_terminal()
    _print_indented(seek_lines(seen.seek, seen.since, UTC, width=None if columns is None else columns - len(_INDENT)))
    _print_part("The same in Python")
    for line in program.splitlines():  # not indented, to be copied
        print_line(line)


def print_kept(places: Places) -> None:
    """What to do while it serves."""
    _print_part(
        "It serves until Ctrl-C. In another terminal",
        f"export SEGLOG_SERVER={places.server}",
        f"echo sensor-1:21.0 | seglog produce {TOPIC} --key-separator :",
        f"seglog consume {TOPIC} --from -1h --keys",
    )
    kcat = f"kcat -C -e -b {places.kafka} -t {TOPIC} -o -{SHOWN}"
    _print_part(f"Clients of Kafka have bootstrap.servers={places.kafka}", kcat)


def print_farewell(*, was_kept: bool) -> None:
    """What to do when it has ended."""
    remarks = {} if was_kept else {"seglog quickstart --keep": "the same, and it serves until Ctrl-C"}
    remarks |= {"seglogd --data ./data": "a broker that keeps its data", "seglog --help": "all commands"}
    width = max(map(len, remarks))
    commands = (f"{command.ljust(width)}  # {remark}" for command, remark in remarks.items())
    _print_part("The broker has stopped, and its data is removed. To go on", *commands)


def _print_part(title: str, *commands: str) -> None:
    print_line()
    print_line(title, bold=True)
    for command in commands:
        print_line(_INDENT + command, fg="cyan")


def _print_records(records: Iterable[Record]) -> None:
    rows = [(r.offset, format_time(r.timestamp), (r.key or b"").decode(), (r.value or b"").decode()) for r in records]
    _print_indented(aligned(("OFFSET", "TIME", "KEY", "VALUE"), rows))


def _print_indented(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(_INDENT + line if line else line)


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Endings:
    """While ``heard``, Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt where that is ``allowed``, the first of them.

    Elsewhere they wait for that, so that what makes and removes files is not torn by them. A signal that was ignored
    before, as by ``nohup``, stays so. For the main thread alone.
    """

    def __init__(self) -> None:
        self._is_allowed = False
        self._is_asked = False

    def heard(self) -> AbstractContextManager[None]:
        """Where the signals do that, those that were not ignored before."""
        return handled(self._on_signal, *(n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN))

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Where a signal may raise KeyboardInterrupt; one that has come before raises it at once."""
        self._is_allowed = True
        try:
            if self._is_asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_allowed = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_asked = True
        if self._is_allowed:
            self._is_allowed = False
            raise KeyboardInterrupt
