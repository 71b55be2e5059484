"""When the next round of a continuous backup begins, and what the broker is told when one fails.

Rounds begin half of the lag that is asked for after each other, or at once where one took longer. Where the place, or
the log directory, cannot be used they are tried again after pauses that grow; a failure that stays is told once.
"""

from collections.abc import Callable
from typing import Final

from seglog_broker.backup.agent_messages import Published, Trouble
from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.following import Follower
from seglog_broker.backup.points import LostFilesError
from seglog_broker.backup.store import BackupError, OtherOwnerError
from seglog_broker.storage.io.os_errors import why

ROUND_SECONDS_MIN: Final = 0.5
"""From one cut to the next."""

PAUSE_SECONDS_MAX: Final = 30.0
"""After a round that failed."""

ROUNDS_IN_VAIN_MAX: Final = 5
"""Rounds in a row in which files were replaced or gone, before that is told: more than compaction and expiry cause."""


class KeepingUp:
    """One round after the other; ``open_follower`` claims the place and reads what it has.

    ``monotonic`` returns seconds. The caller waits between two calls of ``step``.
    """

    def __init__(
        self,
        open_follower: Callable[[], Follower],
        tell: Callable[[Published | Trouble], None],
        monotonic: Callable[[], float],
        lag_ms: int,
    ) -> None:
        self._open_follower = open_follower
        self._tell = tell
        self._monotonic = monotonic
        self._round_seconds = max(ROUND_SECONDS_MIN, lag_ms / 2000)
        self._follower: Follower | None = None
        self.failed = 0
        """Rounds in a row that published nothing."""
        self._told: str | None = ""  # a process before this one may have told something

    def step(self) -> float | None:
        """Do a round; returns the seconds to wait before the next one, None if none can ever succeed."""
        began = self._monotonic()
        try:
            is_published = self._round()
        except OtherOwnerError as error:
            self._tell(Trouble(str(error), is_final=True))
            return None
        except LostFilesError as error:
            self._follower = None
            return self._pause(str(error))
        except (BackupError, DestinationError) as error:
            return self._pause(str(error).replace(", and run the same command again", ""))
        except OSError as error:
            return self._pause(f"the log directory cannot be read: {why(error)}")
        if is_published:
            self.failed = 0
            return max(0.0, began + self._round_seconds - self._monotonic())
        self.failed += 1
        if self._follower is not None and self.failed > ROUNDS_IN_VAIN_MAX:
            return self._pause(f"{self._follower.lacking} is not there yet, or is replaced again and again")
        return max(0.0, began + ROUND_SECONDS_MIN - self._monotonic())

    def _round(self) -> bool:
        if self._follower is None:
            self._follower = self._open_follower()
        published = self._follower.run_round()
        if published is None:
            return False
        self._tell(published)
        self._follower.tidy()
        self._tell_trouble(self._follower.untidy)
        return True

    def _pause(self, reason: str) -> float:
        self._tell_trouble(reason)
        self.failed += 1
        return min(PAUSE_SECONDS_MAX, ROUND_SECONDS_MIN * (1 << min(self.failed, 10)))

    def _tell_trouble(self, reason: str | None) -> None:
        if reason != self._told:
            self._told = reason
            self._tell(Trouble(reason))
