"""``seglog ping``."""

from typing import Final

from seglog.cli.commands import Choice, Command, Option

COMMAND: Final = Command(
    "ping",
    runs="ping",
    help="Show which broker answers, and what problems it has.\n\n"
    "Also its version, uptime, partitions and data directory. It exits with 0 when the broker has no problems, 1 when "
    "it has some, 3 when none answers.",
    params=[
        Option(
            ["--ready"],
            is_flag=True,
            help="Exit with 0 when at least one partition can be read, or there is none, whatever the problems; "
            "else with 1.",
        ),
        Option(["--live"], is_flag=True, help="Exit with 0 when a broker answers at all; else with 3."),
    ],
    choices=[Choice(("ready", "live"))],
)
