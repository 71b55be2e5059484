"""``seglog quota list | set | remove``: how much of the broker clients may have."""

from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Group, Option, flag
from seglog.cli.common import answer_table, warn
from seglog.cli.exits import UsageError
from seglog.cli.option_types import PAIR
from seglog.cli.parameters import client_command, completed
from seglog.cli.tables import named

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog.core.access import Entity

_KEYS: Final = {
    "producer_byte_rate": "bytes a second that are produced",
    "consumer_byte_rate": "bytes a second that are read",
    "request_percentage": "percent of the broker's loop; 100 is all of it",
    "controller_mutation_rate": "partitions a second that are made or deleted",
    "connection_creation_rate": "connections a second, for addresses alone",
}
_DEFAULT: Final = "(default)"


def _list(client: "Client", options: Options) -> int:
    from seglog.core.access import list_quotas

    wanted = _entity(options)
    found = [
        (entity, values)
        for entity, values in client.converse(list_quotas())
        if not wanted or wanted.items() <= entity.items()
    ]
    rows = [
        (
            *(named(_DEFAULT if name is None else name) if kind in entity else "-" for kind, name in _names(entity)),
            key,
            f"{value:.15g}",
        )
        for entity, values in found
        for key, value in sorted(values.items())
    ]
    if not found:
        warn("note: there is no such quota" if wanted else "note: there are no quotas")
    shown = [{"entity": dict(entity), "quotas": dict(values)} for entity, values in found]
    return answer_table(options, shown, ("USER", "CLIENT ID", "ADDRESS", "QUOTA", ">VALUE"), rows)


def _names(entity: "Entity") -> list[tuple[str, str | None]]:
    """Type and name for each column."""
    return [(kind, entity.get(kind)) for kind in ("user", "client-id", "ip")]


def _set(client: "Client", options: Options) -> int:
    return _alter(client, options, {key: _number(key, text) for key, text in options.values_of})


def _remove(client: "Client", options: Options) -> int:
    return _alter(client, options, dict.fromkeys(options.keys or _KEYS))


def _alter(client: "Client", options: Options, values: "dict[str, float | None]") -> int:
    from seglog.core.access import alter_quotas, list_quotas

    entity = _entity(options)
    if not entity:
        raise UsageError("say for whom: by --user, --client-id, --ip, or one of the defaults")
    if None in values.values():
        has = next((held for found, held in client.converse(list_quotas()) if found == entity), {})
        values = {key: value for key, value in values.items() if key in has}
    if values:
        client.converse(alter_quotas(entity, values))
    return _list(client, options)


def _entity(options: Options) -> "dict[str, str | None]":
    """The names that were given, by Kafka's types."""
    named_ = {"user": options.for_user, "client-id": options.client_id, "ip": options.ip}
    found: dict[str, str | None] = {kind: name for kind, name in named_.items() if name is not None}
    for kind, is_default in (
        ("user", options.user_defaults),
        ("client-id", options.client_defaults),
        ("ip", options.ip_defaults),
    ):
        if is_default:
            found[kind] = None
    return found


def _number(key: str, text: str) -> float:
    """The value of a quota, of bytes also with a unit."""
    from seglog_protocol.quantities import Unit, parse_quantity

    if key not in _KEYS:
        raise UsageError(f"there is no quota {key}; there are {', '.join(_KEYS)}")
    quantity = parse_quantity(text, Unit.BYTES) if key.endswith("_byte_rate") else None
    try:
        return float(text) if quantity is None else float(quantity)
    except ValueError:
        raise UsageError(f"{key} must be a number, not {text!r}") from None


def _whom() -> list[click.Parameter]:
    """Options that say for whom a quota is."""
    return [
        Option(
            ["--user", "for_user"],
            metavar="NAME",
            shell_complete=completed("users"),
            help="An account. Your own is given in front: seglog --user NAME quota ...",
        ),
        Option(["--client-id"], metavar="NAME", help="A client id, as clients say it; with --user, of that account."),
        Option(["--ip"], metavar="ADDRESS", help="An address, for connection_creation_rate."),
        flag("--user-defaults", "Each account that has no quota of its own."),
        flag("--client-defaults", "Each client id that has no quota of its own."),
        flag("--ip-defaults", "Each address that has no quota of its own."),
    ]


COMMAND: Final = Group(
    "quota",
    [
        client_command("list", _list, "List quotas.", *_whom()),
        client_command(
            "set",
            _set,
            "Set quotas: what is above waits, and nobody else.\n\n"
            + "\n\n".join(f"{key}: {meaning}." for key, meaning in _KEYS.items()),
            click.Argument(
                ["values_of"],
                metavar="QUOTA=VALUE",
                type=PAIR,
                nargs=-1,
                required=True,
                help="Rates of bytes take units.",
            ),
            *_whom(),
            example="seglog quota set --user ann producer_byte_rate=1MB request_percentage=20",
        ),
        client_command(
            "remove",
            _remove,
            "Take quotas back, all or those that are named.",
            click.Argument(
                ["keys"], metavar="QUOTA", type=click.Choice(list(_KEYS)), nargs=-1, help="Names of quotas."
            ),
            *_whom(),
        ),
    ],
)
