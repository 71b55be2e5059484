"""What clients of transactions did and were told, and whether that fits what there is to read in the end.

It knows nothing of brokers. A record is text that names its transaction, so whoever sees it knows where it belongs.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """A partition; ``incarnation`` counts the topics that had this name."""

    topic: str
    incarnation: int
    partition: int


class Found(NamedTuple):
    """A record that was read."""

    offset: int
    text: str


@dataclass(eq=False)
class Attempt:
    """One transaction, as its client sees it.

    - ``acked`` are its records that were acknowledged, and where they are;
    - ``committed_offset`` is whether it committed an offset for the group of its transactional id;
    - ``is_asked`` is whether its client has asked for a commit, of all that was sent;
    - ``outcome`` is True for an answer that it is committed, False for one that it is not and will not be, None for
      neither: the broker crashed before it answered.
    """

    transactional_id: str
    number: int
    acked: dict[str, Place] = field(default_factory=dict)
    sent: int = 0
    committed_offset: bool = False
    is_asked: bool = False
    outcome: bool | None = None

    @property
    def name(self) -> str:
        return f"{self.transactional_id}/{self.number}"

    def next_record(self) -> str:
        """The text of another record."""
        self.sent += 1
        return f"{self.name}/{self.sent}"

    def __repr__(self) -> str:
        told = {True: "committed", False: "not committed", None: "unknown"}[self.outcome]
        return f"<{self.name}: {'asked to commit' if self.is_asked else 'not asked'}, told: {told}, acked {self.acked}>"


class Reading(NamedTuple):
    """The name that was committed with a group's offset, when all of the first ``attempts`` transactions had ended."""

    transactional_id: str
    attempts: int
    name: str


class Ledger:
    """All transactions by transactional id, in the order in which they began; and what readers saw."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[Attempt]] = {}
        self.seen: dict[Place, dict[int, str]] = {}
        """By place and offset: what was read at read_committed."""
        self.readings: list[Reading] = []
        self.incarnations: Counter[str] = Counter()

    def begin(self, transactional_id: str) -> Attempt:
        """A new transaction."""
        attempts = self.attempts.setdefault(transactional_id, [])
        attempts.append(Attempt(transactional_id, len(attempts)))
        return attempts[-1]

    def all_attempts(self) -> Iterator[Attempt]:
        for attempts in self.attempts.values():
            yield from attempts

    def attempt_of(self, text: str) -> Attempt:
        """The transaction that a record or a committed offset names."""
        transactional_id, number = text.split("/")[:2]
        return self.attempts[transactional_id][int(number)]

    def see(self, place: Place, found: Found) -> None:
        """Note what a reader got at read_committed. AssertionError where it should not have."""
        self._check_visible(found.text)
        before = self.seen.setdefault(place, {}).setdefault(found.offset, found.text)
        assert before == found.text, f"{place} offset {found.offset} had {before}, and has {found.text}"

    def see_offset(self, text: str) -> None:
        """Note the name that a group's committed offset has."""
        self._check_visible(text)

    def _check_visible(self, text: str) -> None:
        attempt = self.attempt_of(text)
        assert attempt.is_asked, f"{text} is read, and nobody has asked to commit it"
        assert attempt.outcome is not False, f"{text} is read, and was not committed: {attempt}"

    # --- In the end ---------------------------------------------------------------------------------------------------

    def judge(self, records: Mapping[Place, list[Found]], offsets: Mapping[str, str]) -> None:
        """Compare with all that is read at read_committed in the end, and the names of the groups' offsets.

        No transaction is open any more. AssertionError for what does not fit.
        """
        visible = self._visible(records)
        committed = [attempt for attempt in self.all_attempts() if self._is_committed(attempt, visible)]
        self._judge_whole(committed, records, visible)
        for place, seen in self.seen.items():
            if place in records:
                now = dict(records[place])
                for offset, text in seen.items():
                    assert now.get(offset) == text, f"{text} was read at {offset} of {place}, and is no more"
        with_offset = self._judge_offsets(committed, offsets)
        for reading in self.readings:
            names = [each.name for each in with_offset[reading.transactional_id] if each.number < reading.attempts]
            due = names[-1] if names else ""
            assert reading.name == due, f"a producer that began saw {reading}, and should have seen {due!r}"

    def judge_copy(self, records: Mapping[Place, list[Found]], offsets: Mapping[str, str]) -> None:
        """As ``judge`` of a copy that was made earlier: what was committed later is not there, and also as a whole."""
        visible = self._visible(records)
        there = {self.attempt_of(text) for text in visible}
        committed = [attempt for attempt in self.all_attempts() if attempt in there]
        self._judge_whole(committed, records, visible)
        self._judge_offsets(committed, offsets)

    @staticmethod
    def judge_members(records: Mapping[Place, list[Found]], offsets: Mapping[int, int]) -> None:
        """What the members of a group have copied is what it has committed, each record once.

        ``offsets`` are what it has committed, by partition.
        """
        texts = [one.text.split("/") for found in records.values() for one in found]
        copied = Counter((int(text[3]), int(text[4])) for text in texts if len(text) == 5)
        assert all(count == 1 for count in copied.values()), f"copied more than once: {copied.most_common(3)}"
        due = {(partition, offset) for partition, end in offsets.items() for offset in range(end)}
        assert copied.keys() == due, f"copied and not committed, or the other way: {sorted(copied.keys() ^ due)}"

    def _visible(self, records: Mapping[Place, list[Found]]) -> dict[str, Place]:
        """Where each record is."""
        visible: dict[str, Place] = {}
        for place, found in records.items():
            latest: dict[str, tuple[int, ...]] = {}
            for one in found:
                self._check_visible(one.text)
                assert one.text not in visible, f"{one.text} is there twice"
                visible[one.text] = place
                transactional_id, *numbers = one.text.split("/")
                order = tuple(map(int, numbers))
                assert latest.get(transactional_id, ()) < order, f"{one.text} is out of order in {place}"
                latest[transactional_id] = order
        return visible

    @staticmethod
    def _judge_whole(
        committed: list[Attempt], records: Mapping[Place, list[Found]], visible: Mapping[str, Place]
    ) -> None:
        for attempt in committed:
            for text, place in attempt.acked.items():
                if place in records:
                    assert visible.get(text) == place, f"{text} is missing, of a committed transaction: {attempt}"

    @staticmethod
    def _is_committed(attempt: Attempt, visible: Mapping[str, Place]) -> bool:
        return attempt.outcome is True or any(text in visible for text in attempt.acked)

    def _judge_offsets(self, committed: list[Attempt], offsets: Mapping[str, str]) -> dict[str, list[Attempt]]:
        """The committed transactions with an offset, by transactional id."""
        with_offset: dict[str, list[Attempt]] = {transactional_id: [] for transactional_id in offsets}
        for attempt in committed:
            if attempt.committed_offset:
                with_offset[attempt.transactional_id].append(attempt)
        for transactional_id, found in offsets.items():
            attempts = with_offset[transactional_id]
            due = attempts[-1].name if attempts else ""
            assert found == due, f"the group of {transactional_id} is at {found!r}, and should be at {due!r}"
        return with_offset
