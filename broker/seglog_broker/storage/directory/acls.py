"""``seglog-acls.json``: the rules of access (ACLs), each a list of names, in the order in which they were made.

The file is written before a change is in force. Nothing replaces it, so a start is refused while it cannot be
understood.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import not_understood, seal_members, unseal_version
from seglog_protocol.access import Rule, Rules, told
from seglog_protocol.errors import PolicyViolationError
from seglog_protocol.steps import Steps, finished

ACLS_MAX: Final = 10_000
"""The most rules: the file is written as a whole."""

ACL_CHARACTERS_MAX: Final = 1_000
"""Of the name, the principal and the host of a rule together."""

_VERSION: Final = 1
_KEYS: Final = frozenset({"version", "acls"})
_FIELDS: Final = len(Rule._fields)


class AclStore:
    """The rules of one log directory. A change is planned, and written, which a thread may do, before it counts."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """With no rules; ``load`` reads the file ``path``."""
        self._fs = fs
        self._path = path
        self.rules = Rules()
        """Those that were read, or that whoever has written others has put here."""

    def load(self) -> None:
        """Read the file; no rules where there is none. Raises OSError, and LogDirectoryError if it is malformed."""
        if not self._fs.exists(self._path):
            return
        try:
            self.rules = Rules.of(decode_acls(read_file(self._fs, self._path)))
        except ValueError as error:
            raise not_understood(self._path, str(error), "start without rules, and make them anew") from error

    def planned(self, added: Iterable[Rule], removed: Iterable[Rule] = ()) -> Steps[Rules]:
        """The rules without ``removed`` and with ``added``. Raises PolicyViolationError for more than ACLS_MAX."""
        rules = yield from self.rules.changed(added, removed)
        if len(rules) > max(ACLS_MAX, len(self.rules)):
            raise PolicyViolationError(f"there would be {len(rules):,} ACLs, and at most {ACLS_MAX:,} are possible")
        return rules

    def write(self, rules: Rules) -> None:
        """Replace the file; return when it survives a power cut. May run in a thread. Raises OSError.

        After an error the file has its former content or the new one.
        """
        write_file_atomically(self._fs, self._path, encode_acls(rules))

    def change(self, added: Iterable[Rule], removed: Iterable[Rule] = ()) -> None:
        """Plan, write and adopt at once, where nothing else runs. Raises what these raise."""
        rules = finished(self.planned(added, removed))
        self.write(rules)
        self.rules = rules


def why_not_kept(rule: Rule) -> str | None:
    """Why there can be no such rule, as a sentence; None if there can."""
    impossible = rule.why_impossible()
    if impossible is None and len(rule.name) + len(rule.principal) + len(rule.host) > ACL_CHARACTERS_MAX:
        return f"The name, the principal and the host of an ACL have at most {ACL_CHARACTERS_MAX:,} characters together"
    return impossible


def encode_acls(rules: Iterable[Rule]) -> bytes:
    """The file with these rules."""
    joined = ",\n  ".join(map(_text, rules))
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
    rule = told(Rule, *entry)
    if (problem := rule.why_impossible()) is not None:
        raise ValueError(f"an ACL is not possible: {problem[:200]}")
    return rule


@lru_cache(ACLS_MAX)
def _text(rule: Rule) -> str:
    """The line of a rule in the file, which is written with every change of others."""
    return json.dumps([getattr(each, "name", each) for each in rule], ensure_ascii=False)
