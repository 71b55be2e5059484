"""The consumer's core, answer by answer: what is asked, checked, skipped, told and refused."""

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.core.fetcher import Fetcher, FetchOptions, PartitionPosition
from seglog.core.records import GAPS_KEPT_MAX, ConsumerGap, FetchedBatch, GapLog
from seglog_protocol.batch_builder import compacted_batch, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import (
    CorruptRecordError,
    DecompressedTooLargeError,
    InconsistentTopicIdError,
    OffsetOutOfRangeError,
    OutOfResourcesError,
    PartitionRecoveringError,
    RemoteProtocolError,
    UnknownTopicError,
)
from seglog_protocol.messages import FetchReply, FetchRequest, FetchResult, Gap
from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import decode_records
from tests.support import each_case, examples
from tests.transactions import Step, TransactionLog, steps


def batch(base: int, count: int = 2, *, timestamp: int = 1000, codec: Codec = Codec.NONE, value: bytes = b"v") -> bytes:
    return encode_batch([(timestamp, None, value, ())] * count, base_offset=base, codec=codec)


class Reader:
    """A fetcher and the answers it is given."""

    def __init__(self, *states: PartitionPosition, **options: Any) -> None:
        self.fetcher = Fetcher("t", states or [PartitionPosition(0, 0, end=100)], FetchOptions(**options))
        self.request: FetchRequest | None = None

    def ask(self, now: float = 0.0) -> list[int]:
        self.request = self.fetcher.request(now)
        self.generations = self.fetcher.generations()
        return [] if self.request is None else [p.offset or 0 for p in self.request.partitions]

    def answer(self, *batches: bytes, now: float = 0.0, **facts: Any) -> None:
        if self.request is None:
            self.ask(now)
        assert self.request is not None
        data = b"".join(batches)
        facts = {"earliest": 0, "latest": 1000, "durable": 1000} | facts
        reply = FetchReply([FetchResult("t", self.request.partitions[0].partition, len(data), **facts)])
        request, self.request = self.request, None
        self.fetcher.take(reply, memoryview(data), request, self.generations, now)

    def answer_twice(self, *batches: bytes, then: Sequence[bytes] = (), **facts: Any) -> None:
        """What does not pass the first time is asked for again, to be verified; ``then`` is what comes, or the same."""
        self.answer(*batches, **facts)
        before = self.fetcher.states[0].position
        self.offsets_before_doubt = self.offsets()
        assert self.ask() in ([before], [before + len(self.offsets_before_doubt)])
        assert self.request is not None
        assert self.request.partitions[0].verify is True
        again = [one for one in batches if parse_header(one).next_offset > self.fetcher.states[0].position]
        self.answer(*(then or again or batches), **facts)

    def offsets(self) -> list[int]:
        """Read what is queued, as the records' face does."""
        found = []
        while (one := self.fetcher.next_batch()) is not None:
            state = self.fetcher.states[one.partition]
            for record in one.stored():
                if record.offset != state.position:
                    self.fetcher.skipped(state, record.offset)
                state.position = record.offset + 1
                found.append(record.offset)
            self.fetcher.finish(one)
        return found

    def told(self) -> list[tuple[int, int, str]]:
        told = [(gap.start, gap.end, gap.reason) for gap in self.fetcher.new_gaps]
        self.fetcher.new_gaps.clear()
        return told


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_the_next_fetch_follows_what_came_before_anybody_has_read_it(reader: Reader) -> None:
    assert reader.ask() == [0]
    reader.answer(batch(0), batch(2))
    assert reader.ask() == [4]
    assert reader.fetcher.states[0].position == 0
    assert reader.offsets() == [0, 1, 2, 3]
    assert reader.fetcher.states[0].position == 4


def test_records_before_the_start_and_from_the_end_on_are_left_out() -> None:
    reader = Reader(PartitionPosition(0, 1, end=5))
    reader.answer(batch(0, 3), batch(3, 3))
    assert reader.offsets() == [1, 2, 3, 4]
    assert reader.fetcher.is_finished
    assert reader.ask() == []


