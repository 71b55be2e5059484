"""``seglog transaction list | describe | abort``."""

from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Group, flag
from seglog.cli.common import answer, answer_table, is_confirmed, print_json, warn
from seglog.cli.exits import FAILED, OK
from seglog.cli.option_types import COUNT
from seglog.cli.parameters import client_command, completed, topic, yes
from seglog.cli.tables import named
from seglog.cli.terminal import print_line
from seglog.core.errors import count_of, duration_of
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog_protocol.messages import TransactionDescription


def _list(client: "Client", options: Options) -> int:
    """List transactions; 1 where the broker cannot read what some of them were."""
    from seglog.core.transaction_admin import OPEN, list_transactions

    found, now_ms, missing = client.converse(list_transactions())
    if options.open:
        found = [each for each in found if each.state == OPEN]
    titles = ("TRANSACTIONAL ID", "STATE", ">PRODUCER", ">EPOCH", ">PARTITIONS", "OPEN FOR", "TIMEOUT")
    rows = []
    for each in found:
        counts = (each.producer_id, each.producer_epoch, each.partition_count or 0)
        rows.append(
            (named(each.transactional_id), each.state, *counts, _age(each, now_ms), duration_of(each.timeout_ms))
        )
    code = answer_table(options, [each.to_wire() for each in found], titles, rows)
    if missing is not None:
        warn(missing)
    return code if missing is None else FAILED


def _age(each: "TransactionDescription", now_ms: int) -> str:
    if each.started_ms is None or each.state.startswith("Complete"):
        return "-"
    return duration_of(max(0, now_ms - each.started_ms))


def _describe(client: "Client", options: Options) -> int:
    """Show a transaction; 1 where it could not be ended at the last try."""
    from seglog.core.transaction_admin import describe_transaction

    each, now_ms = client.converse(describe_transaction(options.transactional_id))
    if options.json:
        print_json(each.to_wire())
    else:
        print_line(f"{printable(each.transactional_id)}: {each.state}")
        print_line(f"  producer {each.producer_id}, epoch {each.producer_epoch}")
        age = _age(each, now_ms)
        print_line(f"  timeout {duration_of(each.timeout_ms)}" + ("" if age == "-" else f", open for {age}"))
        for topic in each.partitions or ():
            numbers = ", ".join(map(str, topic.partitions))
            print_line(f"  {topic.topic}: partition{'' if len(topic.partitions) == 1 else 's'} {numbers}")
    if each.held_up is not None:
        warn(f"it could not be ended yet: {each.held_up}")
    return OK if each.held_up is None else FAILED


def _abort(client: "Client", options: Options) -> int:
    transactional_id = options.transactional_id
    each = client.describe_transaction(transactional_id)
    what = f"the transaction of {transactional_id}, with {count_of(each.partition_count or 0, 'partition')}"
    if not is_confirmed(options, lambda: f"Abort {what}? Its producer is fenced, nothing of it counts."):
        warn(f"{what} is not aborted")
        return FAILED
    client.abort_transaction(transactional_id)
    shown = {"transactional_id": transactional_id, "aborted": True}
    return answer(options, shown, f"{printable(transactional_id)}: aborted")


def _abort_hanging(client: "Client", options: Options) -> int:
    from seglog.core.transaction_admin import abort_hanging

    what = f"the hanging transaction that begins at offset {options.offset} of {options.topic}-{options.partition}"
    if not is_confirmed(options, lambda: f"Abort {what}? Nothing of it counts in this partition."):
        warn(f"{what} is not aborted")
        return FAILED
    client.converse(abort_hanging(options.topic, options.partition, options.offset))
    place = {"topic": options.topic, "partition": options.partition, "first_offset": options.offset}
    name = f"{printable(options.topic)}-{options.partition}"
    return answer(options, {**place, "aborted": True}, f"{name}: the transaction at {options.offset} is aborted")


def _transactional_id() -> click.Argument:
    return click.Argument(
        ["transactional_id"], help="The producer's name of its own.", shell_complete=completed("transactions")
    )


COMMAND: Final = Group(
    "transaction",
    [
        client_command(
            "list",
            _list,
            "List producers that have transactions, by their transactional ids.\n\n"
            "It exits with 1 where the broker cannot read what some of them were, as a partition is offline.",
            flag("--open", "Only those with a transaction that is open."),
        ),
        client_command(
            "describe",
            _describe,
            "Show the transaction of a producer, and its partitions.\n\n"
            "It exits with 1 where the transaction is to be ended, and could not be at the last try.",
            _transactional_id(),
        ),
        client_command(
            "abort",
            _abort,
            "Abort the open transaction of a producer that does not end it.\n\n"
            "Readers at read_committed wait for it until its timeout. The producer is fenced.",
            _transactional_id(),
            yes(),
        ),
        client_command(
            "abort-hanging",
            _abort_hanging,
            "Abort a transaction that no producer will end.\n\n"
            "`seglog ping` names those that hang: they are open in a partition, and no transactional id knows of them.",
            topic(),
            click.Argument(["partition"], type=COUNT, help="Number of the partition, from 0."),
            click.Argument(["offset"], type=COUNT, help="Where the transaction begins."),
            yes(),
        ),
    ],
)
