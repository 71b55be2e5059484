"""``seglog mirror`` typed: topics to an Apache Kafka, or from one, until Ctrl-C or until the switch."""

import os
import signal
import sys
import time
from contextlib import closing
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import FILE, Choice, Command, Option, flag
from seglog.cli.common import open_client, print_json, target_of, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import COUNT, SOME_SECONDS
from seglog.cli.parameters import completed, compression
from seglog.cli.terminal import draw_line, handled, print_line
from seglog.core.errors import count_of, duration_of
from seglog_protocol.extras import missing
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.mirror.places import Place
    from seglog.mirror.running import Outcome, State

_LINES_SECONDS: Final = 10.0
"""Between two lines of progress where standard error is not a terminal."""
_BEHIND_SECONDS: Final = 2.0
"""A lag of less is that of a mirror that follows: it is copied in the next rounds."""


def run(options: Options) -> int:
    """Mirror, and say how it ended."""
    if (error := missing("seglog mirror", "kafka")) is not None:
        warn(str(error))
        return FAILED
    from seglog.mirror.cluster import Cluster
    from seglog.mirror.running import Mirror, Plan

    source_place, target_place = _places(options)
    who = f"seglog-mirror {os.uname().nodename} {os.getpid()}"
    source = Cluster(source_place, client_id=who, patience=options.connect_timeout)
    target = Cluster(target_place, client_id=who, patience=options.connect_timeout)
    plan = Plan(
        topics=tuple(dict.fromkeys(options.topics)),
        groups=tuple(options.groups or ()),
        carries_groups=not options.no_groups,
        compression=options.compression,
        replication=options.replication_factor or -1,
        cut_over=options.cut_over,
        silent_seconds=options.silent,
        until_caught_up=options.once,
    )
    shown = _Shown(options, f"{source.name} → {target.name}")
    ending = _Ending()
    with handled(ending, signal.SIGINT, signal.SIGTERM), closing(shown):
        mirror = Mirror(source, target, plan, tell=shown.tell, show=shown.show, is_asked_to_end=lambda: ending.is_asked)
        outcome = mirror.run()
    if outcome is None:
        interrupt = KeyboardInterrupt()
        interrupt.add_note("the same command goes on where this one has ended")
        raise interrupt
    _print_outcome(outcome, options)
    return OK


def _places(options: Options) -> "tuple[Place, Place]":
    """Source and target; the one that is not typed is the broker of --server."""
    from seglog.mirror.places import broker_place, kafka_place, properties_in

    if options.source is None and options.target is None:
        raise UsageError("say which Kafka: --to kafka://HOST:PORT, or --from kafka://HOST:PORT")
    if options.topics == ():
        raise UsageError("name the topics to mirror")
    try:
        properties = {} if options.kafka_config is None else properties_in(options.kafka_config)
        source = None if options.source is None else kafka_place(options.source, properties)
        target = None if options.target is None else kafka_place(options.target, properties)
        if source is not None and target is not None:
            return source, target
        with open_client(options) as client:
            ours = broker_place(target_of(options), client.describe_broker())
    except ValueError as error:
        raise UsageError(str(error)) from error
    if target is not None:
        return ours, target
    assert source is not None
    return source, ours


class _Ending:
    """What Ctrl-C and SIGTERM do: they ask to end, which takes a second; a second one interrupts."""

    is_asked = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


class _Shown:
    """Progress: one line that is overwritten in a terminal, else a line from time to time, or JSON."""

    def __init__(self, options: Options, sides: str) -> None:
        self._json = options.json
        self._drawn = sys.stderr.isatty() and not options.json
        self._next = 0.0
        self._sides = sides

    def tell(self, sentence: str) -> None:
        """A sentence on stderr."""
        self.close()
        warn(sentence)

    def show(self, state: "State") -> None:
        """The state, where it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (1.0 if self._drawn else _LINES_SECONDS)
        if self._json:
            print_json(state._asdict())
            sys.stdout.flush()
        elif self._drawn:
            draw_line(self._line(state))
        else:
            warn(self._line(state))

    def close(self) -> None:
        """End the line that was drawn."""
        if self._drawn:
            draw_line("")

    def _line(self, state: "State") -> str:
        to_go = ""
        if state.lag > _BEHIND_SECONDS * state.per_second:
            if state.seconds_to_go is not None:
                to_go = f" ({duration_of(int(max(state.seconds_to_go, 1.0) * 1000))} to go)"
            elif state.copied:  # else it has hardly begun
                to_go = " (not getting less)"
        records = count_of(state.copied, "record")
        return printable(f"{self._sides}: {records}, {state.per_second:,.0f}/s, lag {state.lag:,}{to_go}")


def _print_outcome(outcome: "Outcome", options: Options) -> None:
    if options.json:
        print_json(vars(outcome) | {"groups": [group._asdict() for group in outcome.groups]})
        return
    offsets = "the same offsets" if outcome.offsets_equal else "other offsets in some partitions"
    print_line(f"everything is there: {count_of(outcome.partitions, 'partition')}, {offsets}")
    for group in outcome.groups:
        left = "has read everything" if not group.lag else f"has {count_of(group.lag, 'record')} to read"
        members = f", and still has {count_of(group.members, 'member')} here: stop them first" if group.members else ""
        problem = f"; its offsets are not carried over: {group.problem}" if group.problem else ""
        print_line(f"group {printable(group.group)} {left}{members}{problem}")
    if options.cut_over:
        print_line("switch now: start producers and consumers with the other address")


COMMAND: Final = Command(
    "mirror",
    runs=run,
    help="Records keep keys, headers, timestamps and partitions, and offsets where the target's partition is empty. "
    "Topics that are not there are created. It follows until Ctrl-C; the same command goes on after any end, without "
    "losing or doubling a record. The broker needs a listener for Kafka's clients.",
    params=[
        click.Argument(
            ["topics"],
            nargs=-1,
            metavar="TOPIC...",
            shell_complete=completed("topics"),
            help="The topics to copy, of the same name on both sides.",
        ),
        Option(["--to", "target"], metavar="URL", help="The Kafka to copy to: kafka://HOST:PORT, kafkas:// with TLS."),
        Option(["--from", "source"], metavar="URL", help="The Kafka to copy from; with --to both are Kafkas."),
        Option(
            ["--kafka-config"],
            type=FILE,
            help="Settings of librdkafka for reaching it, as NAME=VALUE lines: account, password, certificates.",
        ),
        flag(
            "--cut-over",
            "End when producers are silent and everything is there, with the offsets of groups carried over.",
        ),
        Option(["--silent"], type=SOME_SECONDS, default="5", help="How long no record may have come, for --cut-over."),
        flag("--once", "End as soon as everything is there."),
        Option(
            ["--group", "groups"],
            multiple=True,
            metavar="GROUP",
            show_default="all that have offsets of the topics",
            help="A group whose offsets are carried over; may be given several times.",
        ),
        flag("--no-groups", "Carry over no offsets of groups."),
        Option(
            ["--replication-factor"],
            type=COUNT,
            default=None,
            show_default="the target's",
            help="Replicas of topics that are created.",
        ),
        compression("How records are compressed in the target.", "lz4"),
    ],
    choices=[Choice(("cut_over", "once")), Choice(("groups", "no_groups"))],
    example="seglog mirror --to kafka://kafka.example:9092 clicks orders\n"
    "seglog mirror --to kafka://kafka.example:9092 clicks orders --cut-over",
)
