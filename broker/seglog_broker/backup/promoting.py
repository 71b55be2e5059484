"""A standby: follows a place, and takes it over when it is promoted. Synchronous: it has a thread of its own.

A promotion that has begun is in ``seglog-promote.json`` (sealed JSON: version, the new directory id, the epoch that the
place had, without_lease), so that a start goes on with it. The place says how far it came: once it is the new
directory's, what is applied is final, and what the first machine may still add counts for nothing.

1. The lease is taken over, and its end waited for by the own clock: nobody else acknowledges from here on.
2. The newest point is applied, and durable.
3. The place becomes that of the new directory, in one step (``PointStore.take_over``).
4. The directory is finished, and a broker can start.
"""

import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

import msgspec

from seglog_broker.backup.destination import Destination
from seglog_broker.backup.lease import LEASES, Lease, LeaseLostError, Steps, Terms, run
from seglog_broker.backup.opening import open_destination
from seglog_broker.backup.points import PointStore, State
from seglog_broker.backup.restoring import finish
from seglog_broker.backup.standby_directory import PLAN_FILE, StandbyDirectory
from seglog_broker.backup.store import VERSION_OF_POINTS, BackupError, Marker, ms_of
from seglog_broker.config import BrokerConfig
from seglog_broker.storage.directory.identity import decode_properties, is_followed
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import Throttle, boottime_ns
from seglog_broker.storage.io.copying import remove_if_there
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import seal, unseal_version
from seglog_protocol.errors import LogDirectoryError

_VERSION: Final = 1
_PAUSE_SECONDS: Final = 0.2

Tell = Callable[[str], None]


class NotPromotedError(BackupError):
    """The standby cannot be promoted, and follows on; the message says why, and what to do."""


class StoppedError(Exception):
    """The process stops."""


@dataclass(slots=True)
class Following:
    """How far it is; read by other threads. Moments are ms since 1970, by the clock of the first machine."""

    applied: str = ""
    """The id of the last state that it had whole."""
    newest: str = ""
    """That of the newest state in the place, as of the last look."""
    received: int = 0
    """Bytes written into the directory since the start."""
    trouble: str | None = "it has not read the place yet"
    """A sentence on what holds it up."""

    @property
    def applied_ms(self) -> int:
        """The moment that it has; 0 for none."""
        return ms_of(self.applied) if self.applied else 0

    @property
    def lag_ms(self) -> int | None:
        """How far it is behind the newest state in the place; None where it has no state yet."""
        return max(0, ms_of(self.newest) - self.applied_ms) if self.applied and self.newest else None


class _Plan(msgspec.Struct, frozen=True):
    directory_id: str
    epoch: int
    without_lease: bool
    version: int = _VERSION


