"""``seglog acl list | add | remove | check | enable | disable``: permissions, as Kafka's rules."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Group, Option, flag
from seglog.cli.common import answer, answer_table, is_confirmed, warn
from seglog.cli.exits import FAILED, OK, UsageError
from seglog.cli.option_types import GROUP_NAME
from seglog.cli.parameters import client_command, completed, for_user, yes
from seglog.cli.tables import named
from seglog.core.errors import count_of
from seglog_protocol.access import (
    ANY_NAME,
    CLUSTER,
    OPERATIONS,
    Decision,
    Kind,
    Operation,
    PatternType,
    Permission,
    Rule,
    RuleFilter,
    Rules,
)
from seglog_protocol.texts import printable

if TYPE_CHECKING:
    from seglog.client import Client
    from seglog_protocol.messages import DescribeBrokerReply

_KINDS: Final = {
    "topic": Kind.TOPIC,
    "group": Kind.GROUP,
    "transactional-id": Kind.TRANSACTIONAL_ID,
    "cluster": Kind.CLUSTER,
    "delegation-token": Kind.DELEGATION_TOKEN,
    "user": Kind.USER,
}
"""The kinds of resources in words of this command."""

_WORDS: Final = {kind: word for word, kind in _KINDS.items()}

_PRODUCE: Final = {
    Kind.TOPIC: (Operation.WRITE, Operation.CREATE),
    Kind.TRANSACTIONAL_ID: (Operation.WRITE,),
}
_CONSUME: Final = {Kind.TOPIC: (Operation.READ,), Kind.GROUP: (Operation.READ,)}
"""The operations of programs that produce and consume; each of these implies DESCRIBE."""


# --- What is meant ----------------------------------------------------------------------------------------------------


def _principal(name: str) -> str:
    """The principal of an account; a principal stays as it is."""
    return name if ":" in name else f"User:{name}"


def _pattern(kind: Kind, name: str) -> tuple[Kind, PatternType, str]:
    """A resource as it is typed: a name, or the beginning of names with ``*`` behind it; ``*`` alone is all names.

    Raises UsageError for a topic that there cannot be.
    """
    if kind is Kind.CLUSTER:
        return kind, PatternType.LITERAL, CLUSTER
    if kind is Kind.TOPIC and ANY_NAME in name[:-1]:
        raise UsageError(f"no topic is named {name!r}: * stands at the end alone")
    if name.endswith(ANY_NAME) and name != ANY_NAME:
        return kind, PatternType.PREFIXED, name[:-1]
    return kind, PatternType.LITERAL, name


def _resources(options: Options) -> list[tuple[Kind, PatternType, str]]:
    """The resources that were typed."""
    named_ = {Kind.TOPIC: options.topic, Kind.GROUP: options.group, Kind.TRANSACTIONAL_ID: options.transactional_id}
    found = [_pattern(kind, name) for kind, names in named_.items() for name in names]
    return [*found, _pattern(Kind.CLUSTER, "")] if options.cluster else found


def _operations(options: Options, kind: Kind) -> list[Operation]:
    """The operations that were asked for with resources of a kind."""
    asked = [Operation[name] for name in options.operation]
    for chosen, operations in ((options.produce, _PRODUCE), (options.consume, _CONSUME)):
        asked += operations.get(kind, ()) if chosen else ()
    for operation in asked:
        if operation is not Operation.ALL:
            _check_there(operation, kind)
    return list(dict.fromkeys(asked))


def _check_there(operation: Operation, kind: Kind) -> None:
    """Raise UsageError for an operation that resources of a kind do not have."""
    if not OPERATIONS[kind] >> operation & 1:
        there = ", ".join(each.name for each in Operation if OPERATIONS[kind] >> each & 1)
        raise UsageError(f"there is no {operation.name} of a {_WORDS[kind]}, only {there}")


def _permission(options: Options) -> Permission:
    """DENY with ``--deny``."""
    return Permission.DENY if options.deny else Permission.ALLOW


def _rules(options: Options) -> list[Rule]:
    """The rules that ``add`` was asked for. Raises UsageError where something is missing."""
    resources = _resources(options)
    if not options.for_user:
        raise UsageError("--user says for whom the rule is; --user '*' is everybody")
    if not resources:
        raise UsageError("--topic, --group, --transactional-id or --cluster say for what the rule is")
    for host in options.host:
        _check_host(host)
    kinds = {kind for kind, _, _ in resources}
    if options.consume and kinds == {Kind.TOPIC}:
        warn("note: a consumer in a group needs --group NAME, too")
    rules = []
    for kind, pattern, name in resources:
        operations = _operations(options, kind)
        if not operations:
            chosen = [word for word, there in (("--produce", _PRODUCE), ("--consume", _CONSUME)) if kind in there]
            which = " or ".join([*chosen, "--operation NAME"])
            raise UsageError(f"what is it that may be done with the {_WORDS[kind]} {name}? Say {which}")
        rules += [
            Rule(kind, pattern, name, _principal(user), host, operation, _permission(options))
            for user in options.for_user
            for host in options.host or [ANY_NAME]
            for operation in operations
        ]
    return rules


def _check_host(host: str) -> None:
    """Raise UsageError for what no client's address can match."""
    from ipaddress import ip_network

    if host == ANY_NAME:
        return
    try:
        ip_network(host, strict=False)
    except ValueError:
        raise UsageError(f"--host is an address, a network such as 10.1.0.0/16, or *, not {host!r}") from None


