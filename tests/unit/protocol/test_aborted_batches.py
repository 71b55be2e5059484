"""Which batches are left out at read_committed, against a plain model of the transactions."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from seglog_protocol.isolation import Aborted, AbortedFilter
from seglog_protocol.record_batch import BatchHeader, parse_header
from tests.support import examples
from tests.transactions import Step, TransactionLog, steps


def delivered(headers: list[BatchHeader], aborted: AbortedFilter) -> list[int]:
    """The offsets of the batches that are not left out; each is asked about twice, as a reader may."""
    kept = [header for header in headers if not [aborted.drops(header), aborted.drops(header)][1]]
    return [offset for header in kept for offset in range(header.base_offset, header.next_offset)]


@settings(max_examples=examples(1000))
@given(steps, st.integers(0, 30), st.booleans(), st.randoms())
def test_a_reader_from_any_batch_on_gets_what_was_committed(
    history: list[Step], first: int, knows_markers: bool, shuffled: random.Random
) -> None:
    log = TransactionLog(history)
    headers = [parse_header(batch) for batch in log.batches][first:]
    start = headers[0].base_offset if headers else log.end
    aborted = [
        Aborted(t.producer_id, t.first_offset, *([t.marker] if knows_markers else [])) for t in log.aborted(start)
    ]
    shuffled.shuffle(aborted)
    stable = [header for header in headers if header.base_offset < log.last_stable_offset]
    assert delivered(stable, AbortedFilter(aborted)) == [offset for offset in log.committed() if offset >= start]
    assert delivered(headers, AbortedFilter()) == [offset for offset in log.uncommitted() if offset >= start]


@settings(max_examples=examples(300))
@example([("data", 1, 2), ("abort", 1, 0), ("data", 1, 2), ("commit", 1, 0)], {1})
@given(steps, st.sets(st.integers(0, 39)))
def test_a_lost_marker_hides_nothing_that_comes_behind_it_where_its_offset_is_known(
    history: list[Step], lost: set[int]
) -> None:
    log = TransactionLog(history)
    headers = [parse_header(batch) for batch in log.batches]
    left = [header for number, header in enumerate(headers) if not (header.is_control and number in lost)]
    aborted = AbortedFilter([Aborted(t.producer_id, t.first_offset, t.marker) for t in log.aborted()])
    stable = [header for header in left if header.base_offset < log.last_stable_offset]
    assert delivered(stable, aborted) == log.committed()


def test_a_lost_marker_without_its_offset() -> None:
    """Without its offset a lost marker hides no more than the next transaction of its producer."""
    log = TransactionLog([("data", 1, 2), ("abort", 1, 0), ("data", 1, 2), ("commit", 1, 0), ("data", 1, 2)])
    headers = [parse_header(batch) for batch in log.batches if parse_header(batch).base_offset != 2]
    assert delivered(headers, AbortedFilter([Aborted(1, 0)])) == [6, 7]
