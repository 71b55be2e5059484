"""What a reader waits for, said in the client's log: an error that is retried would else keep it silent.

Of a connection that is lost ``dialing.Outage`` tells. Here are the answers of a broker that asks to try again, such as
that of a partition in recovery, which may take minutes, and is waited for without a limit.
"""

import logging
from typing import Final

from seglog.dialing import LOG_AGAIN_SECONDS
from seglog.formatting import count_of, seconds_of
from seglog_protocol.errors import ConnectionLostError, NotReachableError, SeglogError

LOG_AFTER_SECONDS: Final = 3.0
"""Shorter waits are not logged."""

_TRY_AGAIN: Final = ": try again"
"""The end of such an error's message, which is advice for programs that have to retry by themselves."""

_log = logging.getLogger(__name__)


class Waiting:
    """The log messages of one reader; times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._since = 0.0
        self._logged_at: float | None = None

    def failed(self, error: SeglogError, since: float, now: float, more: int = 0) -> None:
        """Note that an attempt has failed, as all have ``since`` then, and likewise in ``more`` partitions."""
        if self._logged_at is None:
            is_due = now >= since + LOG_AFTER_SECONDS
        else:
            is_due = now >= self._logged_at + LOG_AGAIN_SECONDS
        if not is_due or isinstance(error, ConnectionLostError | NotReachableError):
            return
        self._since, self._logged_at = since, now
        others = f"; {count_of(more, 'other partition')} cannot be read either" if more else ""
        _log.warning("waiting for %s: %s%s", seconds_of(now - since), error.message.removesuffix(_TRY_AGAIN), others)

    def ended(self, now: float) -> None:
        """Note that nothing is waited for."""
        if self._logged_at is not None:
            _log.warning("the wait is over after %s", seconds_of(now - self._since))
            self._logged_at = None
