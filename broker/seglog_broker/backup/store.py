"""Backups in a destination: whose they are, which there are, and which are removed.

    seglog-backup.json   version 1, cluster_id, directory_id: written first, and never changed but by --take-over
    backups/<id>.json    a manifest for each backup, written last
    files/<name>         what the manifests name; never changed

What a killed backup left in ``files`` is named by no manifest, and removed by the next one.
"""

from typing import Final, NamedTuple

from seglog_broker.backup.destination import MARKER, Destination, MissingFileError
from seglog_broker.backup.manifest import BackupError, Manifest, decode_manifest
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal

MANIFESTS: Final = "backups/"
FILES: Final = "files/"
_SUFFIX: Final = ".json"
_VERSION: Final = 1


class BackupStore:
    """The backups in one destination."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination

    def claim(self, cluster_id: str, directory_id: str, *, take_over: bool) -> None:
        """Begin to write backups of this log directory. Raises BackupError where others are there."""
        place = self.destination.place
        owner = self._owner()
        if owner is None:
            strange = next(iter(self.destination.names()), None)
            if strange is not None:
                raise BackupError(
                    f"{place} is not empty, and has no backup of seglog ({strange.name} is there): name another place"
                )
        elif owner[0] != cluster_id:
            raise BackupError(
                f"{place} has backups of another broker, of cluster {owner[0]}, where this one has {cluster_id}: name "
                "another place"
            )
        elif owner[1] != directory_id and not take_over:
            raise BackupError(
                f"{place} has backups of another log directory of the same cluster, {owner[1]}, where this one is "
                f"{directory_id}: one of them is a restored copy. If the other one is not used any more continue with "
                "--take-over, else name another place"
            )
        if owner != (cluster_id, directory_id):
            facts = {"version": _VERSION, "cluster_id": cluster_id, "directory_id": directory_id}
            self.destination.put(MARKER, [seal(facts)])
        self.destination.discard_unfinished()

    def ids(self) -> list[str]:
        """Of all backups, the latest first. Raises BackupError where there can be none."""
        if self._owner() is None:
            raise BackupError(f"{self.destination.place} is no backup of seglog: it has no {MARKER}")
        names = (file.name for file in self.destination.names(MANIFESTS))
        return sorted((name[len(MANIFESTS) : -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)), reverse=True)

    def finished_ids(self) -> list[str]:
        """As ``ids``. Raises BackupError, also where there are none."""
        ids = self.ids()
        if not ids:
            raise BackupError(f"{self.destination.place} has no finished backup yet")
        return ids

    def read(self, backup: str) -> Manifest:
        """The manifest of a backup. Raises BackupError."""
        name = f"{MANIFESTS}{backup}{_SUFFIX}"
        try:
            return decode_manifest(b"".join(self.destination.read(name)), f"{self.destination.place}/{name}")
        except (MissingFileError, ValueError) as error:
            raise BackupError(
                f"{self.destination.place} has no backup {backup!r}; --list shows those there are"
            ) from error

    def find(self, backup: str | None) -> Manifest:
        """That backup, or the latest one. Raises BackupError."""
        return self.read(self.finished_ids()[0] if backup is None else backup)

    def write(self, manifest: Manifest) -> None:
        """Add a backup, all files of which are there."""
        self.destination.put(f"{MANIFESTS}{manifest.id}{_SUFFIX}", [manifest.encode()])

    def tidy(self, keep: int | None) -> "Older":
        """Remove files that no backup names, which killed backups leave; and see what one more backup makes too many.

        ``keep`` is how many are to be there then, None for all. Raises BackupError, with no file removed, for a
        manifest that is not understood.
        """
        ids = self.ids()
        kept = len(ids) if keep is None else keep - 1
        latest: Manifest | None = None
        names_kept, names_going = set[str](), set[str]()
        for number, backup in enumerate(ids):
            try:
                manifest = self.read(backup)
            except BackupError as error:
                raise BackupError(
                    f"{error}; nothing is added or removed while it is there: move that file away, and with it the "
                    "backup, or name another place"
                ) from error
            latest = latest or manifest
            (names_kept if number < kept else names_going).update(manifest.names)
        for name in [file.name for file in self.destination.names(FILES)]:
            if name not in names_kept and name not in names_going:
                self.destination.delete(name)
        return Older(latest, ids[kept:], names_going - names_kept)

    def remove(self, older: "Older", newest: Manifest) -> None:
        """Remove the backups that are too many since ``newest`` is there, then the files that they alone name."""
        for backup in reversed(older.going):
            self.destination.delete(f"{MANIFESTS}{backup}{_SUFFIX}")
        for name in sorted(older.names_going.difference(newest.names)):
            self.destination.delete(name)

    def _owner(self) -> tuple[str, str] | None:
        """(cluster id, directory id) of the log directory whose backups these are, None without any."""
        try:
            found = unseal(b"".join(self.destination.read(MARKER)), ())
        except MissingFileError:
            return None
        except MalformedJsonError as error:
            raise BackupError(f"{self.destination.place}/{MARKER} is damaged: {error}") from error
        if found.get("version") != _VERSION:
            raise BackupError(f"{self.destination.place} is of version {found.get('version')!r}: use a newer seglogd")
        return str(found["cluster_id"]), str(found["directory_id"])


class Older(NamedTuple):
    """What is there before a backup: the latest one, the ids of those to be removed after it, and files of them alone.

    The next backup may use such a file all the same.
    """

    latest: Manifest | None
    going: list[str]
    names_going: set[str]
