"""``seglog topic create | list | describe | alter | truncate | delete``."""

from typing import Any, Final

import click

from seglog.cli.commands import PLACES, Command, Group, Option
from seglog.cli.grammar.common import local, topic, yes
from seglog.cli.option_types import PAIR, PLACE_OF_PARTITION, POSITIVE


def _command(action: str, help_text: str, *params: click.Parameter, **attributes: Any) -> Command:
    return Command(action, runs="topics", sets={"action": action}, help=help_text, params=params, **attributes)


COMMAND: Final = Group(
    "topic",
    [
        _command(
            "create",
            "Create a topic.",
            topic("Name of the new topic."),
            Option(
                ["--partitions"],
                type=POSITIVE,
                metavar="N",
                show_default="num.partitions of the broker",
                help="Number of partitions.",
            ),
            Option(
                ["--config"],
                type=PAIR,
                multiple=True,
                metavar="KEY=VALUE",
                help="A setting of the topic, under Kafka's name; repeatable. Durations and sizes may have a unit: "
                "retention.ms=7d, segment.bytes=64MiB.",
            ),
            Option(["--if-not-exists"], is_flag=True, help="Succeed if the topic already exists."),
            example="seglog topic create clicks --partitions 3 --config retention.ms=7d",
        ),
        _command("list", "List all topics, with their partitions, segments and bytes."),
        _command("describe", "Show a topic, its settings and where each value comes from.", topic()),
        _command(
            "alter",
            "Change the settings of a topic, or add partitions.",
            topic(),
            Option(["--config"], type=PAIR, multiple=True, metavar="KEY=VALUE", help="Set a value; repeatable."),
            Option(["--reset"], multiple=True, metavar="KEY", help="Go back to the broker's default; repeatable."),
            Option(
                ["--partitions"], type=POSITIVE, metavar="N", help="The new number of partitions, above the old one."
            ),
            example="seglog topic alter clicks --config retention.ms=30d --reset segment.bytes",
        ),
        _command(
            "truncate",
            "Delete the records of a topic that lie before an offset or a time.",
            topic(),
            Option(
                ["--before"],
                type=PLACE_OF_PARTITION,
                multiple=True,
                required=True,
                metavar="[PARTITION:]OFFSET|TIME",
                help="The first record to keep: a time for all partitions (-7d), a time or an offset for one (0:-7d, "
                "0:5000), or `end` to keep none; repeatable.",
            ),
            local("Read"),
            times=PLACES,
            example="seglog topic truncate clicks --before -7d",
        ),
        _command(
            "delete",
            "Delete a topic and its data.",
            topic(),
            yes(),
        ),
    ],
    help="Create, list, describe, alter, truncate and delete topics.",
)
