"""Everything that the doctor looks at, in the order in which it is shown."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from seglog.cli.checkups.listeners import listener_checks
from seglog.cli.checkups.machine import machine_checks
from seglog.cli.checkups.model import Check
from seglog.cli.checkups.told import Told, told_checks

if TYPE_CHECKING:
    from seglog.cli.arguments import Options


def examine(told: Told, options: "Options") -> Iterator[Check]:
    """What the broker tells, its machine where that is this one, and its listeners as they are seen from here."""
    yield from told_checks(told)
    yield from machine_checks(told.hello, told.described)
    if told.described is not None:
        yield from listener_checks(told.server, told.hello, told.described.listeners, options.security)
