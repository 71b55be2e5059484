"""Finds destinations that lie about ``put_new``, in which two brokers could hold one lease.

There are stores that ignore the condition, some that say that they have honoured it, and some that look and write in
two steps. A directory of a file system that several machines share may do any of this, too.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Final

from seglog_broker.backup.destination import Destination, DestinationError, no_conditions

_PROBES: Final = "probe/"

_WRITERS: Final = 8
"""Of one new file at once."""

_ROUNDS: Final = 4
"""Of such files: whoever looks and writes in two steps is not found out each time."""


def probe_conditions(destination: Destination) -> None:
    """Put some files of a few bytes, and remove them. Raises DestinationError, for a destination that lies as well."""
    _probe(destination, 1)
    for _ in range(_ROUNDS):
        _probe(destination, _WRITERS)


def _probe(destination: Destination, writers: int) -> None:
    """Have so many writers put one new file at once, and then one more."""
    name = f"{_PROBES}{uuid.uuid4().hex}"
    together = Barrier(writers)

    def put(number: int) -> bool:
        together.wait()
        return destination.put_new(name, [b"%d" % number])

    try:
        with ThreadPoolExecutor(writers) as threads:
            answers = list(threads.map(put, range(writers)))
        first = b"".join(destination.read(name))
        answers.append(destination.put_new(name, [b"%d" % writers]))
        found = b"".join(destination.read(name))
    finally:
        with suppress(DestinationError):
            destination.delete(name)
    said = [b"%d" % number for number, is_first in enumerate(answers) if is_first]
    if first != found:
        raise no_conditions(destination.place, "replaces a file that was to be written if there is none")
    # Without any, the answer to the first one was lost on its way.
    if said and said != [found]:
        raise no_conditions(destination.place, "says of a file that was to be written if there is none that it was")
