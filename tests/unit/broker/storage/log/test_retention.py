"""Which segments are deleted: every rule to the byte and the millisecond, predictions, and both against models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log import truncation
from seglog_broker.storage.log.batch_checks import expired_before
from seglog_broker.storage.segment.segment import Segment
from tests.support import each_case, examples

NOW = 1_000_000
KEEP = -1


@dataclass
class Part:
    """A segment as retention sees it; ``asked`` counts the reads of its last write."""

    base_offset: int
    size: int = 100
    largest_timestamp: int = NOW
    written_ms: int = NOW
    asked: int = field(default=0, compare=False)

    def last_write(self) -> truncation.LastWrite:
        self.asked += 1
        return truncation.LastWrite(self.written_ms, truncation.AgeSource.MODIFICATION_TIME)


def config(retention_ms: int = KEEP, retention_bytes: int = KEEP, policy: tuple[str, ...] = ("delete",)) -> TopicConfig:
    return TopicConfig(retention_ms=retention_ms, retention_bytes=retention_bytes, cleanup_policy=policy)


def judged(
    parts: Sequence[Part], limits: TopicConfig, *, log_start: int = 0, now: int = NOW
) -> list[truncation.Verdict]:
    """The verdicts on all segments of a log whose last one is active."""
    total = sum(part.size for part in parts)
    judge = truncation.RetentionJudge(limits, log_start_offset=log_start, total_size=total, now_ms=now)
    next_bases = [*(part.base_offset for part in parts[1:]), None][: len(parts)]
    return [
        judge.judge(cast(Segment, part), part.last_write, next_base=base)
        for part, base in zip(parts, next_bases, strict=True)
    ]


def rules(parts: Sequence[Part], limits: TopicConfig, *, log_start: int = 0, now: int = NOW) -> list[str | None]:
    return [v.rule and str(v.rule) for v in judged(parts, limits, log_start=log_start, now=now)]


def row(*sizes: int, **fields: int) -> list[Part]:
    """Segments of ten offsets each."""
    return [Part(10 * number, size, **fields) for number, size in enumerate(sizes)]


# --- On arrival -------------------------------------------------------------------------------------------------------


@given(retention_ms=st.integers(KEEP, NOW + 10), timestamp=st.integers(-1, NOW))
def test_a_record_that_expired_on_arrival(retention_ms: int, timestamp: int) -> None:
    """A record has expired on arrival when a closed segment of its own would go at once."""
    limits = config(retention_ms)
    own_segment = [Part(0, largest_timestamp=timestamp, written_ms=NOW), Part(1, largest_timestamp=NOW)]
    goes = rules(own_segment, limits)[0] is not None
    assert (0 <= timestamp < expired_before(limits, NOW)) == goes


def test_nothing_has_expired_on_arrival_where_time_or_timestamps_do_not_count() -> None:
    assert expired_before(config(1000), NOW) == NOW - 1000
    assert expired_before(config(2**62), NOW) == 0
    assert expired_before(config(1000, policy=("compact", "delete")), NOW) == NOW - 1000
    assert expired_before(config(1000, policy=("compact",)), NOW) == 0
    assert expired_before(TopicConfig(retention_ms=1000, message_timestamp_type="LogAppendTime"), NOW) == 0


# --- Size -------------------------------------------------------------------------------------------------------------


_BOTH = ("compact", "delete")
_BEHIND = truncation.Kept.OLDER_SEGMENT


@each_case(
    ("parts", "limits", "log_start", "now", "expected"),
    [
        # At a limit of 0 even the active segment goes, as with Kafka.
        (row(500, 500, 500), config(retention_bytes=0), 0, NOW, ["size"] * 3),
        # What the log start takes counts no longer for the size.
        (row(500, 500, 500), config(retention_bytes=1000), 10, NOW, ["log start", None, None]),
        (row(500, 500, 500), config(retention_bytes=500), 10, NOW, ["log start", "size", None]),
        # Each rule goes on where the one before stopped.
        (
            [Part(10 * n, largest_timestamp=0 if n < 3 else NOW) for n in range(5)],
            config(retention_ms=1000, retention_bytes=300),
            10,
            NOW,
            ["log start", "size", "time", None, None],
        ),
        # With compact and delete both limits hold.
        (row(100, 100, 100, largest_timestamp=0), config(1000, KEEP, _BOTH), 0, NOW, ["time"] * 3),
        (row(100, 100, 100, largest_timestamp=0), config(KEEP, 200, _BOTH), 0, NOW, ["size", None, None]),
    ],
)
def test_which_segments_go_by_which_rule(
    parts: list[Part], limits: TopicConfig, log_start: int, now: int, expected: list[str | None]
) -> None:
    assert rules(parts, limits, log_start=log_start, now=now) == expected


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), limit=st.integers(0, 200))
def test_exactly_the_bytes_that_are_to_come_make_a_segment_due(sizes: list[int], limit: int) -> None:
    for number, verdict in enumerate(judged(row(*sizes), config(retention_bytes=limit))[:-1]):
        if verdict.rule is None:
            assert verdict.bytes_to_come is not None
            *others, last = sizes
            for more, rule in ((0, "size"), (-1, None)):
                grown = row(*others, last + verdict.bytes_to_come + more)
                assert rules(grown, config(retention_bytes=limit))[number] == rule


# --- Time -------------------------------------------------------------------------------------------------------------


def test_a_timestamp_of_zero_is_1970_and_not_unknown() -> None:
    parts = row(100, 0, largest_timestamp=0)
    age = judged(parts, config(retention_ms=1000))[0].age
    assert age is not None
    assert (age.source, age.warning, parts[0].asked) == (truncation.AgeSource.LARGEST_TIMESTAMP, None, 0)


def test_time_stops_at_the_first_segment_it_does_not_take() -> None:
    parts = [Part(0, largest_timestamp=0), Part(10, largest_timestamp=NOW), Part(20, largest_timestamp=0)]
    old, young, shielded = judged(parts, config(retention_ms=1000))
    assert (old.rule, young.rule, shielded.rule) == (truncation.DeletionRule.TIME, None, None)
    assert (young.kept, young.due_ms, young.behind) == (truncation.Kept.AGE, NOW + 1000, None)
    assert (shielded.kept, shielded.due_ms, shielded.behind) == (truncation.Kept.OLDER_SEGMENT, NOW + 1000, 10)


# --- Policies ---------------------------------------------------------------------------------------------------------


@each_case(
    ("parts", "limits", "kept"),
    [
        # Without delete neither age nor size takes anything.
        *(
            (row(100, 100, largest_timestamp=0), config(0, 0, policy), [truncation.Kept.POLICY, _BEHIND])
            for policy in (("compact",), ())
        ),
        # Without limits everything stays, and under the size limit where there is none of age.
        (row(100, 100, largest_timestamp=-1, written_ms=0), config(), [truncation.Kept.NO_LIMIT, _BEHIND]),
        (row(100, 0), config(retention_bytes=1000), [truncation.Kept.NO_LIMIT, truncation.Kept.EMPTY_ACTIVE]),
    ],
)
def test_what_keeps_a_log_for_ever_is_told_and_no_file_is_asked_anything(
    parts: list[Part], limits: TopicConfig, kept: list[truncation.Kept]
) -> None:
    assert [(v.rule, v.kept, v.due_ms) for v in judged(parts, limits)] == [(None, reason, None) for reason in kept]
    assert [part.asked for part in parts] == [0, 0]


# --- Timestamps that say nothing --------------------------------------------------------------------------------------


def test_without_timestamps_the_last_write_counts_and_the_verdict_says_so() -> None:
    parts = row(100, 0, largest_timestamp=-1, written_ms=NOW - 1001)
    verdict = judged(parts, config(retention_ms=1000))[0]
    assert verdict.age is not None
    assert (verdict.rule, verdict.due_ms) == (truncation.DeletionRule.TIME, NOW - 1)
    assert (verdict.age.since_ms, verdict.age.source) == (NOW - 1001, truncation.AgeSource.MODIFICATION_TIME)
    assert verdict.age.warning == "none of its records has a timestamp: it ages from its modification time"
    assert rules(parts, config(retention_ms=1001)) == [None, None]


def test_a_timestamp_in_the_future_does_not_shield_a_log() -> None:
    far = 2**62
    parts = [Part(0, largest_timestamp=far, written_ms=NOW - 1001), Part(10, largest_timestamp=0), Part(20, size=0)]
    first, second, _ = judged(parts, config(retention_ms=1000))
    assert (first.rule, second.rule) == (truncation.DeletionRule.TIME, truncation.DeletionRule.TIME)
    assert first.age is not None
    assert first.age.warning == f"its largest timestamp, @{far}, lies in the future: it ages from its modification time"
    assert judged(parts, config(retention_ms=1001))[0].due_ms == NOW, "and goes behind that"


@each_case(
    ("ahead", "due"),
    [
        (502, NOW + 500),  # the last write makes it old enough for a single millisecond
        (501, NOW + 1501),  # at the first moment it would be old enough its timestamp counts
        (500, NOW + 1500),
        (1, NOW + 1001),
        (10**9, NOW + 500),
    ],
)
def test_when_the_timestamp_becomes_true_first_the_prediction_counts_from_it(ahead: int, due: int) -> None:
    parts = row(100, 0, largest_timestamp=NOW + ahead, written_ms=NOW - 500)
    assert judged(parts, config(retention_ms=1000))[0].due_ms == due


@pytest.mark.parametrize("largest", [-1, NOW + 10**6])
def test_what_has_no_usable_time_at_all_stays_and_is_said_to_be_unknown(largest: int) -> None:
    parts = row(100, 100, largest_timestamp=largest, written_ms=NOW + 1)
    verdict = judged(parts, config(retention_ms=0))[0]
    assert verdict.age is not None
    assert (verdict.rule, verdict.age.is_unknown, verdict.age.since_ms) == (None, True, NOW)
    assert str(verdict.age.warning).endswith("lies in the future: it ages from the next retention check")
    written_now = row(100, 100, largest_timestamp=largest, written_ms=NOW)
    verdict = judged(written_now, config(retention_ms=0))[0]
    assert verdict.age is not None
    assert not verdict.age.is_unknown, "a write of this very millisecond is possible"


# --- Against plain models ---------------------------------------------------------------------------------------------


def parts_of(facts: list[tuple[int, int, int]], active: tuple[int, int, int]) -> list[Part]:
    return [
        Part(10 * number, size, NOW + largest if largest != 77 else -1, NOW + written)
        for number, (size, largest, written) in enumerate([*facts, active])
    ]


PAST = st.integers(-60, 0)
AROUND_NOW = st.integers(-60, 60) | st.just(77)  # 77 stands for no timestamp
LIMITS = st.sampled_from([-1, 0, 1, 5, 20, 40])


def kafka_deletes(parts: list[Part], limits: TopicConfig, log_start: int) -> int:
    """How many segments Kafka's UnifiedLog.deleteOldSegments deletes: three passes, each over the remaining ones."""
    left = list(parts)

    def end(number: int) -> int | None:
        return left[number + 1].base_offset if number + 1 < len(left) else None

    def delete_while(deletable: "list[bool]") -> None:
        count = 0
        while count < len(left):
            is_empty_active = end(count) is None and left[count].size == 0
            if not deletable[count] or is_empty_active:
                break
            count += 1
        del left[:count]

    delete_while([(base := end(n)) is not None and base <= log_start for n in range(len(left))])
    deletes = "delete" in limits.cleanup_policy
    total = sum(part.size for part in left)
    if deletes and limits.retention_bytes >= 0 and total >= limits.retention_bytes:
        excess, marks = total - limits.retention_bytes, []
        for part in left:
            marks.append(excess - part.size >= 0)
            if marks[-1]:
                excess -= part.size
        delete_while(marks)
    if deletes and limits.retention_ms >= 0:
        delete_while([NOW - part.largest_timestamp > limits.retention_ms for part in left])
    return len(parts) - len(left)


