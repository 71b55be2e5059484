"""``seglogd``: the daemon's command line and exit codes.

Without a command it serves; with ``--standby`` it follows another machine's backup until it is promoted. ``seglogd
check``, ``dump``, ``export-kafka``, ``init`` and ``user`` work offline on files, ``seglogd certificates`` makes those
of a trial; they have exit codes of their own.

Exit codes: 0 clean stop, also for a signal before serving has begun; 1 could not start, or failed; 2 usage or
configuration; 3 stopped, but the next start has to recover. 130 and 143 are a second SIGINT or SIGTERM, which ends the
process at once. Signals are explained in ``signals``.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from importlib import import_module
from typing import IO, TYPE_CHECKING, Final, cast

from seglog_broker.runtime.signals import Signals
from seglog_broker.standard_output import as_error_line, complain, print_and_end, refuse

if TYPE_CHECKING:
    from seglog_broker.config import BrokerConfig, ConfigSources
    from seglog_broker.config.sources import Examined
    from seglog_broker.runtime.service_manager import ServiceManager

GARBAGE_THRESHOLDS: Final = (2_000, 5, 5)
"""Thresholds of Python's cyclic garbage collector. Serving makes hardly any cycles, and the default, a collection every
700 objects, took a tenth of the time of a busy loop. What two collections have left is not looked at again
(``_freeze_survivors``), so each looks at some 10,000 objects, a few milliseconds."""

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_CLEAN: Final = 3
EXIT_INTERRUPTED: Final = 130  # of an offline command interrupted while its module is imported

COMMANDS: Final = {
    "backup": "seglog_broker.backup.commands:main_backup",
    "backup-key": "seglog_broker.backup.commands:main_backup_key",
    "certificates": "seglog_broker.security.trial_certificates:main",
    "check": "seglog_broker.inspect.commands:main_check",
    "dump": "seglog_broker.inspect.commands:main_dump",
    "export-kafka": "seglog_broker.kafka_export.command:main",
    "init": "seglog_broker.accounts.commands:main_init",
    "restore": "seglog_broker.backup.commands:main_restore",
    "user": "seglog_broker.accounts.commands:main_user",
    "verify": "seglog_broker.backup.commands:main_verify",
}
"""The functions of the offline commands, ``(arguments) -> exit code``; a module is imported when it is called."""

PLATFORMS: Final = ("linux", "darwin")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal comes, or run an offline command. Returns the exit code."""
    if sys.platform not in PLATFORMS:
        return refuse(
            "seglogd", f"seglog does not run on {sys.platform}: use Linux, or macOS for development.", EXIT_FAILED
        )
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        module, _, function = COMMANDS[arguments[0]].partition(":")
        try:
            code: int = getattr(import_module(module), function)(arguments[1:])
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        return code
    with Signals() as signals:
        return _daemon(arguments, signals)


def _daemon(arguments: Sequence[str], signals: Signals) -> int:
    """Serve, or print the version or the configuration where the options ask for it. Returns the exit code."""
    options = _parse(arguments)
    if options.version:
        from seglog_protocol.version import VERSION  # noqa: PLC0415 - lazy, as all below: `--help` loads none of it

        return print_and_end("seglogd", [f"seglogd {VERSION}"], EXIT_OK)

    from seglog_broker.config import ConfigSources  # noqa: PLC0415
    from seglog_broker.runtime.descriptors import raise_limit  # noqa: PLC0415

    file_name = options.config or os.environ.get("SEGLOG_CONFIG") or ""
    sources = ConfigSources(file_name, dict(os.environ), options.set, _named_flags(options))
    if options.check_config:
        return _check_config(sources)
    from seglog_protocol.extras import missing  # noqa: PLC0415

    if (error := missing("The broker", "broker")) is not None:
        return refuse("seglogd", str(error), EXIT_USAGE)
    config, warnings, mistakes = sources.examine()
    read_again = file_name, config.ssl_keystore_location, config.listener_settings, config.seglog_http_token_file
    signals.note_configuration(has_file=any(read_again))
    if mistakes:
        others = len(mistakes) - 1
        more = f" ({others} more mistake{'' if others == 1 else 's'}, see --check-config)" if others else ""
        return refuse("seglogd", mistakes[0].message + more, EXIT_USAGE)
    if options.standby and not config.seglog_backup_to:
        return refuse("seglogd", "--standby wants the place that it follows: name it by --from PLACE", EXIT_USAGE)
    return _run(config, [*warnings, *raise_limit(config)], sources, signals, options)


