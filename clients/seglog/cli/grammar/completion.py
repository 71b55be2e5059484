"""``seglog completion``."""

from typing import Final

import click

from seglog.cli.commands import Command

SHELLS: Final = ("bash", "zsh", "fish")

COMMAND: Final = Command(
    "completion",
    runs="completion",
    talks=False,
    help="Print a script that completes commands in a shell.\n\n"
    "It completes options and names of topics, too. These come from the broker; where it does not answer within half a "
    "second, there are none.",
    params=[click.Argument(["shell"], type=click.Choice(SHELLS), metavar="SHELL", help="bash, zsh or fish.")],
    example='bash, in ~/.bashrc:  eval "$(seglog completion bash)"\n'
    'zsh, in ~/.zshrc:    eval "$(seglog completion zsh)"\n'
    "fish: seglog completion fish > ~/.config/fish/completions/seglog.fish",
)
