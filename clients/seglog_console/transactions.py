"""Transactions: those that hang or are held up first, each with its way out, then those that are open."""

import re
from collections.abc import Iterable
from typing import Any, Final

from seglog.core.errors import duration_of
from seglog.core.transaction_admin import OPEN, list_transactions
from seglog_console.changes import Change
from seglog_console.pages import View, part_of, unless_refused
from seglog_protocol.messages import TransactionDescription

_HANGING: Final = re.compile(r"`seglog transaction abort-hanging (\S+) (\d+) (\d+)`")
"""The broker's own advice, in its problem of a transaction that no producer will end."""


async def context(view: View) -> dict[str, Any]:
    """All transactional ids, open transactions first; the hanging ones are problems that the broker tells."""
    client, shared = view.client, view.session.viewer.shared
    listed = await shared("transactions", lambda: client.converse(list_transactions()))
    (reading, _), _ = await unless_refused(view.session.viewer.numbers([]), (None, None))
    return {
        "hanging": hanging(reading.hello.problems if reading else ()),
        "held_up": [each for each in listed.transactions if each.held_up is not None],
        "missing": listed.missing,
        "transactions": part_of(view, sorted(listed.transactions, key=_urgency)),
        "age": lambda each: age_of(each, listed.now_ms),
        "open": OPEN,
    }


def hanging(problems: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The problems that are hanging transactions, each with topic, partition and offset as the broker names them."""
    told = [(problem, _HANGING.search(problem)) for problem in problems]
    return [(problem, found.groups()) for problem, found in told if found is not None]


def _urgency(each: TransactionDescription) -> tuple[Any, ...]:
    return each.held_up is None, each.state != OPEN, each.started_ms or 0, each.transactional_id


def age_of(each: TransactionDescription, now_ms: int) -> str:
    """For how long its transaction is open; ``-`` where none is."""
    if each.started_ms is None or each.state.startswith("Complete"):
        return "-"
    return duration_of(max(0, now_ms - each.started_ms))


CHANGES: Final = (
    Change(
        "transaction-abort",
        "Abort a transaction",
        "transaction abort {id} --yes",
        "Nothing of it counts, and its producer is fenced: it has to begin anew.",
        look="transaction describe {id}",
    ),
    Change(
        "transaction-abort-hanging",
        "Abort a hanging transaction",
        "transaction abort-hanging {topic} {partition} {offset} --yes",
        "Nothing of it counts in this partition.",
    ),
)
