"""``seglog acl list | add | remove | check | enable | disable``: permissions, as Kafka's rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Final

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
    ABOVE_RULES,
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

_PROGRAMS: Final[Mapping[str, Mapping[Kind, Sequence[Operation]]]] = {
    "produce": {Kind.TOPIC: (Operation.WRITE, Operation.CREATE), Kind.TRANSACTIONAL_ID: (Operation.WRITE,)},
    "consume": {Kind.TOPIC: (Operation.READ,), Kind.GROUP: (Operation.READ,)},
}
"""The operations of programs, by option and kind of resource; each of these but CREATE implies DESCRIBE."""


# --- What is meant ----------------------------------------------------------------------------------------------------


def _principal(name: str) -> str:
    """The principal of an account; a principal stays as it is."""
    return name if ":" in name else f"User:{name}"


def _word(kind: str) -> str:
    """The word of this command for one of Kafka's kinds of resources."""
    return kind.lower().replace("_", "-")


def _resource(kind: str, name: str) -> str:
    """A resource as ``check`` takes it."""
    return _word(kind) if kind == Kind.CLUSTER.name else f"{_word(kind)}:{name}"


def _pattern(kind: Kind, name: str) -> tuple[Kind, PatternType, str]:
    """A resource as it is typed: a name, or the beginning of names with ``*`` behind it; ``*`` alone is all names.

    Raises UsageError for a topic that there cannot be.
    """
    if kind is Kind.TOPIC and ANY_NAME in name[:-1]:
        raise UsageError(f"no topic is named {name!r}: * stands at the end alone")
    if name.endswith(ANY_NAME) and name != ANY_NAME:
        return kind, PatternType.PREFIXED, name[:-1]
    return kind, PatternType.LITERAL, name


def _resources(options: Options) -> list[tuple[Kind, PatternType, str]]:
    """The resources that were typed."""
    typed = {
        Kind.TOPIC: options.topic,
        Kind.GROUP: options.group,
        Kind.TRANSACTIONAL_ID: options.transactional_id,
        Kind.CLUSTER: [CLUSTER] * options.cluster,
    }
    return [_pattern(kind, name) for kind, names in typed.items() for name in names]


def _check_there(operation: Operation, kind: Kind) -> None:
    """Raise UsageError for an operation that resources of a kind do not have."""
    if not OPERATIONS[kind] >> operation & 1:
        there = ", ".join(each.name for each in Operation if OPERATIONS[kind] >> each & 1)
        raise UsageError(f"there is no {operation.name} of a {_word(kind.name)}, only {there}")


def _filters(options: Options) -> Iterator[RuleFilter]:
    """Filters for what was typed; each option that is not given stands for anything.

    ``--produce`` and ``--consume`` stand for nothing with resources of a kind that they do not speak of.
    """
    programs = [program for word, program in _PROGRAMS.items() if options.values[word]]
    kinds = {kind for program in programs for kind in program} or {Kind.ANY}
    anything: list[tuple[Kind, PatternType, str | None]] = [(kind, PatternType.ANY, None) for kind in kinds]
    for kind, pattern, name in _resources(options) or anything:
        operations = [Operation[each] for each in options.operation]
        operations += [operation for program in programs for operation in program.get(kind, ())]
        for operation in operations:
            if operation is not Operation.ALL and kind is not Kind.ANY:
                _check_there(operation, kind)
        if not operations and not programs:
            operations = [Operation.ANY]
        for user, host, operation in product(
            options.for_user or [None], options.host or [None], dict.fromkeys(operations)
        ):
            principal = None if user is None else _principal(user)
            permission = Permission.DENY if options.deny else Permission.ANY
            yield RuleFilter(kind, pattern, name, principal, host, operation, permission)


def _rules(options: Options) -> list[Rule]:
    """The rules that ``add`` was asked for. Raises UsageError where something is missing."""
    resources = _resources(options)
    if not options.for_user:
        raise UsageError("--user says for whom the rule is; --user '*' is everybody")
    if not resources:
        raise UsageError("--topic, --group, --transactional-id or --cluster say for what the rule is")
    for host in options.host:
        _check_host(host)
    if options.consume and {kind for kind, _, _ in resources} == {Kind.TOPIC}:
        warn("note: a consumer in a group needs --group NAME, too")
    permission = Permission.DENY if options.deny else Permission.ALLOW
    rules = [
        Rule._make(meant._replace(host=meant.host or ANY_NAME, permission=permission))
        for meant in _filters(options)
        if meant.operation is not Operation.ANY
    ]
    for resource in resources:
        if all(rule[:3] != resource for rule in rules):
            kind, _, name = resource
            chosen = [f"--{word}" for word, program in _PROGRAMS.items() if kind in program]
            which = " or ".join([*chosen, "--operation NAME"])
            raise UsageError(f"what is it that may be done with the {_word(kind.name)} {name}? Say {which}")
    return rules


def _check_host(host: str) -> None:
    """Raise UsageError for what no client's address can match."""
    from ipaddress import ip_network

    try:
        ip_network("::/0" if host == ANY_NAME else host, strict=False)
    except ValueError:
        raise UsageError(f"--host is an address, a network such as 10.1.0.0/16, or *, not {host!r}") from None


# --- Doing it ---------------------------------------------------------------------------------------------------------


