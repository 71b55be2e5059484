"""What the member programs in Python have alike; the standard library alone. Their lines: ``tests.members.lines``.

Arguments of each: the server, the topic, the group, and who it is.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

SESSION_SECONDS: Final = 6.0
HEARTBEAT_SECONDS: Final = 0.5
HANDLE_SECONDS: Final = 0.002
"""The work on a record, so that a kill falls into it now and then."""
COMMIT_RECORDS: Final = 20
"""A commit is due after so many records, or after ``COMMIT_SECONDS``."""
COMMIT_SECONDS: Final = 0.2


class Teller:
    """A member's word: what it was assigned, did, and committed."""

    def __init__(self) -> None:
        self.server, self.topic, self.group, self.who = sys.argv[1:]
        self.uncommitted: dict[int, int] = {}
        """By partition, the offset behind the last record that was handled."""
        self._member: str = ""
        self._generation: int | None = None
        self._partitions: set[int] = set()
        self._committed_at = 0.0

    def assigned(self, member: str, generation: int | None, partitions: Sequence[int]) -> None:
        """From now on it reads these partitions alone. Without a generation: its client does not tell."""
        known = generation is not None and generation >= 0
        self._member, self._generation = member, generation if known else None
        self._partitions = set(partitions)
        self.uncommitted.clear()
        self._tell(
            "assigned", at=time.monotonic(), member=member, generation=self._generation, partitions=sorted(partitions)
        )

    def revoked(self, *_: object) -> None:
        """From now on it reads nothing. What was not committed is handled again."""
        self._partitions.clear()
        self.uncommitted.clear()

    def handled(self, partition: int, offset: int) -> None:
        """Do the work, which ends with saying so."""
        if partition not in self._partitions:
            raise AssertionError(f"a record of partition {partition}, which is not assigned")
        time.sleep(HANDLE_SECONDS)
        self._tell("handled", partition=partition, offset=offset)
        self.uncommitted[partition] = offset + 1

    def is_commit_due(self, handled: int) -> bool:
        """Whether to commit now, ``handled`` records after the last commit."""
        return handled >= COMMIT_RECORDS or time.monotonic() - self._committed_at >= COMMIT_SECONDS

    @contextmanager
    def committing(self, errors: type[Exception]) -> Iterator[Mapping[int, int]]:
        """What to commit; the body does, and raises one of ``errors`` where it could not, which is not told."""
        offsets = dict(self.uncommitted)
        whose: dict[str, Any] = {"member": self._member, "generation": self._generation}
        begun = time.monotonic()
        with suppress(errors):
            yield offsets
            ended = time.monotonic()
            if offsets:
                self._tell("committed", begun=begun, ended=ended, offsets=offsets, **whose)
            for partition, offset in offsets.items():
                if self.uncommitted.get(partition) == offset:
                    del self.uncommitted[partition]
        self._committed_at = time.monotonic()

    def _tell(self, told: str, **facts: Any) -> None:
        print(json.dumps({"told": told, "group": self.group, "who": self.who, **facts}), flush=True)
