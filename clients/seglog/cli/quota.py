"""``seglog quota list | set | remove``: how much of the broker clients may have."""

from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Group, Option, flag
from seglog.cli.common import answer_table, warn
from seglog.cli.exits import UsageError
from seglog.cli.option_types import PAIR
from seglog.cli.parameters import client_command, for_user
from seglog.cli.tables import named
from seglog_protocol.quotas import CLIENT_ID, IP, KEYS, USER, Entity, check_value, entity_of

if TYPE_CHECKING:
    from seglog.client import Client


def _list(client: "Client", options: Options) -> int:
    from seglog.core.access import list_quotas

    wanted = set(_entity(options))
    found = {entity: values for entity, values in client.converse(list_quotas()).items() if wanted <= set(entity)}
    if not found:
        warn("note: there is no such quota" if wanted else "note: there are no quotas")
    rows = []
    for entity, values in found.items():
        whom = {kind: named(name or "(default)") for kind, name in entity}
        columns = [whom.get(kind, "-") for kind in (USER, CLIENT_ID, IP)]
        rows += [(*columns, key, f"{value:.15g}") for key, value in sorted(values.items())]
    shown = [{"entity": dict(entity), "quotas": dict(values)} for entity, values in found.items()]
    return answer_table(options, shown, ("USER", "CLIENT ID", "ADDRESS", "QUOTA", ">VALUE"), rows)


def _set(client: "Client", options: Options) -> int:
    return _alter(client, options, {key: _number(key, text) for key, text in options.values_of})


def _remove(client: "Client", options: Options) -> int:
    return _alter(client, options, dict.fromkeys(options.keys or KEYS))


def _alter(client: "Client", options: Options, values: dict[str, float | None]) -> int:
    from seglog.core.access import alter_quotas

    entity = _entity(options)
    if not entity:
        raise UsageError("say for whom: by --user, --client-id, --ip, or one of the defaults")
    try:
        for key, value in values.items():
            if value is not None:
                check_value(entity, key, value)
    except ValueError as error:
        raise UsageError(str(error)) from None
    client.converse(alter_quotas(entity, values))
    return _list(client, options)


def _entity(options: Options) -> Entity:
    """Whom the options name."""
    typed = (
        (USER, options.for_user, options.user_defaults),
        (CLIENT_ID, options.client_id, options.client_defaults),
        (IP, options.ip, options.ip_defaults),
    )
    return entity_of({kind: None if is_all else name for kind, name, is_all in typed if is_all or name is not None})


def _number(key: str, text: str) -> float:
    """The value of a quota, of bytes also with a unit."""
    from seglog_protocol.quantities import Unit, parse_quantity

    quantity = parse_quantity(text, Unit.BYTES) if key.endswith("_byte_rate") else None
    try:
        return float(text if quantity is None else quantity)
    except ValueError:
        raise UsageError(f"{key} must be a number, not {text!r}") from None


def _whom() -> list[click.Parameter]:
    """Options that say for whom a quota is."""
    return [
        for_user("An account."),
        Option(["--client-id"], metavar="NAME", help="A client id, as clients say it; with --user, of that account."),
        Option(["--ip"], metavar="ADDRESS", help="An address, for connection_creation_rate."),
        flag("--user-defaults", "Each account that has no quota of its own."),
        flag("--client-defaults", "Each client id that has no quota of its own."),
        flag("--ip-defaults", "Each address that has no quota of its own."),
    ]


_VALUES: Final = click.Argument(
    ["values_of"], metavar="QUOTA=VALUE", type=PAIR, nargs=-1, required=True, help="Rates of bytes take units."
)
_NAMES: Final = click.Argument(
    ["keys"], metavar="QUOTA", type=click.Choice(list(KEYS)), nargs=-1, help="Names of quotas."
)
_SET_HELP: Final = "\n\n".join(
    ["Set quotas: what is above waits, and nobody else.", *(f"{key}: {meaning}." for key, meaning in KEYS.items())]
)

COMMAND: Final = Group(
    "quota",
    [
        client_command("list", _list, "List quotas.", *_whom()),
        client_command(
            "set",
            _set,
            _SET_HELP,
            _VALUES,
            *_whom(),
            example="seglog quota set --user ann producer_byte_rate=1MB request_percentage=20",
        ),
        client_command("remove", _remove, "Take quotas back, all or those that are named.", _NAMES, *_whom()),
    ],
)
