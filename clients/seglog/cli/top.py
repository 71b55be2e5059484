"""``seglog top`` typed: a live page on a terminal, one plain page elsewhere."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from seglog.cli.arguments import Options
from seglog.cli.commands import Command, Option, flag
from seglog.cli.common import open_client, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import SOME_SECONDS
from seglog.cli.showing import width_of_output
from seglog.cli.terminal import has_colors, is_terminal
from seglog_protocol.errors import AuthenticationError, SeglogError
from seglog_protocol.extras import missing

if TYPE_CHECKING:
    from seglog.cli.overview.page import View
    from seglog.client import Client

INTERVAL_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 2.0
"""How long a frame waits for a broker that is away: the page says so then."""


def run(options: Options) -> int:
    """Show it until Ctrl-C, or once."""
    if (error := missing("seglog top", "top")) is not None:
        warn(str(error))
        return FAILED
    if options.json:
        raise UsageError("top is for people; seglog metrics --json has the same numbers")
    from seglog.cli.overview.page import lines_of
    from seglog.cli.showing import watch

    colours = has_colors(sys.stdout)
    with open_client(replace(options, connect_timeout=min(options.connect_timeout, PATIENCE_SECONDS))) as client:
        watched = Watched(client, options.interval)
        if options.once or not is_terminal() or os.environ.get("TERM") == "dumb":
            time.sleep(watched.due_in)  # rates are between two readings
            lines = lines_of(watched.refresh(), width_of_output(), None, colours=colours)
            sys.stdout.write("".join(f"{line}\n" for line in lines))  # names are escaped, and its colours are not
        else:
            watch(lambda columns, lines: lines_of(watched.refresh(), columns, lines, colours=colours))
    return OK


class Watched:
    """A broker that is read again and again; what it said last stays while it is away."""

    def __init__(self, client: "Client", interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads once. Raises SeglogError, where the broker is not there from the beginning."""
        from seglog.cli.overview.page import View, families
        from seglog.cli.overview.readings import read

        self._interval = interval
        self._clock = clock
        self._read = partial(read, client, families())
        self._told = self._began = clock()
        self.view: View = View(client.server, self._read())
        self._next = self._after(self._began)

    @property
    def due_in(self) -> float:
        """Seconds until it is time to read anew."""
        return max(0.0, self._next - self._clock())

    def refresh(self) -> "View":
        """The view, read anew where it is time to. Raises AuthenticationError: an account that is gone stays gone."""
        if (begun := self._clock()) < self._next:
            if self.view.trouble:
                self.view = self.view._replace(age=begun - self._told)
            return self.view
        try:
            now = self._read(self.view.now)
        except AuthenticationError:
            raise
        except SeglogError as error:
            self.view = self.view._replace(trouble=error.message, age=self._clock() - self._told)
        else:
            self._told = begun
            self.view = self.view._replace(now=now, before=self.view.now, trouble="", age=0.0)
        self._next = self._after(begun)
        return self.view

    def _after(self, begun: float) -> float:
        from seglog.cli.overview.readings import SHARE

        took = self._clock() - begun
        return begun + max(self._interval, took / SHARE if not self.view.trouble else 0.0)


COMMAND: Final = Command(
    "top",
    runs=run,
    help="On a terminal the page is drawn anew every second, in its width, until Ctrl-C; it stays while the broker is "
    "away. Elsewhere, or with --once, it is printed once. Topics with the most records a second come first, and groups "
    "that retention reaches soonest.",
    params=[
        flag("--once", "Print one page, and end."),
        Option(
            ["--interval"],
            type=SOME_SECONDS,
            default=str(int(INTERVAL_SECONDS)),
            help="How often the broker is asked; rates are of that time.",
        ),
    ],
)
