"""State machines, of which a coordinator has one for each key. They decide without I/O, tasks and clocks.

A request goes in with the moment. What comes out goes to an ``Outbox``: records, which the runtime appends to the topic
of the coordinator; effects, which it has carried out when those are durable; and replies, which it sends then. So no
client learns of what a power cut could take back, and nothing follows from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from seglog_protocol.kafka import Message
from seglog_protocol.steps import Steps

Answer = Callable[[Any], None]
"""Takes the result of a request that may have to wait."""


class Now(NamedTuple):
    """A moment. ``monotonic_ms`` measures intervals; ``wall_ms``, since 1970, is what records hold."""

    monotonic_ms: int
    wall_ms: int


class Record(NamedTuple):
    """A record of a coordinator's topic: its key and value (None: a tombstone), in these versions.

    The version of a key is its type: 2 for the metadata of a classic group.
    """

    key: Message
    key_version: int
    value: Message | None
    value_version: int = 0
    least_size: int = 0
    """Bytes that the value has at least, as far as that is known before it is encoded."""


@dataclass(slots=True)
class Outbox:
    """Decisions of state machines that the runtime has not taken yet.

    ``records`` are written together. When they are durable, ``effects`` are carried out, values that the coordinator
    knows, and ``replies`` are sent, each a result with where it goes.
    """

    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Answer, Any]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.records or self.replies or self.effects)

    def take(self) -> "Outbox":
        """All that is in it; it is empty then."""
        taken = Outbox(self.records, self.replies, self.effects)
        self.records, self.replies, self.effects = [], [], []
        return taken


class StateMachine:
    """The state of one coordinator key: of one group, for example. Requests are methods of its subclasses.

    - State that records carry changes by ``replay`` alone, of a record that was just decided as of one from the log.
      State that no record carries, such as the time of a heartbeat, begins anew with ``restored``.
    - A reply is true when all records that were decided before it, or with it, are durable.
    - A request that may take long is a generator: it pauses where the state is consistent, and other requests are
      served there.
    """

    def __init__(self, key: str, outbox: Outbox) -> None:
        """Its records and replies go to ``outbox``, which all state machines of a runtime share."""
        self.key: Final = key
        self.outbox: Final = outbox

    @property
    def deadline_ms(self) -> int | None:
        """When ``advance`` has something to do, ms of the monotonic clock; None: only after another request."""
        return None

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, about."""
        return 0

    @property
    def is_unused(self) -> bool:
        """True if nothing was ever decided about this key, so that it may be dropped without a record."""
        return False

    def replay(self, record: Record) -> Steps[None]:
        """Change the state as a record says."""
        raise NotImplementedError

    def restored(self, now: Now) -> None:
        """Go on after the last record from the log was replayed: all that is measured in time begins now."""

    def advance(self, now: Now) -> None:
        """Decide what is due. A request that comes before ``advance`` is in time, whatever the deadline was."""

    def write_failed(self, now: Now) -> None:
        """Decide what follows where records that were decided could not be written; requests in between got errors."""

    def delete(self) -> None:
        """Decide the tombstones of all its records. No request follows."""
        raise NotImplementedError