def _filters(options: Options) -> Iterator[RuleFilter]:
    """Filters for what was typed; each option that is not given stands for anything.

    ``--produce`` and ``--consume`` stand for nothing with resources of a kind that they do not speak of.
    """
    programs = options.produce or options.consume
    kinds = [*_PRODUCE, Kind.GROUP] if programs else [Kind.ANY]
    anything: list[tuple[Kind, PatternType, str | None]] = [(kind, PatternType.ANY, None) for kind in kinds]
    for kind, pattern, name in _resources(options) or anything:
        asked = _operations(options, kind) if kind is not Kind.ANY else [Operation[each] for each in options.operation]
        for operation in asked or ([] if programs else [Operation.ANY]):
            for user in options.for_user or [None]:
                for host in options.host or [None]:
                    principal = None if user is None else _principal(user)
                    permission = Permission.DENY if options.deny else Permission.ANY
                    yield RuleFilter(kind, pattern, name, principal, host, operation, permission)


# --- Doing it ---------------------------------------------------------------------------------------------------------


def _found(client: "Client", options: Options) -> list[Rule]:
    """The rules that the options ask for."""
    from seglog.core.access import all_of, list_rules

    rules = all_of(client.converse(list_rules(RuleFilter())), _filters(options))
    if not rules:
        warn("note: there is no such rule" if _is_narrowed(options) else "note: there are no rules")
    return rules


def _is_narrowed(options: Options) -> bool:
    """True where an option says of which rules the command speaks."""
    said = (options.for_user, options.host, options.operation, options.produce, options.consume, options.deny)
    return bool(_resources(options) or any(said))


def _list(client: "Client", options: Options) -> int:
    rules = _found(client, options)
    if not options.json and not _is_enforced(client.describe_broker()):
        warn("note: rules are not in force: `seglog acl enable` puts them in force")
    return _shown(options, rules)


def _shown(options: Options, rules: Sequence[Rule]) -> int:
    """Print rules, those that differ in the operation alone as a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for rule in sorted(rules):
        key = _resource(rule), rule.principal, rule.host, rule.permission.name.lower()
        rows.setdefault(key, []).append(rule.operation.name)
    titles = ("RESOURCE", "WHO", "FROM", "PERMISSION", "OPERATIONS")
    shown = [(named(key[0]), named(key[1]), *key[2:], ", ".join(operations)) for key, operations in rows.items()]
    return answer_table(options, [_to_json(rule) for rule in sorted(rules)], titles, shown)


def _resource(rule: Rule) -> str:
    """The resource of a rule, as ``check`` takes it, with ``*`` behind the beginning of names."""
    name = "" if rule.kind is Kind.CLUSTER else f":{rule.name}{'*' if rule.pattern is PatternType.PREFIXED else ''}"
    return f"{_WORDS.get(rule.kind, rule.kind.name.lower())}{name}"


def _typed(kind: str, name: str) -> str:
    """A resource of the broker's own words, as ``check`` takes it."""
    word = kind.lower().replace("_", "-")
    return word if kind == Kind.CLUSTER.name else f"{word}:{name}"