def test_a_loop_that_was_left_goes_on_with_the_next_record(reader: Reader) -> None:
    reader.answer(batch(0, 3))
    first = reader.fetcher.next_batch()
    assert first is not None
    assert next(first.stored()).offset == 0
    reader.fetcher.states[0].position = 1
    assert reader.offsets() == [1, 2]


def test_gaps_between_batches_are_told_with_the_brokers_reason_or_as_missing(reader: Reader) -> None:
    reader.answer(
        batch(5), batch(10), batch(20), gaps=[Gap(0, 5, "expired"), Gap(7, 9, "compacted"), Gap(22, 30, "damaged")]
    )
    assert reader.ask() == [12], "what stands behind a hole at the end of an answer is looked at by the broker"
    reader.answer(batch(20), gaps=[Gap(22, 30, "damaged")])
    assert reader.ask() == [30], "what the last gap names is not asked for again"
    assert reader.offsets() == [5, 6, 10, 11, 20, 21]
    assert reader.told() == [
        (0, 5, "expired"),
        (7, 9, "compacted"),
        (9, 10, "missing"),
        (12, 20, "missing"),
        (22, 30, "damaged"),
    ]
    assert next(iter(reader.fetcher.gaps)) == ConsumerGap("t", 0, 0, 5, "expired")


def test_what_the_broker_does_not_name_is_compacted_as_far_as_compaction_went() -> None:
    reader = Reader(PartitionPosition(0, 0, end=60))
    named = [Gap(0, 4, "damaged"), Gap(22, 25, "missing")]
    reader.answer(batch(5), batch(10), batch(30), batch(50), batch(52), gaps=named, compacted_before=40)
    assert reader.offsets() == [5, 6, 10, 11, 30, 31, 50, 51, 52, 53]
    assert reader.told() == [
        (0, 4, "damaged"),
        (4, 5, "compacted"),
        (7, 10, "compacted"),
        (12, 22, "compacted"),
        (22, 25, "missing"),
        (25, 30, "compacted"),
        (32, 40, "compacted"),
        (40, 50, "missing"),
    ]


def test_a_hole_up_to_the_end_is_told_whether_the_broker_names_it_or_not() -> None:
    for named, compacted_before, reason in (
        ([Gap(2, 10, "compacted")], 10, "compacted"),
        (None, 10, "compacted"),
        (None, None, "missing"),
    ):
        reader = Reader(PartitionPosition(0, 2, end=10))
        reader.answer(latest=10, gaps=named, compacted_before=compacted_before)
        assert reader.offsets() == []
        assert reader.told() == [(2, 10, reason)]
        assert reader.fetcher.is_finished, "it does not ask for ever"


def test_a_follower_steps_over_a_hole_at_the_end_and_waits_behind_it() -> None:
    reader = Reader(PartitionPosition(0, 2), follow=True)
    reader.answer(latest=10, gaps=[Gap(2, 7, "compacted"), Gap(7, 10, "missing")])
    assert reader.ask() == [10]
    assert reader.offsets() == []
    assert reader.told() == [(2, 7, "compacted"), (7, 10, "missing")]
    assert reader.fetcher.states[0].position == 10


def test_a_gap_behind_what_a_limit_left_out_is_not_told_yet(reader: Reader) -> None:
    reader.answer(batch(0), gaps=[Gap(10, 20, "compacted")])
    assert reader.ask() == [2]
    reader.offsets()
    assert reader.told() == []


def test_holes_inside_a_batch_are_compacted() -> None:
    whole = batch(0, 10)
    header = parse_header(whole)
    kept = [record for record in decode_records(header, whole) if record.offset in {2, 3, 7}]
    reader = Reader()
    reader.answer(compacted_batch(header, kept))
    assert reader.offsets() == [2, 3, 7]
    assert reader.told() == [(0, 2, "compacted"), (4, 7, "compacted"), (8, 10, "compacted")]


