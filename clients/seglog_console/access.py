"""Accounts, rules (permissions) and quotas: looked at, checked and changed."""

from collections.abc import Sequence
from typing import Any, Final

from seglog.cli.acl import decide, grouped, resource_of
from seglog.cli.exits import UsageError
from seglog.core.access import list_quotas, list_rules
from seglog_console.changes import Change
from seglog_console.pages import BadInputError, View, part_of, unless_refused
from seglog_protocol.access import Operation, Rule
from seglog_protocol.messages import DescribeBrokerReply
from seglog_protocol.quotas import CLIENT_ID, IP, KEYS, USER, Entity, Quotas

_ROWS: Final = 25
"""Of each of three tables, in which rows have forms."""
_ENTITY: Final = {
    USER: ("user", "user_defaults"),
    CLIENT_ID: ("client_id", "client_defaults"),
    IP: ("ip", "ip_defaults"),
}
"""Fields by the parts of a quota's entity; the second one is ticked for all of that kind."""


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
        "quota_kinds": KEYS,
        "decision": "" if told is None or no_rules else _decision(view, told, rules),
    }


def _shown_rule(rule: Rule, operations: Sequence[str]) -> dict[str, Any]:
    """A row, and the fields that name the rule."""
    fields = {
        "user": rule.principal.removeprefix("User:"),
        rule.kind.name.lower(): rule.shown_name,
        "operations": " ".join(operations),
        "host": rule.host,
        "deny": "yes" if rule.permission.name == "DENY" else "",
    }
    return {"rule": rule, "resource": resource_of(rule), "operations": operations, "fields": fields}


def _shown_quota(entity: Entity, values: Quotas) -> dict[str, Any]:
    fields = {_ENTITY[kind][name is None]: name or "yes" for kind, name in entity}
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


_RULES: Final = (
    "--user={user} [--topic={topic}] [--group={group}] [--transactional-id={transactional_id}] [--cluster] "
    "[--produce] [--consume] [--operation={operations}...] [--host={host}] [--deny]"
)
_WHOM: Final = (
    "[--user={user}] [--client-id={client_id}] [--ip={ip}] [--user-defaults] [--client-defaults] [--ip-defaults]"
)

CHANGES: Final = (
    Change("user-add", "Add an account", "user add {name} --password-file -", asks="Password of the account"),
    Change(
        "user-password",
        "Give an account another password",
        "user passwd {name} --password-file -",
        "Clients that have the old one are let in no more.",
        asks="New password",
    ),
    Change(
        "user-delete",
        "Delete an account",
        "user delete {name} --yes",
        "Its connections end at once; its rules stay.",
    ),
    Change("rule-add", "Add a rule", f"acl add {_RULES}"),
    Change("rule-remove", "Delete rules", f"acl remove {_RULES} --yes", look=f"acl list {_RULES}"),
    Change(
        "rules-enable",
        "Put rules in force",
        "acl enable --yes",
        "From then on everybody may do what a rule allows, and nothing else.",
        look="acl enable",
    ),
    Change(
        "rules-disable",
        "Do without rules",
        "acl disable --yes",
        "From then on everybody may produce and consume, whatever rules say.",
    ),
    Change("quota-set", "Set a quota", f"quota set {{key}}={{value}} {_WHOM}"),
    Change("quota-remove", "Take quotas back", f"quota remove [{{key}}] {_WHOM}"),
)