def _to_json(rule: Rule) -> dict[str, str]:
    return {
        "resource": _WORDS.get(rule.kind, rule.kind.name.lower()),
        "pattern": rule.pattern.name.lower(),
        "name": rule.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name,
        "permission": rule.permission.name.lower(),
    }


def _add(client: "Client", options: Options) -> int:
    from seglog.core.access import create_rules

    rules = _rules(options)
    client.converse(create_rules(rules))
    accounts = {_principal(user.name) for user in client.users()} | {_principal(ANY_NAME), "User:ANONYMOUS"}
    for principal in sorted({rule.principal for rule in rules} - accounts):
        warn(f"note: there is no account of {printable(principal)}; by a token or certificate it needs none")
    if not _is_enforced(client.describe_broker()):
        warn("note: rules are not in force: `seglog acl enable` puts them in force")
    return _shown(options, rules)


def _remove(client: "Client", options: Options) -> int:
    from seglog.core.access import delete_rules

    if not _is_narrowed(options):
        raise UsageError("say which rules: by --user, --topic, --group, --transactional-id, --cluster, --host, --deny")
    rules = _found(client, options)
    if rules and not is_confirmed(options, lambda: f"Delete {count_of(len(rules), 'rule')}?"):
        warn("no rule is deleted")
        return FAILED
    return _shown(options, client.converse(delete_rules(rules)))


def _check(client: "Client", options: Options) -> int:
    from seglog.core.access import list_rules

    kind_word, _, name = options.resource.partition(":")
    kind = _KINDS.get(kind_word)
    if kind is None or not (name or kind is Kind.CLUSTER):
        raise UsageError(
            f"RESOURCE is cluster, topic:NAME, group:NAME or transactional-id:NAME, not {options.resource!r}"
        )
    operation, principal = Operation[options.what], _principal(options.who)
    _check_there(operation, kind)
    told = client.describe_broker()
    rules = Rules.of(client.converse(list_rules(RuleFilter())))
    host = options.from_host
    decision = rules.decide(principal, host, operation, kind, CLUSTER if kind is Kind.CLUSTER else name)
    is_super = principal in _value(told, "super.users").split(";")
    is_allowed, why = _judged(decision, is_super=is_super, is_open=_value(told, _UNRULED) == "true")
    sentence = f"{principal} {'may' if is_allowed else 'may not'} {operation.name} {options.resource}: {why}"
    facts = {"allowed": is_allowed, "why": why, "rule": None if decision.rule is None else _to_json(decision.rule)}
    if not _is_enforced(told):
        warn("note: rules are not in force: so it will be once `seglog acl enable` has put them in force")
    answer(options, facts | {"enforced": _is_enforced(told)}, printable(sentence))
    return OK if is_allowed else FAILED


def _judged(decision: Decision, *, is_super: bool, is_open: bool) -> tuple[bool, str]:
    """The answer, and the reason for it."""
    if is_super:
        return True, "it is one of super.users, which no rule stops"
    if decision.rule is not None:
        return decision.is_allowed, f"the rule {decision.rule}"
    if is_open and not decision.has_rules:
        return True, f"no rule is for the resource, and {_UNRULED} is true"
    return False, "no rule allows it"


def _enable(client: "Client", options: Options) -> int:
    from seglog.core.access import enforce_rules

    told = client.describe_broker()
    if _is_enforced(told):
        return answer(options, {"enforced": True, "refused": []}, "rules are in force already")
    refused = [] if told.access is None else told.access.refused_if_enforced
    shown = [each.to_wire() for each in refused]
    if options.yes:
        client.converse(enforce_rules(is_on=True))
        return answer(options, {"enforced": True, "refused": shown}, "rules are in force")
    if told.access is None:
        warn("note: this account is not told what rules would refuse")
    elif not options.json:
        warn("no rule allows what these have done lately:" if refused else "rules allow all that was done lately")
    rows = [(named(each.principal), each.operation, named(_typed(each.resource, each.name))) for each in refused]
    answer_table(options, shown, ("WHO", "OPERATION", "RESOURCE"), rows)
    warn("nothing is changed: `seglog acl enable --yes` puts rules in force")
    return FAILED