def test_an_emptied_batch_is_a_gap_and_control_batches_are_none() -> None:
    whole = batch(0, 4)
    marker = encode_batch([(1, b"\0\0\0\1", b"\0\0\0\0\0\0", ())], base_offset=4, control=True, transactional=True)
    reader = Reader()
    reader.answer(compacted_batch(parse_header(whole), []), marker, batch(5))
    assert reader.offsets() == [5, 6]
    assert reader.told() == [(0, 4, "compacted")]


def test_a_batch_with_a_wrong_checksum_is_an_error_until_it_is_sought_past() -> None:
    bad = bytearray(batch(2))
    bad[-1] ^= 1
    reader = Reader()
    reader.answer_twice(batch(0), bytes(bad), batch(4))
    with pytest.raises(CorruptRecordError, match="seek to 4") as caught:
        reader.offsets()
    assert (caught.value.topic, caught.value.partition) == ("t", 0)
    assert (caught.value.start_offset, caught.value.next_offset) == (2, 4)
    assert reader.fetcher.states[0].position == 2, "what came before it was handed out"
    assert reader.ask() == [2], "it is fetched again"
    reader.answer_twice(bytes(bad), then=[bytes(bad)])
    with pytest.raises(CorruptRecordError) as caught:
        reader.offsets()
    assert caught.value.next_offset == 4, "both numbers of records that its header has agree"
    reader.fetcher.states[0].go_to(4)
    assert reader.ask() == [4]
    reader.answer(batch(4))
    assert reader.offsets() == [4, 5]


def test_damage_that_the_broker_names_is_raised_behind_what_it_could_read(reader: Reader) -> None:
    reader.answer(batch(0), error=CorruptRecordError("damaged", topic="t", partition=0, start_offset=2, next_offset=50))
    assert reader.ask() == [], "nothing is fetched into an error"
    with pytest.raises(CorruptRecordError, match="damaged") as caught:
        reader.offsets()
    assert (caught.value.start_offset, caught.value.next_offset) == (2, 50)
    reader.fetcher.states[0].go_to(caught.value.next_offset)
    reader.answer(batch(50))
    assert reader.offsets() == [50, 51]


@each_case(
    "batches",
    [
        [batch(0, 2)],
        [batch(10), batch(11)],
        [batch(12), batch(10)],
        [batch(999, 5)],
    ],
    ids=["before what was asked", "overlapping", "backwards", "beyond the end"],
)
def test_offsets_that_do_not_belong_there_are_refused(batches: list[bytes]) -> None:
    reader = Reader(PartitionPosition(0, 10, end=2000))
    reader.answer_twice(*batches)
    with pytest.raises(CorruptRecordError, match=r"does not continue|beyond the log's end"):
        reader.offsets()


def test_a_damaged_length_is_an_error_at_its_place() -> None:
    bad = bytearray(batch(2))
    bad[8:12] = b"\0\0\0\0"
    reader = Reader()
    reader.answer_twice(batch(0), bytes(bad), then=[bytes(bad), batch(4)])
    with pytest.raises(CorruptRecordError) as caught:
        reader.offsets()
    assert (caught.value.start_offset, caught.value.next_offset) == (2, 4), "the next one that is sound"


def test_a_batch_that_opens_to_too_much_is_refused_with_its_offsets() -> None:
    reader = Reader(decompressed_batch_bytes_max=1000)
    reader.answer(batch(0, 1, codec=Codec.GZIP, value=b"x" * 100_000))
    with pytest.raises(DecompressedTooLargeError) as caught:
        reader.offsets()
    assert (caught.value.topic, caught.value.start_offset, caught.value.next_offset) == ("t", 0, 1)


def out_of_range(requested: int, reason: str = "expired") -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        "out", topic="t", partition=0, requested=requested, earliest=50, latest=80, reason=reason
    )


