"""A coordinator's topic whose writes a test ends."""

from collections.abc import Iterable, Sequence

from seglog_broker.coordinators.state_machine import Record, encode_record
from seglog_broker.coordinators.topic import Encoded, StateTopic, Then
from seglog_protocol.errors import CoordinatorNotAvailableError, SeglogError
from seglog_protocol.steps import finished

FAILED = CoordinatorNotAvailableError("the disk")


def encode(records: Iterable[Encoded | Record]) -> list[Encoded]:
    return [finished(encode_record(record)) if isinstance(record, Record) else record for record in records]


class HeldTopic(StateTopic):
    """Keeps what is to be appended until the test says what becomes of it."""

    def __init__(self) -> None:
        self.writes: list[Then] = []
        self.records: list[list[Encoded]] = []
        """Of every write."""

    def append(
        self,
        key: str,
        records: Sequence[Encoded | Record],
        then: Then,
        transaction: object = None,
        *,
        is_urgent: bool = True,
    ) -> None:
        self.writes.append(then)
        self.records.append(encode(records))

    def end(self, error: SeglogError | None = None) -> None:
        self.writes.pop(0)(error)
