"""``seglog quickstart``: a broker for now, with a first look at what it does."""

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, Option, flag
from seglog.cli.common import print_json, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import LISTEN_ADDRESS
from seglog_protocol.errors import SeglogError
from seglog_protocol.extras import missing

if TYPE_CHECKING:
    from seglog.cli.first_look import Places, Seen

_WATCH_SECONDS: Final = 0.5


def run(options: Options) -> int:
    """Show it, and with ``--keep`` serve until a signal comes."""
    if (error := missing("seglog quickstart", "broker")) is not None:
        warn(str(error))
        return FAILED
    listen = {flag: address for flag in ("listen", "kafka") if (address := options.values[flag]) is not None}
    if len(listen) > len(set(listen.values())) and not options.listen.endswith(":0"):
        raise UsageError(
            f"--listen and --kafka have the same address, {options.listen}; choose another for one of them, or leave "
            "it out for a free port"
        )
    from seglog.cli.first_look import Endings, Places, look, print_farewell, print_places
    from seglog.client import connect
    from seglog.testing import Broker
    from seglog.testing.configuration import in_words_of_a_command

    endings = Endings()
    with endings.heard():
        began = time.perf_counter()
        broker = Broker(**listen)
        try:
            try:
                broker.start()
            except SeglogError as failure:
                if not listen:  # no address that another program has
                    raise
                why = in_words_of_a_command(failure.message)
                raise UsageError(f"{why} Leave it out for a free port") from failure
            places = Places(broker.address, broker.kafka_address, broker.directory)
            ready_ms = round((time.perf_counter() - began) * 1000)
            with endings.allowed():
                if not options.json:
                    print_places(places, ready_ms)
                with connect(broker.address, client_id="seglog-cli") as client:
                    seen = look(client)
                if not options.keep:
                    _tell(places, seen, options)
            if options.keep:
                with suppress(KeyboardInterrupt), endings.allowed():
                    _tell(places, seen, options)
                    sys.stdout.flush()
                    while broker.is_running:
                        time.sleep(_WATCH_SECONDS)
        finally:
            broker.close()  # raises what the broker has failed with
    if not options.json:
        print_farewell(was_kept=options.keep)
    return OK


def _tell(places: "Places", seen: "Seen", options: Options) -> None:
    from seglog.cli.first_look import as_map, print_kept, print_seen, program_at

    program = program_at(places.server if options.keep else None)
    if options.json:
        print_json(as_map(places, seen, program))
        return
    print_seen(seen, program)
    if options.keep:
        print_kept(places)


def _place(flag: str, whose: str) -> Option:
    return Option(
        [flag],
        type=LISTEN_ADDRESS,
        show_default="a free port of 127.0.0.1",
        help=f"Where it listens for {whose} clients.",
    )


COMMAND: Final = Command(
    "quickstart",
    runs=run,
    talks=False,
    help="It runs in this process. Its data is in a temporary directory, and is removed when it ends.",
    params=[
        flag("--keep", "Serve seglog's clients and Kafka's until Ctrl-C."),
        _place("--listen", "seglog's"),
        _place("--kafka", "Kafka's"),
        flag("--json", "Print JSON, for programs."),
    ],
    example="seglog quickstart\nseglog quickstart --keep --kafka 127.0.0.1:9092",
)
