"""``seglog support-bundle FILE.tar.gz``: what others need to help, in one file, and no secret and no record in it."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import click

import seglog
from seglog.cli.arguments import Options
from seglog.cli.commands import FILE, Command, Option
from seglog.cli.common import open_client, print_json, warn
from seglog.cli.exits import OK, UsageError, exit_code_of
from seglog.cli.terminal import print_line
from seglog.core.errors import count_of
from seglog_protocol.errors import SeglogError

if TYPE_CHECKING:
    from pathlib import Path

    from seglog.cli.bundle.archive import Archive
    from seglog.cli.checkups.told import Told
    from seglog.client import Client

ResultT = TypeVar("ResultT")

GROUPS_MAX: Final = 1_000
_SENT_WITH: Final = (
    "keys, values and headers of records are not. Look into it before you send it to somebody: tar xzf FILE"
)
_HOSTS: Final = "Hosts and paths may be named in it"
_NAMING: Final = frozenset({"topics.json", "groups.json", "metrics.json", "data/listing.txt", "log.txt"})
"""Files that name topics and groups."""


def run(options: Options) -> int:
    """Write the file; the exit code tells whether a broker answered."""
    from seglog.cli.bundle.archive import Archive, ArchiveError

    folder = f"seglog-support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    ours = [options.security.get("password")]  # this program logs in with it, so it is found wherever it was written
    if (path := options.security.get("password_file")) is not None:
        from seglog.secret_files import secret_in

        ours.append(secret_in(path))
    try:
        archive = Archive(options.file, folder, [secret.reveal() for secret in ours if secret is not None])
    except FileExistsError:
        raise UsageError(f"{options.file} exists already; name another file, or remove it") from None
    try:
        with archive:
            bundle = _Bundle(archive, options)
            code = bundle.collect()
    except ArchiveError as error:
        why = f"{error.cause.strerror}; nothing is left of it, name a file where there is room"
        raise OSError(error.cause.errno, why, options.file) from error
    if options.json:
        print_json({"file": options.file, "files": archive.names, "missing": bundle.missing, "ok": code == OK})
    else:
        incomplete = "" if code == OK else ", incomplete"
        print_line(f"{options.file}: {count_of(len(archive.names), 'file')}{incomplete}")
        for what in bundle.missing:
            warn(f"note: not in it: {what}")
        named = "Topics and groups are named in it, hosts and paths too" if _NAMING & set(archive.names) else _HOSTS
        print_line(f"{named}; {_SENT_WITH.replace('FILE', options.file)}")
    return code


class _Bundle:
    """Collects; what cannot be had is named in ``missing``, and keeps nothing else out."""

    def __init__(self, archive: "Archive", options: Options) -> None:
        self.missing: list[str] = []
        self._archive = archive
        self._options = options

    def collect(self) -> int:
        code, process, directory = OK, 0, self._options.data or ""
        try:
            with open_client(self._options) as client:
                told = self._ask(client)
                if told is not None:
                    process, directory = self._local(told, directory)
        except SeglogError as error:
            code = exit_code_of(error)
            self._archive.add("broker.txt", f"{error.message}\n")
            self.missing.append(f"what the broker tells: {error.message}")
        if directory:
            from pathlib import Path

            self._data_files(Path(directory))
        self._log(process)
        import platform

        versions = {"seglog": seglog.__version__, "python": sys.version, "platform": platform.platform()}
        self._archive.add_json("client.json", versions | {"time_ms": time.time_ns() // 1_000_000})
        about = ["What is in this archive, made by `seglog support-bundle`:", "", *self._archive.names, ""]
        about += ["Not in it:", "", *(self.missing or ["nothing that was looked for"]), ""]
        self._archive.add("README.txt", "\n".join(about))
        return code

    # --- The broker

    def _ask(self, client: "Client") -> "Told | None":
        from seglog.cli.checkups.told import ask
        from seglog.cli.metrics import as_json

        told = self._part("what the broker tells of itself", lambda: ask(client))
        if told is not None:
            self._archive.add_json("hello.json", told.hello.to_wire())
            if told.described is not None:
                self._archive.add_json("broker.json", told.described.to_wire())
            self._part("doctor's lines", lambda: self._doctor(told))
        add = self._archive.add_json
        self._part("metrics", lambda: add("metrics.json", [as_json(family) for family in client.samples()]))
        self._part("topics", lambda: add("topics.json", [topic.to_wire() for topic in client.topics()]))
        self._part("groups", lambda: self._groups(client))
        return told

    def _doctor(self, told: "Told") -> None:
        from seglog.cli.doctor import examine, lines_of, summary

        checks = list(examine(told, self._options))
        lines = [line for check in checks for line in lines_of(check, None)]
        self._archive.add("doctor.txt", "\n".join([*lines, summary(checks), ""]))
        self._archive.add_json("doctor.json", [check._asdict() for check in checks])

    def _groups(self, client: "Client") -> None:
        groups = client.groups()
        self._archive.add_json("groups.json", [group.to_wire() for group in groups[:GROUPS_MAX]])
        if len(groups) > GROUPS_MAX:
            self.missing.append(f"{len(groups) - GROUPS_MAX:,} more groups")

    def _local(self, told: "Told", directory: str) -> tuple[int, str]:
        """The broker's process and its log directory, where both are on this machine; else 0 and ``directory``."""
        from seglog.cli.checkups.machine import why_elsewhere

        why = why_elsewhere(told.hello)
        if why is not None:
            if not directory:
                self.missing.append(f"small files of the log directory: {why}")
            return 0, directory
        return told.described.process if told.described is not None else 0, directory or told.hello.log_dir

    # --- Its machine

    def _data_files(self, directory: "Path") -> None:
        from seglog.cli.bundle.data_files import listing, small_files

        if not directory.is_dir():
            self.missing.append(f"small files of the log directory: {directory} is no directory")
            return
        self._part(
            "small files of the log directory", lambda: self._archive.add("data/listing.txt", listing(directory))
        )
        for name, content in small_files(directory):
            self._archive.add(f"data/{name}", content)

    def _log(self, process: int) -> None:
        from seglog.cli.bundle.log_tail import LogTail, tail_of, tail_of_process

        if self._options.log is not None:
            tail = tail_of(self._options.log)
        elif process:
            tail = tail_of_process(process)
        else:
            tail = LogTail(why_not="it is not known from here where the broker logs: name its log with --log FILE")
        if tail.why_not:
            self.missing.append(f"the log: {tail.why_not}")
        else:
            self._archive.add("log.txt", tail.text)

    def _part(self, what: str, collect: Callable[[], ResultT]) -> ResultT | None:
        """What ``collect`` returns; None where it failed, which is noted."""
        try:
            return collect()
        except (SeglogError, OSError) as error:
            self.missing.append(f"{what}: {error}")
            return None


COMMAND: Final = Command(
    "support-bundle",
    runs=run,
    help="Configuration without secrets, metrics, doctor's lines, topics and groups, versions; where the broker runs "
    "on this machine also the end of its log, and checkpoints, registry and markers of its log directory. Never "
    "records, never accounts. Where no broker answers it has what there is, and exits with 3.",
    params=[
        click.Argument(["file"], type=FILE, metavar="FILE", help="Where to write it, as bundle.tar.gz; not there yet."),
        Option(["--log"], type=FILE, help="The broker's log, if its standard error goes elsewhere."),
        Option(
            ["--data"],
            type=click.Path(file_okay=False),
            metavar="DIR",
            help="The log directory, where the broker cannot say where it is.",
        ),
    ],
    example="seglog support-bundle bundle.tar.gz",
)
