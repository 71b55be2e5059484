"""``seglog offsets``."""

from typing import Final

from seglog.cli.commands import TIMES, Command, Option
from seglog.cli.grammar.common import isolation, local, partitions, topic

COMMAND: Final = Command(
    "offsets",
    runs="offsets",
    help="Show the offsets of partitions, and how far a reader is behind.\n\n"
    "With --position it exits with 1 where records before a position are lost, or the position is beyond the end.",
    params=[
        topic(),
        Option(["--at"], metavar="TIME", help="Also show the first record at or after this time."),
        Option(
            ["--position"],
            multiple=True,
            metavar="PARTITION:OFFSET",
            help="Show how far a reader at this position is behind, and when retention reaches it; repeatable. Also "
            "a file with json.dumps(consumer.positions()), - for standard input, or `earliest`.",
        ),
        isolation("With read_committed a partition ends where its first open transaction begins."),
        partitions(),
        local(),
    ],
    times=TIMES,
    example="seglog offsets clicks --at -1h\nseglog offsets clicks --position 0:1200 --position 1:900",
)