def _list(client: "Client", options: Options) -> int:
    rules = _found(client, options)
    if not options.json:
        _tell_mode(client)
    return _shown(options, rules)


def _found(client: "Client", options: Options) -> list[Rule]:
    """The rules that the options ask for."""
    from seglog.core.access import list_rules

    wanted = list(_filters(options))
    rules = [rule for rule in client.converse(list_rules()) if any(each.has(rule) for each in wanted)]
    if not rules:
        warn("note: there are no rules" if wanted == [RuleFilter()] else "note: there is no such rule")
    return rules


def _tell_mode(client: "Client") -> None:
    if not _is_enforced(client.describe_broker()):
        warn("note: rules are not in force: `seglog acl enable` puts them in force")


def _is_enforced(told: "DescribeBrokerReply") -> bool:
    return told.access is not None and told.access.enforced


def _shown(options: Options, rules: Sequence[Rule]) -> int:
    """Print rules, those that differ in the operation alone as a row."""
    titles = ("RESOURCE", "WHO", "FROM", "PERMISSION", "OPERATIONS")
    rows = [
        (
            named(resource_of(rule)),
            named(rule.principal),
            rule.host,
            rule.permission.name.lower(),
            ", ".join(operations),
        )
        for rule, operations in grouped(rules)
    ]
    return answer_table(options, [_to_json(rule) for rule in sorted(rules)], titles, rows)


def grouped(rules: Iterable[Rule]) -> list[tuple[Rule, list[str]]]:
    """One of the rules that differ in the operation alone, with the operations of all of these, in order."""
    found: dict[Rule, tuple[Rule, list[str]]] = {}
    for rule in sorted(rules):
        found.setdefault(rule._replace(operation=Operation.ALL), (rule, []))[1].append(rule.operation.name)
    return list(found.values())


def resource_of(rule: Rule) -> str:
    """The resource of a rule as ``seglog acl`` writes it: ``topic:orders*``, ``cluster``."""
    return _resource(rule.kind.name, rule.shown_name)


def _to_json(rule: Rule) -> dict[str, Any]:
    """A rule in Kafka's words."""
    return {field: getattr(value, "name", value) for field, value in rule._asdict().items()}


def _add(client: "Client", options: Options) -> int:
    from seglog.core.access import create_rules

    rules = _rules(options)
    client.converse(create_rules(rules))
    accounts = {_principal(user.name) for user in client.users()} | {_principal(ANY_NAME), "User:ANONYMOUS"}
    for principal in sorted({rule.principal for rule in rules} - accounts):
        warn(f"note: there is no account of {printable(principal)}; by a token or certificate it needs none")
    _tell_mode(client)
    return _shown(options, rules)


def _remove(client: "Client", options: Options) -> int:
    from seglog.core.access import delete_rules

    if list(_filters(options)) == [RuleFilter()]:
        raise UsageError("say which rules: by --user, --topic, --group, --transactional-id, --cluster, --host, --deny")
    rules = _found(client, options)
    if rules and not is_confirmed(options, lambda: f"Delete {count_of(len(rules), 'rule')}?"):
        warn("no rule is deleted")
        return FAILED
    return _shown(options, client.converse(delete_rules(rules)))


def _check(client: "Client", options: Options) -> int:
    from seglog.core.access import list_rules

    told = client.describe_broker()
    principal, operation = _principal(options.who), Operation[options.what]
    rules = client.converse(list_rules())
    decision = decide(told, rules, principal, options.from_host, operation, options.resource)
    if not _is_enforced(told):
        warn("note: rules are not in force: so it will be once `seglog acl enable` has put them in force")
    is_allowed, why = decision
    facts = {
        "allowed": is_allowed,
        "why": f"the rule {why}" if isinstance(why, Rule) else why,
        "rule": _to_json(why) if isinstance(why, Rule) else None,
        "enforced": _is_enforced(told),
    }
    may = "may" if is_allowed else "may not"
    answer(options, facts, printable(f"{principal} {may} {operation.name} {options.resource}: {facts['why']}"))
    return OK if is_allowed else FAILED


def decide(
    told: "DescribeBrokerReply", rules: Sequence[Rule], who: str, host: str, operation: Operation, resource: str
) -> Decision:
    """The decision about an account, or principal, that does something. Raises UsageError for what there cannot be."""
    word, _, name = resource.partition(":")
    kind, principal = Kind.__members__.get(word.upper().replace("-", "_"), Kind.UNKNOWN), _principal(who)
    if kind not in OPERATIONS or not (name or kind is Kind.CLUSTER):
        raise UsageError(f"RESOURCE is cluster, topic:NAME, group:NAME or transactional-id:NAME, not {resource!r}")
    _check_there(operation, kind)
    if principal in told.config["super.users"].value.split(";"):
        return Decision(is_allowed=True, why=ABOVE_RULES)
    is_open = told.config["allow.everyone.if.no.acl.found"].value == "true"
    asked = CLUSTER if kind is Kind.CLUSTER else name
    return Rules.of(rules).decide(principal, host, operation, kind, asked, is_open=is_open)


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
    if not options.json:
        warn("no rule allows what these have done lately:" if refused else "rules allow all that was done lately")
    rows = [(named(each.principal), each.operation, named(_resource(each.resource, each.name))) for each in refused]
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
