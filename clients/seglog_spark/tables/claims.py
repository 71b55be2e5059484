"""The claim of a store that knows no locks: a file in it, ``_claim``, which its owner writes again and again.

Nothing is asked of the store but that a file is read as it was written last. Where it refuses writes whose condition
does not hold, ``buckets`` makes use of that as well. No clock of another machine counts: a claim is dead when it has
not changed while it was watched for DEAD_SECONDS, several times as long as its owner takes to renew it. Who has written
a claim waits SETTLE_SECONDS and reads it back, so that of several that found none the last one has it. A claim can be
lost, by an owner that stood still, so it is looked at before each commit.
"""

import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from seglog.cli.exits import InputError
from seglog_spark.tables.stores import Store, is_taken, owner

CLAIM: Final = "_claim"
RENEW_SECONDS: Final = 5.0
DEAD_SECONDS: Final = 4 * RENEW_SECONDS
SETTLE_SECONDS: Final = 2.0
"""Longer than it takes from reading that there is no claim to having written one."""


class Claim:
    """A claim of a store, to be taken, renewed every RENEW_SECONDS, checked and released."""

    def __init__(self, store: Store, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._sleep = sleep
        self._mine = owner() | {"id": uuid.uuid4().hex, "renewed": 0}

    def take(self) -> None:
        """Take it. InputError when another run has it, or takes it at the same time."""
        found = self._read()
        watched = 0.0
        while found is not None and watched < DEAD_SECONDS:
            self._sleep(RENEW_SECONDS)
            watched += RENEW_SECONDS
            now = self._read()
            if now is not None and now != found:
                raise is_taken(self._store.place, now)
            found = now
        try:
            self._write()
        except InputError:  # the store has seen that another run has come first: say which
            self.check()
            raise
        self._sleep(SETTLE_SECONDS)
        self.check()

    def check(self) -> None:
        """InputError when it is not this run's any more."""
        found = self._read()
        if found is None or found["id"] != self._mine["id"]:
            raise is_taken(self._store.place, found or {})

    def renew(self) -> None:
        """Show that the owner lives. Raises as ``check``."""
        self.check()
        self._mine["renewed"] += 1
        self._write()

    def release(self) -> None:
        """Leave the store to others, if it is this run's still."""
        found = self._read()
        if found is not None and found["id"] == self._mine["id"]:
            self._store.remove(CLAIM)

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._store.read(CLAIM))
        except FileNotFoundError:
            return None
        except ValueError:
            found = {}
        if "id" not in found:
            raise InputError(f"{self._store.place}/{CLAIM} is no claim of seglog: remove it if nobody writes there")
        return dict(found)

    def _write(self) -> None:
        self._store.write(CLAIM, json.dumps(self._mine).encode())