def test_out_of_range_is_an_error_or_goes_to_an_end_and_tells_what_it_skipped(reader: Reader) -> None:
    reader.answer(error=out_of_range(0), earliest=50, latest=80)
    with pytest.raises(OffsetOutOfRangeError):
        reader.offsets()
    for policy, target in (("earliest", 50), ("latest", 80)):
        reader = Reader(on_out_of_range=policy)
        reader.answer(error=out_of_range(0), earliest=50, latest=80)
        assert reader.offsets() == []
        assert reader.told() == [(0, 50, "expired")]
        assert reader.fetcher.states[0].position == target


@each_case(
    ("reason", "told"), [("expired", "expired"), ("truncated", "truncated"), ("", "expired"), ("newer", "expired")]
)
def test_a_reader_that_the_log_start_overtakes_tells_why_from_where_it_was(reason: str, told: str) -> None:
    reader = Reader(PartitionPosition(0, 0), follow=True, on_out_of_range="earliest")
    reader.answer(batch(0), batch(2))
    reader.answer(error=out_of_range(4, reason), earliest=50, latest=80)
    assert reader.offsets() == [0, 1, 2, 3]
    assert reader.told() == [(4, 50, told)]
    assert reader.ask() == [50]


def test_a_start_beyond_the_end_with_a_policy_finds_its_end_again() -> None:
    reader = Reader(PartitionPosition(0, 200, end=201), on_out_of_range="earliest")
    reader.answer(error=out_of_range(200), earliest=50, latest=80)
    assert reader.offsets() == []
    assert (reader.fetcher.states[0].position, reader.fetcher.states[0].end) == (50, 80)
    assert reader.told() == []


def test_until_a_time_stops_before_the_first_record_that_reaches_it() -> None:
    state = PartitionPosition(0, 0, end=100, until_ms=3000)
    reader = Reader(state)
    mixed = encode_batch([(1000, None, b"a", ()), (3000, None, b"b", ()), (2000, None, b"c", ())], base_offset=2)
    reader.answer(batch(0), mixed, batch(5, timestamp=500))
    assert reader.offsets() == [0, 1, 2]
    assert reader.fetcher.is_finished
    assert state.position == 3
    reader = Reader(PartitionPosition(0, 0, end=100, until_ms=1000))
    reader.answer(batch(0))
    assert reader.offsets() == []
    assert reader.fetcher.is_finished


def test_what_was_fetched_before_a_seek_is_not_handed_out_after_it(reader: Reader) -> None:
    reader.answer(batch(0), batch(2))
    reader.ask()
    reader.fetcher.states[0].go_to(50)
    assert reader.offsets() == []
    reader.answer(batch(4))
    assert reader.offsets() == [], "the answer of a fetch that was on its way"
    assert reader.ask() == [50]


def test_a_paused_partition_is_neither_asked_for_nor_handed_out(reader: Reader) -> None:
    reader.answer(batch(0))
    reader.fetcher.states[0].is_paused = True
    assert reader.ask() == []
    assert reader.offsets() == []
    assert reader.fetcher.is_finished
    reader.fetcher.states[0].is_paused = False
    assert reader.offsets() == [0, 1]


def test_partitions_take_turns_at_being_first_so_none_starves() -> None:
    reader = Reader(*(PartitionPosition(n, 0, end=10) for n in range(3)))
    firsts = []
    for _ in range(4):
        request = reader.fetcher.request(0.0)
        assert request is not None
        firsts.append(request.partitions[0].partition)
    assert firsts == [0, 1, 2, 0]


def test_only_what_is_durable_is_handed_out_when_asked_for() -> None:
    reader = Reader(PartitionPosition(0, 0), follow=True, durable_only=True)
    reader.answer(batch(0), batch(2), durable=2)
    assert reader.offsets() == [0, 1]
    assert reader.ask() == [2]
    reader.answer(batch(2), durable=2, now=5.0)
    assert reader.offsets() == []
    assert reader.ask(5.0) == [], "asking again at once would change nothing"
    look = reader.fetcher.next_fetch_at()
    assert look is not None
    assert reader.ask(look) == [2]
    reader.answer(batch(2), durable=4, now=look)
    assert reader.offsets() == [2, 3]


