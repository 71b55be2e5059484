"""``seglog completion``: the script for a shell, and the answers that it asks for."""

from click.shell_completion import get_completion_class, shell_complete

from seglog.cli.arguments import COMPLETE_VARIABLE, Options
from seglog.cli.exits import OK
from seglog.cli.grammar.root import ROOT


def run(options: Options) -> int:
    """Print the script."""
    kind = get_completion_class(options.shell)
    assert kind is not None
    print(kind(ROOT, {}, "seglog", COMPLETE_VARIABLE).source())
    return OK


def answer(instruction: str) -> int:
    """Print what may be typed next, for the script of a shell."""
    return shell_complete(ROOT, {}, "seglog", COMPLETE_VARIABLE, instruction)