class Standby:
    """Follows the place of ``config`` into its log directory, which is made and locked before."""

    def __init__(
        self,
        fs: FileSystem,
        config: BrokerConfig,
        *,
        now: Callable[[], int] = boottime_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``now`` is CLOCK_BOOTTIME in nanoseconds, ``sleep`` waits for so many seconds."""
        self._fs = fs
        self._now = now
        self._sleep = sleep
        self._config = config
        self._place = config.seglog_backup_to
        self._path = config.log_dir
        self._directory: StandbyDirectory | None = None
        self._destination: Destination | None = None
        self._state: State | None = None
        self.status = Following()
        self.is_stopped = False
        """Set it to have whatever runs end with StoppedError."""

    @property
    def is_promoting(self) -> bool:
        """True when a promotion has begun: only ``promote`` is to be called."""
        return self._fs.exists(self._file(PLAN_FILE))

    def serves_already(self) -> bool:
        """True where the directory is the one that the place belongs to, and no standby's any more.

        Raises LogDirectoryError for another one that is no standby's, BackupError, DestinationError, OSError.
        """
        identity = self._file(filenames.META_PROPERTIES_FILE)
        if self._directory is None and not is_followed(self._fs, self._path) and self._fs.exists(identity):
            own = decode_properties(read_file(self._fs, identity)).get("directory.id")
            owner = self._store.marker().directory_id
            if own != owner:
                raise LogDirectoryError(
                    f"{self._path} is a log directory of its own, {own}, and {self._place} is the backup of another "
                    f"one, {owner}: name an empty directory for a standby",
                    path=self._path,
                )
            remove_if_there(self._fs, self._file(PLAN_FILE))  # of a promotion that was killed at its end
            return True
        return False

    def follow(self) -> None:
        """Apply the newest state of the place, if it has another one than the directory.

        Raises BackupError, DestinationError, OSError, StoppedError; it may be called again after any of them.
        """
        directory = self._opened()
        store, state, self._state = self._store, self._state, None  # read anew after an error
        if state is None or not store.marker().counts(state.id):
            state = store.at()
        else:
            for point in store.since(state):
                state.apply(point)
        self.status.newest = state.id
        if directory.applied != state.id:
            directory.apply(state.manifest(), store.destination, self._note)
        self.status.applied = state.id
        self._state = state

    def promote(self, tell: Tell, *, without_lease: bool) -> None:
        """Make the directory the one that serves; ``tell`` gets a sentence for each step.

        May be called again after any error, also by another process. Raises NotPromotedError, and follows on then;
        BackupError, DestinationError, OSError, StoppedError.
        """
        store = self._store
        marker = store.marker()
        plan = self._begun(marker, without_lease=without_lease)
        own = Terms(
            str(uuid.uuid4()),
            plan.directory_id,
            plan.epoch + 1,
            platform.node(),
            self._config.seglog_backup_lease_ms,
        )
        lease = None if plan.without_lease else Lease(own, self._now)
        if lease is not None:
            self._ask(lease, lease.acquire(take_over=True), tell)
            tell("the lease is taken over: the first machine acknowledges no more")
        if marker.directory_id != plan.directory_id:
            self.follow()
            newest = self.status.applied
            tell(f"the newest point is of {moment_text(newest)}; what was acknowledged after it is not here")
            if lease is not None:  # it may have taken long, and somebody may have promoted another standby meanwhile
                self._ask(lease, lease.renew(), tell)
            store.take_over(plan.directory_id, newest)
        tell(f"{self._place} is the backup of this machine now")
        if lease is not None:  # the broker takes it, which then need not wait
            self._ask(lease, lease.release(), tell)
        finish(self._fs, self._path, store.at().manifest(), plan.directory_id)  # which is the one that was applied
        remove_if_there(self._fs, self._file(PLAN_FILE))

    # --- Steps

    def _begun(self, marker: Marker, *, without_lease: bool) -> _Plan:
        """The promotion that was begun, and can go on, or a new one."""
        path = self._file(PLAN_FILE)
        if self.is_promoting:
            content = read_file(self._fs, path)
            plan = msgspec.convert(unseal_version(content, _Plan.__struct_fields__, _VERSION), _Plan)
            if marker.directory_id == plan.directory_id or marker.epoch == plan.epoch:
                return plan
            self._give_up(f"{self._place} was taken over by the log directory {marker.directory_id} meanwhile")
        if marker.version != VERSION_OF_POINTS:
            raise NotPromotedError(
                f"no broker backs up continuously into {self._place}, which has single backups: make a log directory "
                "of one with `seglogd restore`"
            )
        if not self.status.applied:
            self.follow()  # nothing is begun before there is something to serve
        has_lease = any(True for _ in self._store.destination.names(LEASES))
        if not has_lease and not without_lease:
            raise NotPromotedError(
                "the first machine has no lease in the place (seglog.backup.lease.ms), so nothing here knows that it "
                "acknowledges no more: make sure of that yourself, end it for good, and add --without-lease"
            )
        if has_lease and not self._config.seglog_backup_lease_ms:
            raise NotPromotedError(
                "the first machine has a lease in the place, and the configuration here has none: set "
                "seglog.backup.lease.ms as it is there, and start the standby anew"
            )
        plan = _Plan(filenames.new_id(uuid.uuid4()), marker.epoch, not has_lease)
        write_file_atomically(self._fs, path, seal(msgspec.to_builtins(plan)))
        return plan

    def _give_up(self, reason: str) -> NoReturn:
        """Follow on; what a finish may have changed is found out."""
        self._directory = None
        remove_if_there(self._fs, self._file(PLAN_FILE))
        raise NotPromotedError(f"{reason}: this standby follows on")

    def _ask(self, lease: Lease, steps: Steps, tell: Tell) -> None:
        def pause(until_ns: int) -> None:
            tell(f"waiting {max(0, until_ns - self._now()) / 1e9:.1f} s: {lease.problem or lease.waits_for}")
            while self._now() < until_ns:
                self._note(0)
                self._sleep(_PAUSE_SECONDS)

        try:
            run(steps, self._store.destination, pause)
        except LeaseLostError as error:
            self._give_up(str(error))

    # ---

    def _opened(self) -> StandbyDirectory:
        if self._directory is None:
            self._directory = StandbyDirectory(self._fs, self._path)
        return self._directory

    @property
    def _store(self) -> PointStore:
        if self._destination is None:
            key_file = self._config.seglog_backup_key_file
            throttle = Throttle(self._config.seglog_backup_bytes_per_second or None, time.monotonic, time.sleep)
            self._destination = open_destination(self._fs, self._place, key_file=key_file, throttle=throttle)
        return PointStore(self._destination)

    def _note(self, size: int) -> None:
        if self.is_stopped:
            raise StoppedError
        self.status.received += size

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"


def moment_text(state: str) -> str:
    """The moment of a state for people: 2026-11-27 05:15:00.123 UTC."""
    found = ms_of(state)
    return f"{datetime.fromtimestamp(found // 1000, UTC):%Y-%m-%d %H:%M:%S}.{found % 1000:03d} UTC"