def _check_config(sources: "ConfigSources") -> int:
    """Print the configuration, and on standard error its mistakes and warnings."""
    from seglog_broker.config import report  # noqa: PLC0415
    from seglog_broker.runtime.descriptors import raise_limit  # noqa: PLC0415
    from seglog_protocol.errors import InvalidConfigError  # noqa: PLC0415

    examined = _with_settings_of_run_time(sources.examine())
    lines = report.configuration_lines(examined)
    if not examined.mistakes:
        lines += ["", *report.access_lines(examined.config)]
        upgrade, examined = _upgrade(examined)
        lines += ["", *upgrade] if upgrade else []
    code = print_and_end("seglogd", lines, EXIT_OK)
    warnings: list[str] = []
    if not examined.mistakes:
        examined = _with_secrets(examined)
    if not examined.mistakes:
        unusable = report.why_unusable(examined.config)
        if unusable is not None:
            examined = examined._replace(mistakes=[InvalidConfigError(unusable, key="log.dir")])
        examined = _with_access_warnings(examined)
        warnings = [*report.machine_warnings(examined.config), *raise_limit(examined.config)]
    for line in report.verdict_lines(examined, warnings):
        usable = "warning" if line.startswith("warning: ") else "info"
        complain("seglogd", line, "error" if examined.mistakes else usable)
    return EXIT_USAGE if examined.mistakes else code


def _upgrade(examined: "Examined") -> tuple[list[str], "Examined"]:
    """What a start would change in the directory of another version; with a mistake where it would be refused."""
    from seglog_broker.storage.directory.identity import upgrade_lines  # noqa: PLC0415
    from seglog_broker.storage.directory.opening import refuse_foreign  # noqa: PLC0415
    from seglog_broker.storage.io.filesystem import PosixFileSystem  # noqa: PLC0415
    from seglog_protocol.errors import InvalidConfigError, LogDirectoryError  # noqa: PLC0415

    fs, path = PosixFileSystem(), examined.config.log_dir
    try:
        lines = upgrade_lines(fs, path)
        if fs.exists(path):
            refuse_foreign(fs, path, examined.config)
    except LogDirectoryError as error:
        return [], examined._replace(mistakes=[InvalidConfigError(error.message, key="log.dir")])
    except OSError:
        return [], examined  # said below, as this user cannot use the directory
    return lines, examined


def _with_access_warnings(examined: "Examined") -> "Examined":
    """With what is to be said of accounts and of private files; of accounts where this user can read the directory."""
    from pathlib import Path  # noqa: PLC0415

    from seglog_broker.accounts.commands import read_accounts  # noqa: PLC0415
    from seglog_broker.security.access_warnings import access_warnings  # noqa: PLC0415
    from seglog_broker.storage.io.filesystem import PosixFileSystem  # noqa: PLC0415
    from seglog_protocol.errors import InvalidConfigError, LogDirectoryError  # noqa: PLC0415

    names: list[str] | None = []
    directory = examined.config.log_dir
    try:
        if any(True for _ in Path(directory).iterdir()):
            names = read_accounts(PosixFileSystem(), directory).names()
    except FileNotFoundError:
        pass  # a start makes it, without accounts
    except OSError:
        names = None
    except LogDirectoryError as error:
        return examined._replace(mistakes=[InvalidConfigError(error.message, key="log.dir")])
    return examined._replace(warnings=[*examined.warnings, *access_warnings(examined.config, names)])


def _with_secrets(examined: "Examined") -> "Examined":
    """With what is to be said of certificates, where listeners have TLS, of the token of HTTP, and of the backup."""
    from seglog_broker.backup.configured import check_backup  # noqa: PLC0415
    from seglog_broker.config import has_tls  # noqa: PLC0415
    from seglog_broker.security.bearer_token import load_digest  # noqa: PLC0415
    from seglog_protocol.errors import InvalidConfigError  # noqa: PLC0415

    mistakes, warnings = list(examined.mistakes), list(examined.warnings)
    try:
        if has_tls(examined.config):
            from seglog_broker.security.tls import ServerTls, load_all_tls  # noqa: PLC0415 - it takes what only the broker needs

            certificates = ServerTls(load_all_tls(examined.config)).certificates
            now_ms = time.time_ns() // 1_000_000
            warnings += filter(None, [certificate.problem(now_ms) for certificate in certificates])
    except InvalidConfigError as error:
        mistakes.append(error)
    for check in (load_digest, check_backup):
        try:
            check(examined.config)
        except InvalidConfigError as error:
            mistakes.append(error)
    return examined._replace(mistakes=mistakes, warnings=warnings)


def _with_settings_of_run_time(examined: "Examined") -> "Examined":
    """With the settings that the log directory keeps, if there is one; where they cannot be used, with that mistake."""
    from seglog_broker.storage.directory.dynamic_configs import config_at_start  # noqa: PLC0415
    from seglog_broker.storage.io.filesystem import PosixFileSystem  # noqa: PLC0415
    from seglog_protocol.errors import InvalidConfigError, LogDirectoryError  # noqa: PLC0415

    if examined.mistakes:
        return examined
    try:
        _, config = config_at_start(PosixFileSystem(), examined.config.log_dir, examined.config)
        return examined._replace(config=config)
    except (LogDirectoryError, OSError) as error:
        return examined._replace(mistakes=[InvalidConfigError(_sentence(error) or "", key="log.dir")])


