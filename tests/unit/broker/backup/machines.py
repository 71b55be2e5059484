"""A first machine that publishes what it has, its place, and the directory of a standby: on any file system."""

from dataclasses import replace

from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.lease import Lease, Terms, run
from seglog_broker.backup.points import PointStore, PointWriter
from seglog_broker.backup.promoting import Standby
from seglog_broker.config import BrokerConfig
from seglog_broker.storage.directory.identity import decode_properties
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import ManualClock, append_one, batch, opened_directory
from tests.unit.broker.backup.cuts import publish_cut
from tests.unit.broker.storage.steps import create_topic

LEASE_MS = 10_000


class Machines:
    """Both machines, below ``root``; with a ``boottime`` those that are there already."""

    def __init__(self, fs: FileSystem, root: str = "", boottime: int | None = None) -> None:
        self.fs = fs
        self.first, self.path, self.place = f"{root}/data", f"{root}/standby", f"{root}/place"
        self.config = replace(
            BrokerConfig(), log_dir=self.path, seglog_backup_to=self.place, seglog_backup_lease_ms=LEASE_MS
        )
        self.boottime = 5 if boottime is None else boottime
        self.told: list[str] = []
        self.records = 0
        if boottime is not None:
            return
        self.fs.make_directory(self.path)
        directory = opened_directory(self.fs, self.first)
        create_topic(directory, "t", 1, {})
        directory.close()
        identity = self.identity_of(self.first)
        self.writer = PointWriter(self.destination, identity["cluster.id"], identity["directory.id"])
        self.publish(3)

    @property
    def destination(self) -> DirectoryDestination:
        return DirectoryDestination(self.fs, self.place)

    @property
    def store(self) -> PointStore:
        return PointStore(self.destination)

    def identity_of(self, path: str) -> dict[str, str]:
        return decode_properties(read_file(self.fs, f"{path}/{filenames.META_PROPERTIES_FILE}"))

    def publish(self, records: int) -> str:
        """Append records on the first machine, and publish the state; its id."""
        directory = opened_directory(self.fs, self.first)
        for _ in range(records):
            append_one(directory.logs["t", 0], batch(b"value", timestamp=1000))
        self.records += records
        if isinstance(self.fs, ForgetfulFileSystem):
            self.fs.now_ms += 1_000  # of files that change
        moment = publish_cut(self.fs, directory, self.writer, ManualClock().now_ms())
        directory.close()
        return moment

    def lease(self, holder: str = "first", *, directory_id: str = "d", epoch: int = 0) -> Lease:
        return Lease(Terms(holder, directory_id, epoch, "one.example", LEASE_MS), lambda: self.boottime)

    def hold_lease(self) -> Lease:
        """Have the first machine hold the lease."""
        lease = self.lease()
        run(lease.acquire(), self.destination, lambda _until: None)
        return lease

    def standby(self, config: BrokerConfig | None = None) -> Standby:
        return Standby(self.fs, config or self.config, now=lambda: self.boottime, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.boottime += int(seconds * 1e9)

    def promoted(self, standby: Standby | None = None, *, without_lease: bool = False) -> None:
        (standby or self.standby()).promote(self.told.append, without_lease=without_lease)

    def records_served(self) -> int:
        """How many records a broker has that starts in the standby's directory."""
        directory = opened_directory(self.fs, self.path)
        try:
            return directory.logs["t", 0].log_end_offset
        finally:
            directory.close()
