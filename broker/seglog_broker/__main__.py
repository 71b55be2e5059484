"""``seglogd``: the daemon's command line, signals and exit codes. Nothing else in the broker touches signals.

Without a command it serves; ``seglogd check`` and ``seglogd dump`` work offline on what lies on disk, and have exit
codes of their own.

Exit codes: 0 stopped in good order, 1 could not start or failed, 2 usage or configuration. A signal that comes before
serving has begun has nothing to put in order: 0 as well.
"""

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import trio

    from seglog_broker.config import BrokerConfig

GARBAGE_THRESHOLDS: Final = (10_000, 20, 50)
"""Of Python's collector of cycles: serving makes next to none, and looking for them every 700 objects took a tenth of
the time of a busy loop."""

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # of the offline commands, for one whose module is still being imported

COMMANDS: Final = {"check": "seglog_broker.check.command", "dump": "seglog_broker.dump.command"}
"""Modules of the offline commands; each has ``main(arguments) -> exit code`` and is imported when it is called."""

PLATFORMS: Final = ("linux", "darwin")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal comes, or run an offline command. Returns the exit code."""
    if sys.platform not in PLATFORMS:
        return _refuse(f"seglog does not run on {sys.platform}: use Linux, or macOS for development.", EXIT_FAILED)
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in COMMANDS:
        try:
            code: int = import_module(COMMANDS[arguments[0]]).main(arguments[1:])
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        return code
    with _on_signals(_end_at_once):
        return _serve_as_told(arguments)


def _serve_as_told(arguments: Sequence[str]) -> int:
    """The daemon itself, or what its options ask for in its place."""
    options = _parse(arguments)
    if options.version:
        from seglog_broker.version import VERSION  # noqa: PLC0415 - lazy, as all below: `--help` loads none of it

        print(f"seglogd {VERSION}")  # noqa: T201 - what was asked for
        return EXIT_OK

    from seglog_broker.config import load_config, read_config_file  # noqa: PLC0415
    from seglog_broker.descriptors import raise_limit  # noqa: PLC0415
    from seglog_protocol.errors import InvalidConfigError  # noqa: PLC0415

    file_name = options.config or os.environ.get("SEGLOG_CONFIG") or None
    try:
        text = None if file_name is None else read_config_file(file_name)
        config, warnings = load_config(text, file_name or "", os.environ, options.set, _named(options))
    except InvalidConfigError as error:
        return _refuse(error.message, EXIT_USAGE)
    return _run(config, [*warnings, *raise_limit(config)])


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="seglogd",
        description="Serve a seglog broker until a signal stops it. `seglogd dump PATH...` shows what lies on disk, "
        "`seglogd check DIRECTORY` whether it is sound.",
        epilog="Keys and their defaults are in docs/CONFIG.md. A flag is stronger than the environment (SEGLOG_...), "
        "and that is stronger than the file. The `seglog` command talks to a running broker.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with configuration (or SEGLOG_CONFIG)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set one key; repeatable")
    parser.add_argument("--data", metavar="DIR", help="log.dir, where the data is kept")
    parser.add_argument("--listen", metavar="HOST:PORT", help="seglog.listen, where clients connect")
    parser.add_argument("--log-format", metavar="FORMAT", help="seglog.log.format: console or json")
    parser.add_argument("--log-level", metavar="LEVEL", help="seglog.log.level: debug, info, warning or error")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    return parser.parse_args(argv)


def _named(options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """The flags that stand for one key: flag -> (key, value)."""
    named = {
        "--data": ("log.dir", options.data),
        "--listen": ("seglog.listen", options.listen),
        "--log-format": ("seglog.log.format", options.log_format),
        "--log-level": ("seglog.log.level", options.log_level),
    }
    return {flag: (key, value) for flag, (key, value) in named.items() if value is not None}


def _refuse(sentence: str, code: int) -> int:
    print(f"seglogd: {sentence}", file=sys.stderr)  # noqa: T201 - the one sentence the operator gets
    return code


# --- Serving ----------------------------------------------------------------------------------------------------------


def _run(config: "BrokerConfig", warnings: Sequence[str]) -> int:
    """Serve with a checked configuration."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    with _without_rich():
        import structlog  # noqa: PLC0415
    import trio  # noqa: PLC0415

    from seglog_broker import logs  # noqa: PLC0415

    logs.configure(config.seglog_log_format, config.seglog_log_level)
    log = structlog.get_logger()
    for warning in warnings:
        log.warning("configuration_doubted", reason=warning)
    try:
        trio.run(_serve, config)
    except Exception as error:  # the outermost boundary: one sentence, or a traceback for a bug
        sentence = _sentence(error)
        if sentence is None:
            log.critical("broker_crashed", exc_info=error)
        elif config.seglog_log_format == "json":
            log.critical("broker_failed", reason=sentence)
        else:
            return _refuse(sentence, EXIT_FAILED)
        return EXIT_FAILED
    return EXIT_OK


@contextmanager
def _without_rich() -> Iterator[None]:
    """Hide `rich`, if it is installed, from an import of structlog, which would load it for 40 ms of the start.

    It would serve for coloured tracebacks, which the daemon's log does not have (see ``logs``).
    """
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # how the import system says "there is none"
    try:
        yield
    finally:
        del sys.modules["rich"]


async def _serve(config: "BrokerConfig") -> None:
    import trio  # noqa: PLC0415

    from seglog_broker.offload import Offload  # noqa: PLC0415
    from seglog_broker.server import serve  # noqa: PLC0415
    from seglog_broker.storage.clock import SystemClock  # noqa: PLC0415
    from seglog_broker.storage.filesystem import PosixFileSystem  # noqa: PLC0415

    with trio.CancelScope() as scope, _stopping_on_signals(scope):  # before loading starts
        await serve(config, fs=PosixFileSystem(), clock=SystemClock(), offload=Offload(), task_status=_WhenReady())


class _WhenReady:
    """What ``serve`` tells that it is ready."""

    def started(self, _addresses: object = None) -> None:
        """Take what exists by now, some 100,000 objects that stay, out of every later collection of garbage.

        A full one would otherwise hold up the loop for 20 ms.
        """
        gc.freeze()


@contextmanager
def _stopping_on_signals(scope: "trio.CancelScope") -> Iterator[None]:
    """SIGTERM or SIGINT cancel ``scope``; a second one ends the process there and then.

    Plain handlers rather than trio's ``open_signal_receiver``: that one is heard by a task, and while a large
    directory is being loaded no task runs, yet an impatient operator's second Ctrl-C has to work. Ending at once is
    safe: it is the crash that recovery is made for.
    """
    import trio  # noqa: PLC0415

    token = trio.lowlevel.current_trio_token()
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        token.run_sync_soon(scope.cancel)

    with _on_signals(handle):
        yield


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    """Before serving has begun nothing is under way, and an exception would surface in whatever is being imported."""
    os._exit(EXIT_OK)


@contextmanager
def _on_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT handled so within the block."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, handle) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def _sentence(error: BaseException) -> str | None:
    """What to tell the operator, or None when it is a bug."""
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