@settings(max_examples=examples(1000))
@given(
    facts=st.lists(st.tuples(st.integers(1, 30), PAST, PAST), max_size=6),
    active=st.tuples(st.integers(0, 30), PAST, PAST),
    retention_ms=LIMITS,
    retention_bytes=LIMITS,
    policy=st.sampled_from([(), ("delete",), ("compact",), ("compact", "delete")]),
    log_start=st.integers(0, 70),
)
def test_what_goes_is_what_kafkas_three_passes_delete(
    facts: list[tuple[int, int, int]],
    active: tuple[int, int, int],
    retention_ms: int,
    retention_bytes: int,
    policy: tuple[str, ...],
    log_start: int,
) -> None:
    parts = parts_of(facts, active)
    limits = config(retention_ms, retention_bytes, policy)
    going = kafka_deletes(parts, limits, log_start)
    verdicts = judged(parts, limits, log_start=log_start)
    assert [v.rule is not None for v in verdicts] == [True] * going + [False] * (len(parts) - going)
    assert all((v.rule is None) == (v.kept is not None) for v in verdicts)


@settings(max_examples=examples(1000))
@given(
    facts=st.lists(st.tuples(st.integers(1, 30), AROUND_NOW, PAST), max_size=5),
    active=st.tuples(st.integers(0, 30), AROUND_NOW, PAST),
    retention_ms=LIMITS,
    retention_bytes=LIMITS,
    log_start=st.integers(0, 60),
)
def test_a_segment_goes_exactly_behind_the_moment_that_was_predicted(
    facts: list[tuple[int, int, int]],
    active: tuple[int, int, int],
    retention_ms: int,
    retention_bytes: int,
    log_start: int,
) -> None:
    """Checked at every millisecond at which anything can change; all predictions made on the way are the same."""
    left = parts_of(facts, active)
    limits = config(retention_ms, retention_bytes)
    turns = {
        moment + shift
        for part in left
        for moment in (part.largest_timestamp, part.largest_timestamp + retention_ms, part.written_ms + retention_ms)
        for shift in (-1, 0, 1, 2)
    }
    predicted: dict[int, int | None] = {}
    for now in [NOW, *sorted(turn for turn in turns if turn > NOW), NOW + 10**6]:
        for part, verdict in zip(list(left), judged(left, limits, log_start=log_start, now=now), strict=True):
            due = predicted.setdefault(part.base_offset, verdict.due_ms)
            if verdict.rule is not None:
                left.remove(part)
                if verdict.rule is truncation.DeletionRule.TIME:
                    assert due is not None
                    assert due < now
                else:
                    assert now == NOW, "only time takes anything while nothing else changes"
            else:
                assert verdict.due_ms == due
                assert due is None or now <= due
    assert all(predicted[part.base_offset] is None for part in left), "what was to go has gone"