_NAMED: Final = {
    "--data": ("log.dir", "DIR", ", where the data is kept"),
    "--listen": ("seglog.listen", "HOST:PORT", ", where clients connect"),
    "--kafka": ("listeners", "HOST:PORT", ", where Kafka's clients connect; with commas between several"),
    "--http": ("seglog.http.listen", "HOST:PORT", ", where health and metrics are"),
    "--log-format": ("seglog.log.format", "FORMAT", ": console or json"),
    "--log-level": ("seglog.log.level", "LEVEL", ": debug, info, warning or error"),
}
"""Flags that set one key: the key, the name of its value, and what --help says of it behind the key."""


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of `seglogd`. Raises SystemExit(2) on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="seglogd",
        description="Serve a seglog broker until a signal stops it. `seglogd dump PATH...` shows the contents of "
        "files, `seglogd check DIRECTORY` searches a log directory for damage, `seglogd init` and `seglogd user` make "
        "and change accounts while no broker runs, `seglogd backup`, `restore`, `verify` and `backup-key` take and "
        "open backups, `seglogd export-kafka DIRECTORY --to DIR` makes a directory that Apache Kafka starts with, "
        "`seglogd certificates --to DIR` makes certificates for a trial of TLS.",
        epilog="Keys and their defaults are in docs/CONFIG.md. A flag overrides the environment (SEGLOG_...), and the "
        "environment overrides the file. The `seglog` command talks to a running broker.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="configuration: TOML or Kafka's .properties (or SEGLOG_CONFIG)"
    )
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")
    for flag, (key, metavar, what) in _NAMED.items():
        parser.add_argument(flag, metavar=metavar, help=f"{key}{what}")
    parser.add_argument(
        "--check-config", action="store_true", help="print the configuration with its mistakes and warnings, and exit"
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--from",
        dest="place",
        metavar="PLACE",
        help="on an empty directory: begin with what was backed up there, and serve while the rest is fetched",
    )
    parser.add_argument("--until", metavar="TIME", type=_time, help="and with the newest moment not after this one")
    parser.add_argument(
        "--take-over", action="store_true", help="and have PLACE go on with this directory: the other one is lost"
    )
    parser.add_argument(
        "--standby", action="store_true", help="instead follow PLACE, and serve when `seglog promote` asks for it"
    )
    options, unknown = parser.parse_known_args(argv)
    if (options.until or options.take_over) and (options.standby or not options.place):
        parser.error("--until and --take-over say how to begin --from PLACE")
    if unknown:
        from difflib import get_close_matches  # noqa: PLC0415 - for a mistake

        from seglog_broker.config.broker_config import BROKER_KEYS, TOPIC_DEFAULT_NAMES  # noqa: PLC0415

        name = unknown[0].partition("=")[0]
        known = {f"--{key.replace('.', '-')}": f"--set {key}=VALUE" for key in (*BROKER_KEYS, *TOPIC_DEFAULT_NAMES)}
        known |= {option: option for option in (f"--{option.replace('_', '-')}" for option in vars(options))}
        near = [f"did you mean {known[each]}?" for each in get_close_matches(name.replace(".", "-"), known, 1)]
        parser.error("; ".join([f"there is no {name}", *near, "a key is set by --set KEY=VALUE"][:2]))
    return options


def _time(text: str) -> int:
    from seglog_broker.config.command_options import time_of_option  # noqa: PLC0415

    return time_of_option(text)


