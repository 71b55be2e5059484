"""What the reader of a log remembers."""

from types import SimpleNamespace
from typing import Any

from seglog_broker.storage.log.reader import PROVEN_MAX, LogReader


def test_of_very_many_batches_that_looked_odd_the_newest_are_known_to_be_right() -> None:
    reader: Any = LogReader.__new__(LogReader)
    reader._proven = {}
    for offset in range(3 * PROVEN_MAX):
        reader._note_proven(SimpleNamespace(header=SimpleNamespace(base_offset=offset)), offset)
    assert list(reader._proven) == list(range(2 * PROVEN_MAX, 3 * PROVEN_MAX))
