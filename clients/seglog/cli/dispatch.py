"""``seglog`` itself: from what was typed to the command that does it, from its errors to sentences and exit codes."""

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

import seglog
from seglog.cli import complain
from seglog.cli.arguments import COMPLETE_VARIABLE, Options
from seglog.cli.commands import LazyCommand, LazyGroup, Option, common_options
from seglog.cli.exits import FAILED, OK, USAGE, InputError, UsageError, exit_code_of
from seglog.cli.terminal import print_line
from seglog_protocol.errors import SeglogError

_COMMANDS: Final = {
    "quickstart": "Start a broker for a first look: records, a seek, Python for them.",
    "topic": "Create, list, describe, alter, truncate and delete topics.",
    "produce": "Send the lines of a file or of standard input as records.",
    "consume": "Print records, from an offset or a time to the end of the log.",
    "offsets": "Show the offsets of partitions, and how far a reader is behind.",
    "group": "List, describe, reset and delete consumer groups.",
    "queue": "List, describe, alter and peek into queues, redrive dead letters.",
    "transaction": "List, describe and abort transactions.",
    "user": "Add, list and delete accounts, and change their passwords.",
    "acl": "List, add, delete and check permissions, and put them in force.",
    "quota": "List, set and take back quotas of clients.",
    "explain": "Explain a seek, why a segment is kept, where a setting is from.",
    "load": "Put load on a broker, and measure throughput and latency.",
    "mirror": "Copy topics live to an Apache Kafka, or from one.",
    "archive": "Keep a topic as Parquet, continuing where the last run ended.",
    "spark": "Archive, replay, compact and report on topics, with Spark.",
    "promote": "Have a standby take over from the first machine.",
    "backup": "Show what would be lost if the broker's disk died now.",
    "ping": "Show which broker answers, and what problems it has.",
    "metrics": "Show what the broker counts and measures.",
    "top": "Show what a broker does now: rates, durability, disk, topics, groups.",
    "console": "Draw the log in a browser: segments, seeks, groups, records.",
    "doctor": "Examine a broker, its machine, and how it is reached from here.",
    "support-bundle": "Write what others need to help with a broker into a file.",
    "completion": "Print a script that completes commands in a shell.",
}


class _Root(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """Write the table of exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_text(
                "0 ok, 1 failed, 2 usage, 3 broker not reachable, 4 refused by the broker, 130 interrupted"
            )


def _show_version(ctx: click.Context, _: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        print_line(f"seglog {seglog.__version__}")
        ctx.exit(0)


ROOT: Final = _Root(
    "seglog",
    [LazyCommand(name, f"seglog.cli.{name.replace('-', '_')}", summary) for name, summary in _COMMANDS.items()],
    params=[
        *common_options(),
        Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        ),
    ],
    help="Talk to a seglog broker.",
)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Raises KeyboardInterrupt, with notes to be printed, when it was interrupted.
    """
    if sys.stdout is None or sys.stdin is None:
        complain(f"standard {'output' if sys.stdout is None else 'input'} is closed; redirect it, /dev/null will do")
        return FAILED
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):  # bytes that Python could not decode
            complain(f"{argument!r} is not text in UTF-8", fg="red")
            return USAGE
    try:
        if COMPLETE_VARIABLE in os.environ:
            from click.shell_completion import shell_complete

            return shell_complete(ROOT, {}, "seglog", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE])
        code = _run(parse(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads our output has enough, for example `| head`. What is left in the buffer must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.message, err=True)
        return USAGE
    except click.UsageError as error:
        complain(_typed_wrongly(error), fg="red")
        if error.ctx is not None:
            complain(f"see `{error.ctx.command_path} --help`")
        return USAGE
    except UsageError as error:
        complain(str(error), fg="red")
        return USAGE
    except (SeglogError, InputError, OSError) as error:
        complain(_sentence(error), *getattr(error, "__notes__", ()), fg="red")
        return exit_code_of(error)
    return code


def parse(arguments: Sequence[str]) -> Options:
    """The options of the command that was typed.

    Raises click.UsageError for what cannot be parsed, and click.exceptions.Exit when --help or --version was printed.
    """
    with ROOT.make_context("seglog", list(arguments)) as context:
        options = ROOT.invoke(context)
    assert isinstance(options, Options)
    return options


def _run(options: Options) -> int:
    """Run a command, with the client's log and warnings on stderr, without names of modules and line numbers."""
    import logging
    import warnings

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(record.getMessage())

    log, lines = logging.getLogger("seglog"), Lines(logging.WARNING)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
        log.addHandler(lines)
        try:
            return options.run(options)
        finally:
            log.removeHandler(lines)


def _typed_wrongly(error: click.UsageError) -> str:
    """The message of a usage error in the style of this command: option or argument first, no capitals."""
    match error:
        case click.NoSuchOption(option_name=name):
            return f"no such option: {name}{_hint(error.possibilities)}"
        case click.exceptions.NoSuchCommand(command_name=name):
            return f"no such command: {name}{_hint(error.possibilities)}"
        case click.BadOptionUsage(option_name=name):
            return f"{name}: needs a value" if "requires an argument" in error.message else f"{name}: takes no value"
        case click.MissingParameter(param=click.Parameter() as param):
            return f"{_name(param)} is missing"
        case click.BadParameter(param=click.Parameter() as param):
            return f"{_name(param)}: {error.message.rstrip('.')}"
    message = error.format_message().rstrip(".")
    return message[:1].lower() + message[1:]


def _name(param: click.Parameter) -> str:
    return param.human_readable_name if isinstance(param, click.Argument) else max(param.opts, key=len)


def _hint(names: Sequence[str] | None) -> str:
    return f"; did you mean {names[0]}?" if names else ""


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, SeglogError):
        why = error.strerror or str(error)
        return why if error.filename is None else f"{error.filename}: {why}"
    topic, partition = getattr(error, "topic", ""), getattr(error, "partition", -1)
    if topic and partition >= 0 and topic not in str(error):
        return f"{topic}-{partition}: {error}"
    return str(error)
