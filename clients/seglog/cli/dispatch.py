"""From what was typed to the command that does it, and from its errors to a sentence and an exit code.

A command's module is imported when it is called: a short one does not wait for what it does not need.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module

from seglog.cli import complain
from seglog.cli.arguments import Options, join_moments, make_parser, options_from, parse
from seglog.cli.background import told_on_stderr
from seglog.cli.exits import FAILED, OK, USAGE, InputError, UsageError, exit_code_of
from seglog_protocol.errors import SeglogError


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    argparse leaves with SystemExit(2) for what it cannot parse. Raises KeyboardInterrupt, with notes that are to be
    told, when it was interrupted.
    """
    if sys.stdout is None or sys.stdin is None:
        complain(f"standard {'output' if sys.stdout is None else 'input'} is closed; redirect it, /dev/null will do")
        return FAILED
    parser = make_parser()
    options = options_from(parse(parser, join_moments(arguments)))
    with told_on_stderr():
        return _run(parser, options)


def _run(parser: ArgumentParser, options: Options) -> int:
    try:
        command = import_module(f"seglog.cli.{options.module}")
        code: int = command.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads our output has enough, for example `| head`. What is left in the buffer must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except UsageError as error:
        parser.exit(USAGE, f"seglog: {error}\n")
    except (SeglogError, InputError, OSError) as error:
        complain(_sentence(error), *getattr(error, "__notes__", ()))
        return exit_code_of(error)
    return code


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, SeglogError):
        why = error.strerror or str(error)
        return why if error.filename is None else f"{error.filename}: {why}"
    topic, partition = getattr(error, "topic", ""), getattr(error, "partition", -1)
    if topic and partition >= 0 and topic not in str(error):
        return f"{topic}-{partition}: {error}"
    return str(error)
