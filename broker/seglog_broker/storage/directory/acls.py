"""``seglog-acls.json``: the rules of access (ACLs), each a list of names, in the order in which they were made.

The file is written before a change is in force. Nothing replaces it, so a start is refused while it cannot be
understood.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import not_understood, seal_members, unseal_version
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule, Rules
from seglog_protocol.errors import PolicyViolationError
from seglog_protocol.steps import Pace, Steps, finished

ACLS_MAX: Final = 10_000
"""The most rules: the file is written as a whole."""

ACL_CHARACTERS_MAX: Final = 1_000
"""Of the name, the principal and the host of a rule together."""

_VERSION: Final = 1
_KEYS: Final = frozenset({"version", "acls"})
_FIELDS: Final = len(Rule._fields)


class Plan(NamedTuple):
    """The rules as they will be."""

    rules: Rules
    texts: dict[Rule, str]
    """Their entries in the file."""


class AclStore:
    """The rules of one log directory. A change is planned, written, which a thread may do, and adopted."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """With no rules; ``load`` reads the file ``path``."""
        self._fs = fs
        self._path = path
        self._texts: dict[Rule, str] = {}
        self.rules = Rules()

    def load(self) -> None:
        """Read the file; no rules where there is none. Raises OSError, and LogDirectoryError if it is malformed."""
        if not self._fs.exists(self._path):
            return
        try:
            rules = decode_acls(read_file(self._fs, self._path))
        except ValueError as error:
            raise not_understood(self._path, str(error), "start without rules, and make them anew") from error
        self.adopt(finished(self.planned(rules)))

    def planned(self, added: Iterable[Rule], removed: Iterable[Rule] = ()) -> Steps[Plan]:
        """The rules with ``added`` and without ``removed``. Raises PolicyViolationError where there would be too many.

        The next plan is made when this one is in force, or given up.
        """
        rules = yield from self.rules.changed(added, removed)
        if len(rules) > max(ACLS_MAX, len(self.rules)):
            raise PolicyViolationError(f"there would be {len(rules):,} ACLs, and at most {ACLS_MAX:,} are possible")
        texts = {}
        pace = Pace()
        for rule in rules:
            texts[rule] = self._texts.get(rule) or _text(rule)
            if pace.is_due():
                yield
        return Plan(rules, texts)

    def write(self, plan: Plan) -> None:
        """Replace the file; return when it survives a power cut. May run in a thread. Raises OSError.

        After an error the file has its former content or the new one.
        """
        write_file_atomically(self._fs, self._path, encode_acls(plan.texts.values()))

    def adopt(self, plan: Plan) -> None:
        """Put a written plan in force."""
        self.rules, self._texts = plan

    def change(self, added: Iterable[Rule], removed: Iterable[Rule] = ()) -> None:
        """Plan, write and adopt at once, where nothing else runs. Raises what these raise."""
        plan = finished(self.planned(added, removed))
        self.write(plan)
        self.adopt(plan)


def why_not_kept(rule: Rule) -> str | None:
    """Why there can be no such rule, as a sentence; None if there can."""
    impossible = rule.why_impossible()
    if impossible is None and len(rule.name) + len(rule.principal) + len(rule.host) > ACL_CHARACTERS_MAX:
        return f"The name, the principal and the host of an ACL have at most {ACL_CHARACTERS_MAX:,} characters together"
    return impossible


def encode_acls(texts: Iterable[str]) -> bytes:
    """The file with the entries of rules."""
    joined = ",\n  ".join(texts)
    return seal_members((f'"version": {_VERSION}', f'"acls": [\n  {joined}\n ]' if joined else '"acls": []'))


def decode_acls(content: bytes) -> list[Rule]:
    """The rules in a file. Raises ValueError; its message is the end of a sentence."""
    found = unseal_version(content, _KEYS, _VERSION).get("acls")
    if not isinstance(found, list):
        raise ValueError("it has no ACLs")  # noqa: TRY004 - the content of a file
    return [_rule(entry) for entry in found]


def _rule(entry: Any) -> Rule:
    if not isinstance(entry, list) or len(entry) != _FIELDS or not all(isinstance(each, str) for each in entry):
        raise ValueError("an ACL has another form")
    kind, pattern, name, principal, host, operation, permission = entry
    try:
        rule = Rule(
            Kind[kind], PatternType[pattern], name, principal, host, Operation[operation], Permission[permission]
        )
    except KeyError as error:
        raise ValueError(f"an ACL has {error.args[0][:60]!r}, which is not known") from None
    if (problem := rule.why_impossible()) is not None:
        raise ValueError(f"an ACL is not possible: {problem[:200]}")
    return rule


def _text(rule: Rule) -> str:
    """A rule's line in the file."""
    named = (rule.kind.name, rule.pattern.name, *rule[2:5], rule.operation.name, rule.permission.name)
    return json.dumps(named, ensure_ascii=False)