def test_following_waits_at_the_broker_and_reading_to_the_end_does_not() -> None:
    for follow in (False, True):
        request = Fetcher("t", [PartitionPosition(0, 0, end=10)], FetchOptions(follow=follow)).request(0.0)
        assert request is not None
        assert bool(request.max_wait_ms) is follow


def test_a_fetch_names_the_topics_id_where_it_is_known() -> None:
    for topic_id, named in (("i", {"t": "i"}), ("", None)):
        states = [PartitionPosition(n, 0, topic_id=topic_id) for n in range(3)]
        request = Fetcher("t", states, FetchOptions(follow=True)).request(0.0)
        assert request is not None
        assert request.topic_ids == named


@pytest.mark.parametrize("on_out_of_range", ["error", "earliest", "latest"])
def test_a_recreated_topic_is_an_error_each_time(on_out_of_range: str) -> None:
    """A topic that was made again is an error each time it is asked and moves nobody."""
    reader = Reader(PartitionPosition(0, 0, topic_id="i"), follow=True, on_out_of_range=on_out_of_range)
    reader.answer(batch(0))
    error = InconsistentTopicIdError("made again", topic="t", partition=0, topic_id="j")
    for _ in range(2):
        assert reader.ask() == [2]
        reader.answer(error=error)
        assert reader.ask() == [], "nothing more is asked before the program has heard of it"
        assert reader.fetcher.states[0].position in {0, 2}
        with pytest.raises(InconsistentTopicIdError):
            reader.offsets()
        assert reader.fetcher.states[0].position == 2, "what came before has been handed out"


def test_an_answer_that_does_not_fit_the_question_is_no_answer(reader: Reader) -> None:
    reader.ask()
    assert reader.request is not None
    for reply in (
        FetchReply([]),
        FetchReply([FetchResult("t", 0, 5)]),
        FetchReply([FetchResult("t", 1, 0)]),
    ):
        with pytest.raises(RemoteProtocolError, match="reply to a fetch"):
            reader.fetcher.take(reply, memoryview(b""), reader.request, reader.generations, 0.0)


def test_a_batch_says_which_of_its_records_were_asked_for() -> None:
    reader = Reader(PartitionPosition(0, 1, end=3))
    reader.answer(batch(0, 5))
    one = reader.fetcher.next_batch()
    assert isinstance(one, FetchedBatch)
    assert (one.start_offset, one.end_offset) == (1, 3)
    assert [record.offset for record in one.records()] == [1, 2]
    assert next(one.records())[:2] == ("t", 0)
    assert bytes(one.data) == batch(0, 5)


