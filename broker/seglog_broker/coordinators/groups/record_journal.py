"""Which records of a group have to be written: those that changed, and those whose writing failed."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from seglog_broker.coordinators.groups.consumer_records import RecordKey, order_of_record
from seglog_broker.coordinators.state_machine import Decision, Record


class RecordJournal:
    """Collects changes and appends their records to ``decision``, in one go and in an order that Kafka can read.

    What was appended is not forgotten before it is durable, of which a reply of its own in ``decision`` tells it. Where
    it could not be written, it is appended again, as it is then, with whatever is appended next.
    """

    def __init__(self, decision: Decision, record: Callable[[RecordKey], Record]) -> None:
        self._decision: Final = decision
        self._record: Final = record
        self._changed: set[RecordKey] = set()
        self._not_durable: dict[RecordKey, int] = {}  # -> the last round that it was part of
        self._rounds = 0

    def note(self, key: RecordKey) -> None:
        """Note that the record with ``key`` has another value, or none."""
        self._changed.add(key)

    def note_all(self, keys: Iterable[RecordKey]) -> None:
        """As ``note``, for several."""
        self._changed.update(keys)

    def forget(self) -> None:
        """Note nothing of what changed: it comes from the log."""
        self._changed.clear()

    def append(self) -> None:
        """Append the records that changed, if any did."""
        if not self._changed:
            return
        self._rounds += 1
        records = {key: self._record(key) for key in self._changed}
        self._decision.records += [
            records[key] for key in sorted(records, key=lambda key: order_of_record(key, records[key].value is None))
        ]
        self._not_durable.update(dict.fromkeys(records, self._rounds))
        self._changed.clear()
        self._decision.replies.append((self._note_durable, self._rounds))

    def write_failed(self) -> None:
        """Have everything that is not known to be durable written again."""
        self._changed.update(self._not_durable)

    def _note_durable(self, result: Any, /) -> None:
        if isinstance(result, int):  # and not an error in its place
            self._not_durable = {key: last for key, last in self._not_durable.items() if last > result}
