"""Accounts, rules (permissions) and quotas: looked at, checked and changed."""

from collections.abc import Sequence
from typing import Any, Final

from seglog.cli.acl import decide, grouped, resource_of
from seglog.cli.exits import UsageError
from seglog.core.access import list_quotas, list_rules
from seglog_console.changes import Change, Fields, Words
from seglog_console.pages import BadInputError, View, part_of, unless_refused
from seglog_protocol.access import Operation, Rule
from seglog_protocol.messages import DescribeBrokerReply
from seglog_protocol.quotas import CLIENT_ID, IP, KEYS, USER, Entity, Quotas

_ROWS: Final = 25
"""Of each of three tables, in which rows have forms."""
KINDS: Final = ("topic", "group", "transactional-id", "cluster")
_ENTITY: Final = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
"""Fields by the parts of a quota's entity; with ``_defaults`` behind it a field is ticked for all of that kind."""


async def context(view: View) -> dict[str, Any]:
    """Each part as far as this account may see it; with ``who``, ``operation`` and ``resource`` a decision."""
    client = view.client
    users, no_users = await unless_refused(client.users(), [])
    rules, no_rules = await unless_refused(client.converse(list_rules()), [])
    quotas, no_quotas = await unless_refused(client.converse(list_quotas()), {})
    told, no_broker = await unless_refused(client.describe_broker(), None)
    return {
        "users": part_of(view, users, "users", _ROWS),
        "no_users": no_users,
        "rules": part_of(view, [_shown_rule(*found) for found in grouped(rules)], "rules", _ROWS),
        "no_rules": no_rules,
        "quotas": part_of(view, [_shown_quota(*found) for found in quotas.items()], "quotas", _ROWS),
        "no_quotas": no_quotas,
        "access": None if told is None else told.access,
        "no_broker": no_broker,
        "operations": [each.name for each in Operation if each >= Operation.ALL],
        "kinds": KINDS,
        "quota_kinds": KEYS,
        "decision": "" if told is None or no_rules else _decision(view, told, rules),
    }


def _shown_rule(rule: Rule, operations: Sequence[str]) -> dict[str, Any]:
    """A row, and the fields that name the rule."""
    fields = {
        "user": rule.principal.removeprefix("User:"),
        "kind": rule.kind.name.lower().replace("_", "-"),
        "name": rule.shown_name,
        "operations": " ".join(operations),
        "host": rule.host,
        "deny": "yes" if rule.permission.name == "DENY" else "",
    }
    return {"rule": rule, "resource": resource_of(rule), "operations": operations, "fields": fields}


def _shown_quota(entity: Entity, values: Quotas) -> dict[str, Any]:
    fields = {
        _ENTITY[kind] if name is not None else f"{_ENTITY[kind]}_defaults": name or "yes" for kind, name in entity
    }
    whom = ", ".join(f"{kind} {name}" if name is not None else f"each other {kind}" for kind, name in entity)
    return {"whom": whom, "values": sorted(values.items()), "fields": fields}


def _decision(view: View, told: DescribeBrokerReply, rules: Sequence[Rule]) -> str:
    """The answer to the question in the address, "" without one. Raises BadInputError."""
    who, operation, resource = (view.text(name).strip() for name in ("who", "operation", "resource"))
    if not who:
        return ""
    if operation not in Operation.__members__:
        raise BadInputError(f"{operation!r} is no operation")
    try:
        is_allowed, why = decide(told, rules, who, view.text("host") or "127.0.0.1", Operation[operation], resource)
    except (UsageError, ValueError) as error:
        raise BadInputError(str(error)) from error
    reason = f"the rule {why}" if isinstance(why, Rule) else why
    return f"{who} {'may' if is_allowed else 'may not'} {operation} {resource}: {reason}"


# --- Changes ----------------------------------------------------------------------------------------------------------


def _resource(fields: Fields) -> list[str]:
    kind = fields["kind"]
    if kind not in KINDS:
        raise BadInputError(f"{kind!r} is none of {', '.join(KINDS)}")
    return ["--cluster"] if kind == "cluster" else [f"--{kind}", fields["name"]]


def _which(fields: Fields) -> list[str]:
    """The options that name rules."""
    programs = {"produce": ["--produce"], "consume": ["--consume"]}
    operations = [word for what in fields.words("operations") for word in programs.get(what) or ("--operation", what)]
    return [
        *("--user", fields["user"]),
        *_resource(fields),
        *operations,
        *fields.options(host="--host"),
        *fields.flags(deny="--deny"),
    ]


def _whom(fields: Fields) -> list[str]:
    return [
        *fields.options(user="--user", client_id="--client-id", ip="--ip"),
        *fields.flags(
            user_defaults="--user-defaults", client_id_defaults="--client-defaults", ip_defaults="--ip-defaults"
        ),
    ]


_RULE: Final = ("user", "kind", "name", "operations", "host", "deny")
_WHOM: Final = ("user", "client_id", "ip", "user_defaults", "client_id_defaults", "ip_defaults")

CHANGES: Final = (
    Change(
        "user-add",
        "Add an account",
        ("name",),
        lambda fields: Words("user add", [fields["name"]], ["--password-file", "-"]),
        asks="Password of the account",
    ),
    Change(
        "user-password",
        "Give an account another password",
        ("name",),
        lambda fields: Words("user passwd", [fields["name"]], ["--password-file", "-"]),
        warning="Clients that have the old one are let in no more.",
        asks="New password",
    ),
    Change(
        "user-delete",
        "Delete an account",
        ("name",),
        lambda fields: Words("user delete", [fields["name"]], ["--yes"]),
        warning="Its connections end at once; its rules stay.",
    ),
    Change("rule-add", "Add a rule", _RULE, lambda fields: Words("acl add", (), _which(fields))),
    Change(
        "rule-remove",
        "Delete rules",
        _RULE,
        lambda fields: Words("acl remove", (), [*_which(fields), "--yes"]),
        look=lambda fields: Words("acl list", (), _which(fields)),
    ),
    Change(
        "rules-enable",
        "Put rules in force",
        (),
        lambda _: Words("acl enable", (), ["--yes"]),
        warning="From then on everybody may do what a rule allows, and nothing else.",
        look=lambda _: Words("acl enable"),
    ),
    Change(
        "rules-disable",
        "Do without rules",
        (),
        lambda _: Words("acl disable", (), ["--yes"]),
        warning="From then on everybody may produce and consume, whatever rules say.",
    ),
    Change(
        "quota-set",
        "Set a quota",
        ("key", "value", *_WHOM),
        lambda fields: Words("quota set", [f"{fields['key']}={fields['value']}"], _whom(fields)),
    ),
    Change(
        "quota-remove",
        "Take quotas back",
        ("key", *_WHOM),
        lambda fields: Words("quota remove", fields.words("key"), _whom(fields)),
    ),
)
