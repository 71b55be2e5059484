"""``seglog-acls.json``: what is written is read back, and another file is refused."""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.storage.directory.acls import (
    ACL_CHARACTERS_MAX,
    ACLS_MAX,
    AclStore,
    decode_acls,
    encode_acls,
    why_not_kept,
)
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.io.small_files import seal
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.access import Kind, Operation, PatternType, Permission, Rule
from seglog_protocol.errors import LogDirectoryError, PolicyViolationError
from tests.support import each_case, examples

PATH: Final = "/data/seglog-acls.json"
RULE: Final = Rule(Kind.TOPIC, PatternType.PREFIXED, "orders", "User:ann", "*", Operation.READ, Permission.ALLOW)
NAMED: Final = ["TOPIC", "PREFIXED", "orders", "User:ann", "*", "READ", "ALLOW"]
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
RULES = st.builds(
    Rule,
    st.sampled_from([Kind.TOPIC, Kind.USER]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    TEXTS,
    TEXTS.map("User:{}".format),
    TEXTS.filter(lambda text: "/" not in text),
    st.sampled_from([each for each in Operation if each > Operation.ANY]),
    st.sampled_from([Permission.DENY, Permission.ALLOW]),
)


def disk() -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.make_directory("/data")
    fs.sync_directory("/")
    return fs


def opened(fs: ForgetfulFileSystem) -> AclStore:
    store = AclStore(fs, PATH)
    store.load()
    return store


@settings(max_examples=examples(200))
@given(st.lists(RULES, max_size=5), st.lists(RULES, max_size=5))
def test_what_was_changed_is_there_after_a_power_cut(added: list[Rule], more: list[Rule]) -> None:
    fs = disk()
    store = opened(fs)
    store.change(added)
    store.change(more, added[:2])
    assert list(opened(fs.found_after(POWER_LOSS)).rules) == list(store.rules)


def test_no_more_rules_are_kept_than_the_file_is_for() -> None:
    store = opened(disk())
    many = [RULE._replace(name=f"t{number}") for number in range(ACLS_MAX)]
    store.change(many)
    with pytest.raises(PolicyViolationError, match="10,001 ACLs"):
        store.change([RULE])
    store.change([RULE], many[:1])
    assert len(opened(store._fs).rules) == ACLS_MAX  # type: ignore[arg-type] # the disk of above


def test_a_rule_has_no_more_characters_than_can_be_kept() -> None:
    room = ACL_CHARACTERS_MAX - len(RULE.principal) - len(RULE.host)
    assert why_not_kept(RULE._replace(name="x" * room)) is None
    assert "1,000 characters" in (why_not_kept(RULE._replace(name="x" * (room + 1))) or "")
    assert why_not_kept(RULE._replace(name="")) == "Invalid empty resource name"


@each_case(
    ("content", "why"),
    [
        (b"{", "it is not JSON"),
        (seal({"version": 2, "acls": []}), "version 2 is not known"),
        (seal({"version": 1}), "it has no ACLs"),
        (seal({"version": 1, "acls": {}}), "it has no ACLs"),
        (seal({"version": 1, "acls": [NAMED[:6]]}), "an ACL has another form"),
        (seal({"version": 1, "acls": [[*NAMED[:6], 3]]}), "an ACL has another form"),
        (seal({"version": 1, "acls": [["QUEUE", *NAMED[1:]]]}), "an ACL is not possible: Invalid resourceType UNKNOWN"),
        (seal({"version": 1, "acls": [["ANY", *NAMED[1:]]]}), "an ACL is not possible: Invalid resourceType ANY"),
    ],
)
def test_a_file_that_is_not_understood_is_refused_and_stays(content: bytes, why: str) -> None:
    fs = disk()
    write_file_atomically(fs, PATH, content)
    with pytest.raises(LogDirectoryError, match=f"seglog-acls.json cannot be understood .{why}"):
        opened(fs)


def test_the_file_is_as_the_document_shows_it() -> None:
    content = encode_acls([RULE])
    assert decode_acls(content) == [RULE]
    assert content.startswith(b'{\n "version": 1,\n "acls": [\n  ["TOPIC", "PREFIXED", "orders", "User:ann", "*", ')
