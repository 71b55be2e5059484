"""A replay that looks at few values has the states of one that takes in every record."""

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.coordinators.share.in_flight import StateBatch
from seglog_broker.coordinators.share.records import (
    Header,
    PartitionKey,
    ShareReplay,
    encode_keys,
    encode_snapshot,
    encode_update,
)
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import iter_records
from seglog_protocol.steps import finished
from tests.support import examples

KEYS = [encode_keys(PartitionKey(group, bytes(16), number)) for group in ("a", "b") for number in (0, 1)]
NEWER = b"\x00\x01newer"

HEADERS = st.builds(
    Header, st.integers(0, 3), st.integers(0, 2), st.just(0), st.integers(-1, 30), st.integers(-1, 9)
)  # fmt: skip
BATCHES = st.lists(
    st.builds(lambda first, size, *rest: StateBatch(first, first + size, *rest),
              st.integers(0, 30), st.integers(-1, 5), st.integers(0, 5), st.integers(0, 3)),
    max_size=3,
)  # fmt: skip
SNAPSHOTS = st.builds(lambda header, batches: encode_snapshot(header, (1, 2), batches)[0], HEADERS, BATCHES)
UPDATES = st.builds(lambda header, batches: encode_update(header, batches)[0], HEADERS, BATCHES)
RECORDS = st.one_of(
    st.tuples(st.sampled_from([key for key, _ in KEYS]), st.one_of(st.none(), SNAPSHOTS, st.just(NEWER))),
    st.tuples(st.sampled_from([key for _, key in KEYS]), st.one_of(st.none(), UPDATES, UPDATES, UPDATES)),
    st.tuples(st.sampled_from([b"", b"\0", b"\0\x09unknown"]), st.none()),
)


def facts(replay: ShareReplay) -> dict[PartitionKey, object]:
    return {
        key: (state.header, state.times, [(run.first, run.last, run.state, run.count) for run in state.runs])
        for key, state in replay.states.items()
    }


@settings(max_examples=examples(300))
@given(st.lists(RECORDS, max_size=40), st.integers(1, 40))
def test_what_the_next_snapshot_replaces_need_not_be_looked_at(
    records: list[tuple[bytes, bytes | None]], stop: int
) -> None:
    whole = ShareReplay()
    for key, value in records:
        finished(whole.take(key, value))
    quick = ShareReplay()
    for some in (records[:stop], records[stop:]):
        if some:
            [(header, batch)] = iter_batches(memoryview(encode_batch([(0, *record, ()) for record in some])))
            finished(quick.read(header, iter_records(header, batch)))
        finished(quick.catch_up())
    assert facts(quick) == facts(whole)
    assert quick.unknown.total() <= whole.unknown.total(), "a newer one, or an update, may have been replaced"
