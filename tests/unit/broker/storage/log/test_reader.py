"""What the reader of a log remembers."""

from seglog_broker.storage.log.reader import PROVEN_MAX
from seglog_broker.storage.segment.traced_steps import SeekTrace
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import parse_header
from tests.logs import LogOnDisk, batch


def test_of_very_many_batches_that_looked_odd_the_newest_are_known_to_be_right() -> None:
    reader = LogOnDisk().log.traced(SeekTrace())
    header = parse_header(batch(b"value"))
    for offset in range(3 * PROVEN_MAX):
        reader._note_proven(LocatedBatch(0, header._replace(base_offset=offset)), offset)
    assert list(reader._proven) == list(range(2 * PROVEN_MAX, 3 * PROVEN_MAX))