def _named_flags(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """The given flags that set one key: flag -> (key, value)."""
    given = {flag: getattr(options, flag.removeprefix("--").replace("-", "_")) for flag in _NAMED}
    if given["--kafka"] is not None:
        given["--kafka"] = _as_listeners(given["--kafka"])
    flags = {flag: (_NAMED[flag][0], value) for flag, value in given.items() if value is not None}
    if options.standby and options.place:  # once it serves it backs up there
        flags["--from"] = "seglog.backup.to", options.place
    return flags


def _as_listeners(addresses: str) -> str:
    """``HOST:PORT`` as ``listeners`` has it: with a protocol in front, where it has none."""
    parts = [part.strip() for part in addresses.split(",")] if addresses.strip() else []
    return ",".join(part if "://" in part else f"PLAINTEXT://{part}" for part in parts)


# --- Serving ----------------------------------------------------------------------------------------------------------


def _run(
    config: "BrokerConfig",
    warnings: Sequence[str],
    sources: "ConfigSources",
    signals: Signals,
    options: argparse.Namespace,
) -> int:
    """Serve with a checked configuration; by the ``options`` begin from a backup, or stand by first."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.callbacks.append(_freeze_survivors)
    from seglog_broker.runtime.interpreter import import_later  # noqa: PLC0415

    import_later()  # before structlog and trio are imported
    import structlog  # noqa: PLC0415
    import trio  # noqa: PLC0415

    from seglog_broker.runtime import logs  # noqa: PLC0415
    from seglog_broker.runtime.service_manager import ServiceManager  # noqa: PLC0415

    standard_error = logs.to_standard_error(config.seglog_log_format, config.seglog_log_level)
    manager = ServiceManager.from_environment(os.environ)
    log = structlog.get_logger()
    for warning in warnings:
        log.warning("config_warning", reason=warning)
    problems: list[str] = []
    try:
        with redirect_stderr(cast("IO[str]", standard_error)):  # so that Python's own messages never block, either
            trio.run(_serve, config, sources, signals, manager, problems, options)
    except Exception as error:  # the outermost boundary: one sentence, or a traceback for a bug
        sentence = _sentence(error)
        if sentence is None:
            log.critical("broker_crashed", exc_info=error)
        elif logs.is_json():
            log.critical("broker_failed", reason=sentence)
        else:
            standard_error.write(as_error_line(f"seglogd: {sentence}", "critical"))
        return EXIT_USAGE if _is_of_configuration(error) else EXIT_FAILED
    finally:
        manager.close()
        standard_error.drain()
    return EXIT_NOT_CLEAN if problems else EXIT_OK


async def _serve(
    config: "BrokerConfig",
    sources: "ConfigSources",
    signals: Signals,
    manager: "ServiceManager",
    problems: list[str],
    options: argparse.Namespace,
) -> None:
    import trio  # noqa: PLC0415

    from seglog_broker.reloading import ReloadRequests  # noqa: PLC0415
    from seglog_broker.runtime.offload import Offload  # noqa: PLC0415
    from seglog_broker.server import serve  # noqa: PLC0415
    from seglog_broker.storage.io.clock import SystemClock  # noqa: PLC0415
    from seglog_broker.storage.io.filesystem import PosixFileSystem  # noqa: PLC0415

    reloads = ReloadRequests(sources)
    fs = PosixFileSystem()

    async def serve_now(ready: Callable[[], object] = lambda: None) -> None:
        await serve(
            config,
            fs=fs,
            clock=SystemClock(),
            offload=Offload(),
            manager=manager,
            reloads=reloads,
            problems=problems,
            stop_wanted=lambda: signals.stop_wanted,
            task_status=_FreezeGarbage(ready),
        )

    with trio.CancelScope() as scope:
        signals.attach(scope.cancel, reloads.ask)  # before loading starts
        if options.standby:
            from seglog_broker.standby.stage import stand_by  # noqa: PLC0415

            await stand_by(config, fs, manager, serve_now)
        else:
            if options.place:
                from seglog_broker.tasks.awaiting import Beginning, begin_from_backup  # noqa: PLC0415

                beginning = Beginning(options.place, options.until, takes_over=options.take_over)
                await begin_from_backup(config, fs, Offload(), beginning)
            await serve_now()


class _FreezeGarbage:
    """A ``task_status`` for ``serve`` that acts when the broker is ready."""

    def __init__(self, ready: Callable[[], object]) -> None:
        """``ready`` is called then, too."""
        self._ready = ready

    def started(self, _serving: object = None) -> None:
        """Exempt the objects that exist now, some 100,000 that stay, from garbage collection.

        A full collection would otherwise hold up the loop for 20 ms, and for longer with many topics.
        """
        gc.freeze()
        self._ready()


def _freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    """Exempt objects that have survived two collections from further ones.

    Else the request that sets one off waits longer, the more topics, groups and elements of requests there are: 60 ms
    were seen. What is freed when its last reference goes, as nearly everything is here, connections too, is freed as
    before; only cycles that lived so long are not found any more.
    """
    if phase == "stop" and info["generation"] > 0:
        gc.freeze()


def _is_of_configuration(error: BaseException) -> bool:
    """Whether the start failed for a configuration that cannot be used, such as a certificate: a restart is no help."""
    from seglog_protocol.errors import InvalidConfigError  # noqa: PLC0415

    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_configuration(inner) for inner in error.exceptions)
    return isinstance(error, InvalidConfigError)


def _sentence(error: BaseException) -> str | None:
    """The message for the operator; None when the error is a bug."""
    from seglog_protocol.errors import SeglogError  # noqa: PLC0415

    if isinstance(error, BaseExceptionGroup):
        sentences = [_sentence(inner) for inner in error.exceptions]
        return None if None in sentences else sentences[0]
    if isinstance(error, SeglogError):
        return error.message
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename}." if error.filename else f"{error}."
    return None


if __name__ == "__main__":
    sys.exit(main())