def test_a_recovering_partition_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A recovering partition is asked again for as long as it takes and the log says so."""
    reader = Reader(reconnect_timeout=10.0)
    now = 0.0
    while now < 1000:
        assert reader.ask(now) == [0]
        reader.answer(now=now, error=PartitionRecoveringError("t-0 recovers, 7 of 9 bytes: try again"), latest=None)
        assert reader.offsets() == []
        assert bool(caplog.messages) == (now >= 3), "silent for some seconds at most"
        assert len(caplog.messages) <= 1 + now / 10, "at a modest rate"
        looks = reader.fetcher.next_fetch_at()
        assert looks is not None
        assert now < looks <= now + 1
        now = looks
    assert len(caplog.messages) >= now / 12
    assert re.fullmatch(r"waiting for 3\.?\d* s: t-0 recovers, 7 of 9 bytes", caplog.messages[0])
    reader.ask(now)
    reader.answer(batch(0), now=now)
    assert reader.offsets() == [0, 1]
    assert re.fullmatch(r"the wait is over after 100\d.* s", caplog.messages[-1])


def test_many_partitions_that_are_waited_for_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    fetcher = Fetcher("t", [PartitionPosition(number, 0) for number in range(100)], FetchOptions(follow=True))
    for now in (0.0, 4.0, 8.0):
        request = fetcher.request(now)
        assert request is not None
        errors = [PartitionRecoveringError(f"{asked.partition} recovers") for asked in request.partitions]
        pairs = zip(request.partitions, errors, strict=True)
        reply = FetchReply([FetchResult("t", asked.partition, 0, error=error) for asked, error in pairs])
        fetcher.take(reply, memoryview(b""), request, fetcher.generations(), now)
    assert caplog.messages == ["waiting for 4 s: 1 recovers; 99 other partitions cannot be read either"]


def test_other_errors_that_may_pass_are_told_when_they_do_not() -> None:
    reader = Reader(reconnect_timeout=10.0)
    reader.answer(now=0.0, error=OutOfResourcesError("not now"))
    assert reader.offsets() == []
    reader.ask(20.0)
    reader.answer(now=20.0, error=OutOfResourcesError("not now"))
    with pytest.raises(OutOfResourcesError):
        reader.offsets()


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_batch_is_not_handed_out_when_the_next_one_says_that_its_offset_is_wrong(reader: Reader, wrong: int) -> None:
    """Whether a batch before it speaks for it or it is the first, which may begin anywhere."""
    offsets = [0, 5, 10]
    offsets[wrong] += 2
    reader.answer_twice(*(batch(offset, 5) for offset in offsets))
    with pytest.raises(CorruptRecordError) as caught:
        reader.offsets()
    assert caught.value.start_offset == reader.fetcher.states[0].position == 5 * wrong
    assert list(reader.fetcher.gaps) == []


def test_a_topic_that_is_deleted_is_told_as_that_when_what_came_before_has_been_read() -> None:
    reader = Reader(PartitionPosition(0, 0, topic_id="former"), follow=True)
    reader.answer(batch(0))
    reader.answer(error=UnknownTopicError("there is no topic t; create it with: seglog topic create NAME", topic="t"))
    first = reader.fetcher.next_batch()
    assert first is not None
    reader.fetcher.finish(first)
    with pytest.raises(UnknownTopicError, match=r"topic t was deleted while it was read; .* by a new consumer"):
        reader.offsets()


# --- Isolation --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(500))
@given(steps, st.integers(0, 60), st.randoms())
def test_at_read_committed_replies_of_any_size_give_what_was_committed(
    history: list[Step], start: int, chance: random.Random
) -> None:
    log = TransactionLog(history)
    start, stable = min(start, log.last_stable_offset), log.last_stable_offset
    reader = Reader(PartitionPosition(0, start, end=stable, last_stable=stable), isolation="read_committed")
    found: list[int] = []
    while at := reader.ask():
        assert reader.request is not None
        assert reader.request.isolation == "read_committed"
        left = [data for data in log.batches if at[0] < parse_header(data).next_offset <= stable]
        batches = left[: chance.randint(1, 5)]
        end = parse_header(batches[-1]).next_offset if batches else at[0]
        aborted = [[t.producer_id, t.first_offset] for t in log.aborted(at[0], end + chance.randint(0, 9))]
        chance.shuffle(aborted)
        reader.answer(*batches, latest=log.end, last_stable_offset=stable, aborted=aborted)
        found += reader.offsets()
    assert found == [offset for offset in log.committed() if offset >= start]
    assert reader.fetcher.states[0].position == stable
    assert reader.fetcher.is_finished
    assert not reader.told()


def test_what_is_left_out_is_no_gap_and_the_position_moves_past_it() -> None:
    log = TransactionLog([("plain", 0, 1), ("data", 1, 2), ("data", 2, 1), ("abort", 1, 0), ("data", 2, 1)])
    reader = Reader(PartitionPosition(0, 0), isolation="read_committed", follow=True)
    reader.answer(*log.batches[:2], latest=6, last_stable_offset=3, aborted=[[1, 1]])
    assert reader.offsets() == [0]
    assert reader.fetcher.states[0].position == 3
    assert reader.ask() == [3], "a consumer that follows waits at the last stable offset"
    assert not reader.told()


def test_transactions_at_read_uncommitted() -> None:
    """At read uncommitted transactions make no difference and nothing is asked about them."""
    log = TransactionLog([("data", 1, 2), ("abort", 1, 0), ("data", 1, 1)])
    reader = Reader()
    reader.ask()
    assert reader.request is not None
    assert reader.request.isolation is None
    reader.answer(*log.batches, latest=4, last_stable_offset=3)
    assert reader.offsets() == [0, 1, 3]


def test_a_range_beyond_the_last_stable_offset_ends_there_without_a_gap() -> None:
    log = TransactionLog([("plain", 0, 1), ("data", 1, 2)])
    reader = Reader(PartitionPosition(0, 0, end=3), isolation="read_committed")
    reader.answer(log.batches[0], latest=3, last_stable_offset=1)
    assert reader.ask() == [1]
    reader.answer(latest=3, last_stable_offset=1)
    assert reader.offsets() == [0]
    assert reader.fetcher.is_finished
    assert not reader.told()


def test_a_flipped_bit_hides_no_batch_of_an_aborted_transaction_that_it_makes_one_of() -> None:
    log = TransactionLog([("data", 1, 2), ("abort", 1, 0), ("data", 1, 2), ("commit", 1, 0)])
    flipped = bytearray(log.batches[2])
    flipped[22] ^= 0x20  # now a marker, by its header
    reader = Reader(PartitionPosition(0, 3, end=6), isolation="read_committed")
    reader.answer(bytes(flipped), latest=6, last_stable_offset=6, aborted=[])
    assert reader.offsets() == []
    assert reader.ask() == [3]
    reader.answer(log.batches[2], latest=6, last_stable_offset=6, aborted=[])
    assert reader.offsets() == [3, 4]


@pytest.mark.parametrize(("place", "expected"), [("latest", 7), ("earliest", 5)])
def test_out_of_range_the_latest_offset_is_the_last_stable_one(place: Any, expected: int) -> None:
    reader = Reader(
        PartitionPosition(0, 2, last_stable=7), isolation="read_committed", follow=True, on_out_of_range=place
    )
    error = OffsetOutOfRangeError("gone", topic="t", partition=0, requested=2, earliest=5, latest=9)
    reader.answer(earliest=5, latest=9, error=error)
    assert reader.offsets() == []
    assert reader.fetcher.states[0].position == expected


# --- Gaps are merged, bounded and counted -----------------------------------------------------------------------------


def gap(start: int, end: int, partition: int = 0, reason: str = "compacted") -> ConsumerGap:
    return ConsumerGap("t", partition, start, end, reason)


def test_neighbours_of_one_reason_are_one_gap_also_when_partitions_alternate() -> None:
    log = GapLog()
    for one in (gap(0, 5), gap(10, 20, 1), gap(5, 8), gap(20, 21, 1), gap(8, 9, reason="damaged"), gap(20, 30)):
        log.add(one)
    assert list(log) == [gap(0, 8), gap(10, 21, 1), gap(8, 9, reason="damaged"), gap(20, 30)]
    assert (log.total, log.offsets_total) == (4, 30)


def test_only_the_last_are_kept_but_all_are_counted() -> None:
    log = GapLog()
    for number in range(GAPS_KEPT_MAX + 50):
        log.add(gap(number * 10, number * 10 + 1))
    assert len(log) == GAPS_KEPT_MAX
    assert next(iter(log)) == gap(500, 501)
    assert (log.total, log.offsets_total) == (GAPS_KEPT_MAX + 50, GAPS_KEPT_MAX + 50)
