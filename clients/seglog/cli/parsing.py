"""From what was typed to the options of a command."""

from collections.abc import Sequence

from seglog.cli.arguments import Options
from seglog.cli.grammar.root import ROOT


def parse(arguments: Sequence[str]) -> Options:
    """The options of the command that was typed.

    Raises click.UsageError for what cannot be parsed, and click.exceptions.Exit when --help or --version was printed.
    """
    with ROOT.make_context("seglog", list(arguments)) as context:
        options = ROOT.invoke(context)
    assert isinstance(options, Options)
    return options