def _disable(client: "Client", options: Options) -> int:
    from seglog.core.access import enforce_rules

    if not _is_enforced(client.describe_broker()):
        return answer(options, {"enforced": False}, "rules are not in force")
    if not is_confirmed(options, lambda: "Let everybody produce and consume, whatever rules say?"):
        warn("rules stay in force")
        return FAILED
    client.converse(enforce_rules(is_on=False))
    if _is_enforced(client.describe_broker()):
        warn("rules stay in force: the broker's configuration file has authorizer.class.name")
        return FAILED
    return answer(options, {"enforced": False}, "rules are not in force any more; they are kept")


_UNRULED: Final = "allow.everyone.if.no.acl.found"


def _value(told: "DescribeBrokerReply", key: str) -> str:
    return told.config[key].value


def _is_enforced(told: "DescribeBrokerReply") -> bool:
    """True while rules are in force."""
    from seglog.core.access import SWITCH

    return bool(_value(told, SWITCH))


# --- Commands ---------------------------------------------------------------------------------------------------------


def _said(name: str, metavar: str, summary: str, kind: str | None = None) -> Option:
    complete = None if kind is None else completed(kind)
    text = f"{summary}; repeatable."
    return Option([name], multiple=True, metavar=metavar, type=GROUP_NAME, help=text, shell_complete=complete)


def _which(*more: click.Parameter) -> list[click.Parameter]:
    """Options that say of which rules a command speaks."""
    operations = click.Choice([each.name for each in Operation if each > Operation.ANY], case_sensitive=False)
    return [
        for_user("The account, or * for everybody; repeatable.", multiple=True, type=GROUP_NAME),
        _said("--topic", "NAME", "A topic, or with * behind it all that begin so", "topics"),
        _said("--group", "NAME", "A group of consumers, or of workers on a queue, in the same way", "groups"),
        _said("--transactional-id", "NAME", "A transactional id, in the same way"),
        flag("--cluster", "The broker itself."),
        flag("--produce", "WRITE and CREATE of topics, WRITE of transactional ids."),
        flag("--consume", "READ of topics and groups."),
        Option(["--operation"], multiple=True, type=operations, metavar="NAME", help="An operation; repeatable."),
        _said("--host", "ADDRESS", "The address, or network (10.1.0.0/16), of its clients"),
        flag("--deny", "Rules that refuse, which count before all that allow."),
        *more,
    ]


COMMAND: Final = Group(
    "acl",
    [
        client_command("list", _list, "List rules.", *_which()),
        client_command(
            "add",
            _add,
            "Add rules.\n\nSomebody may do what a rule allows, and no rule refuses.",
            *_which(),
            example="seglog acl add --user ann --topic 'orders*' --group workers --consume",
        ),
        client_command("remove", _remove, "Delete the rules that match.", *_which(yes())),
        client_command(
            "check",
            _check,
            "Tell whether an account may do something, and which rule decides.\n\nIt exits with 1 where it may not.",
            click.Argument(["who"], metavar="USER", help="The account.", shell_complete=completed("users")),
            click.Argument(
                ["what"],
                metavar="OPERATION",
                type=click.Choice([each.name for each in Operation if each > Operation.ALL], case_sensitive=False),
                help="READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ...",
            ),
            click.Argument(["resource"], help="A topic:NAME, group:NAME, transactional-id:NAME, or the cluster."),
            Option(["--host", "from_host"], metavar="ADDRESS", default="127.0.0.1", help="Where its client is."),
            example="seglog acl check ann READ topic:orders",
        ),
        client_command(
            "enable",
            _enable,
            "Put rules in force, also over restarts.\n\nIt lists who was seen to do what no rule allows, and changes "
            "nothing without --yes.",
            flag("--yes", "Do it."),
        ),
        client_command("disable", _disable, "Do without rules again; they are kept.", yes()),
    ],
)
