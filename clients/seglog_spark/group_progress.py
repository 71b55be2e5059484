"""Progress committed to a consumer group: for people and their monitors, never read by a query or a job."""

import time
from collections.abc import Callable
from typing import Final

from seglog.client import Client
from seglog.groups import commit_offsets
from seglog_protocol.errors import SeglogError
from seglog_spark.offsets import Offsets

AGAIN_SECONDS: Final = 3600.0
"""Seconds after which the same offsets are committed again: the group has no members, and its offsets would expire."""


class GroupProgress:
    """Commits to ``group`` as one who is no member; a group that has members refuses it. ``clock`` is in seconds."""

    def __init__(self, client: Client, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._group = group
        self._clock = clock
        self._committed: tuple[float, Offsets] | None = None
        self._reported: str | None = None

    def commit(self, offsets: Offsets) -> str | None:
        """Commit the offsets that are read next, unless they just were.

        Returns None, or the sentence why that failed, once: the next commit has all that this one had.
        """
        now = self._clock()
        if self._committed is not None and self._committed[1] == offsets and now < self._committed[0] + AGAIN_SECONDS:
            return None
        try:
            self._client.converse(commit_offsets(self._group, offsets))
        except SeglogError as error:
            sentence = f"progress is not committed to group {self._group}: {error.message}"
            reported, self._reported = self._reported, sentence
            return None if sentence == reported else sentence
        self._committed, self._reported = (now, offsets), None
        return None
