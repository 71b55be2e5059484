"""``seglog-accounts.json`` and ``seglog-configs.json``: what is written is read back; others are refused."""

import errno
import json
import re
from base64 import b64encode
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config.dynamic_config import ALL_BROKERS, DynamicConfig
from seglog_broker.config.group_keys import GROUP_KEYS
from seglog_broker.security.credentials import from_salted
from seglog_broker.storage.directory.accounts import (
    ACCOUNTS_MAX,
    NAME_CHARACTERS_MAX,
    AccountStore,
    Change,
    Credential,
    decode_accounts,
    for_password,
)
from seglog_broker.storage.directory.dynamic_configs import (
    decode_dynamic_configs,
    encode_dynamic_configs,
    read_dynamic_configs,
)
from seglog_broker.storage.io.filesystem import write_file_atomically
from seglog_broker.storage.io.small_files import seal
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, CrashPolicy, Fault, ForgetfulFileSystem
from seglog_protocol.errors import InvalidConfigError, LogDirectoryError, PolicyViolationError
from seglog_protocol.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, ClientQuotas, entity_of
from seglog_protocol.scram import HASHES, salted
from seglog_protocol.steps import finished
from tests.support import REPOSITORY, each_case, examples
from tests.unit.broker.storage.directory.directories import opened as open_directory

PATH: Final = "/data/seglog-accounts.json"
CONFIGS: Final = "/data/seglog-configs.json"
OLD: Final = DynamicConfig({ALL_BROKERS: {"num.partitions": "3"}})
NEW: Final = OLD.with_broker("1", {"log.retention.ms": "-1", "log.cleanup.policy": "compact,delete"}).with_group(
    "g", {"consumer.session.timeout.ms": "50000"}
)
KEYS: Final = {"sha256": 32, "sha512": 64}


def credential(mechanism: str = "SCRAM-SHA-256", iterations: int = 4096, salt: bytes = b"salt") -> Credential:
    size = KEYS[HASHES[mechanism]]
    return Credential(mechanism, iterations, salt, b"S" * size, b"V" * size)


def change(name: str, mechanism: str = "SCRAM-SHA-256", *, deletes: bool = False) -> Change:
    return Change(name, mechanism, None if deletes else credential(mechanism))


def disk() -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.make_directory("/data")
    fs.sync_directory("/")
    return fs


def opened(fs: ForgetfulFileSystem) -> AccountStore:
    store = AccountStore(fs, PATH)
    store.load()
    return store


def put(store: AccountStore, *changes: Change) -> None:
    store.change(changes)


def content_of(store: AccountStore) -> dict[str, dict[str, Credential]]:
    return {name: dict(store.account(name) or {}) for name in store.names()}


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
credentials = st.builds(
    credential,
    st.sampled_from(sorted(HASHES)),
    st.integers(1, 2**40),
    st.binary(min_size=1, max_size=40),
)
changes = st.lists(
    st.builds(
        lambda name, made, deletes: Change(name, made.mechanism, None if deletes else made),
        st.sampled_from(["a", "b", "c", "ü"]) | names,
        credentials,
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(changes, max_size=5))
def test_what_is_written_is_read_back(rounds: list[list[Change]]) -> None:
    """Beside a plain map of maps, in rounds; also how often each shape occurs is what the accounts give."""
    fs = disk()
    store = opened(fs)
    expected: dict[str, dict[str, Credential]] = {}
    gone: list[str] = []
    store.on_deleted.append(gone.append)
    for each in rounds:
        before = set(expected)
        for name, mechanism, made in each:
            account = expected.setdefault(name, {})
            account.pop(mechanism, None)
            if made is not None:
                account[mechanism] = made
        for name in [name for name, account in expected.items() if not account]:
            del expected[name]
        gone.clear()
        put(store, *each)
        assert content_of(store) == expected
        assert {name for name in gone if name in before} == before - set(expected)
        again = opened(fs)
        if expected:
            assert content_of(again) == expected
            assert again.secret == store.secret
        assert again.shapes == store.shapes
        assert again.password_shapes == store.password_shapes
        assert sum(store.password_shapes.values()) == len(store) == len(expected)


def test_an_account_is_checked_by_its_shorter_hash_where_it_has_both() -> None:
    both = {mechanism: credential(mechanism) for mechanism in reversed(list(HASHES))}
    assert for_password(both).mechanism == "SCRAM-SHA-256"
    assert for_password({"SCRAM-SHA-512": credential("SCRAM-SHA-512")}).mechanism == "SCRAM-SHA-512"


def test_without_a_file_there_are_no_accounts() -> None:
    store = opened(disk())
    assert len(store) == 0
    assert not store.has("alice")
    assert store.account("alice") is None
    assert store.credential("alice", "SCRAM-SHA-256") is None


def test_nothing_that_is_shown_has_a_key_or_a_salt() -> None:
    made = Credential(
        "SCRAM-SHA-256", 4096, b"salty", b"secret key " * 2 + b"0123456789", b"server key " * 2 + b"x" * 10
    )
    assert repr(made) == "Credential(mechanism='SCRAM-SHA-256', iterations=4096)"


def test_so_many_accounts_are_possible_and_not_one_more() -> None:
    store = opened(disk())
    put(store, *(change(f"u{number}") for number in range(ACCOUNTS_MAX)))
    with pytest.raises(PolicyViolationError, match="10,001 accounts"):
        finished(store.planned([change("one more")]))
    put(store, change("u1"), change("u2", deletes=True), change("another"))
    assert len(store) == ACCOUNTS_MAX == len(opened(store._fs))  # type: ignore[arg-type]


def _file(**facts: Any) -> bytes:
    return seal({"version": 1, "secret": b64encode(b"x" * 32).decode(), "accounts": {}, **facts})


def _account(mechanism: str = "SCRAM-SHA-256", **facts: Any) -> bytes:
    key = b64encode(b"x" * 32).decode()
    whole = {"iterations": 4096, "salt": "c2FsdA==", "stored_key": key, "server_key": key, **facts}
    return _file(accounts={"alice": {mechanism: whole}})


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.booleans() | st.integers(0, 5000) | st.sampled_from(["eHg=", b64encode(b"x" * 32).decode()]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        *("version", "secret", "accounts", "a", "SCRAM-SHA-256"),
                        *("iterations", "salt", "stored_key", "server_key"),
                    ]
                ),
                inner | st.just(1),
                max_size=4,
            )
        ),
    ).map(
        lambda value: _file(**value) if isinstance(value, dict) and "crc" not in value else json.dumps(value).encode()
    )
)
def test_any_content_is_accounts_or_refused_with_a_sentence(content: bytes) -> None:
    with suppress(ValueError):
        decode_accounts(content)


@each_case(
    ("path", "content", "why"),
    [
        *(
            (path, content, why)
            for path in (PATH, CONFIGS)
            for content, why in ((b"", "not JSON"), (b"[]", "not a JSON object"), (b"{}", "no version"))
        ),
        *(
            (PATH, *row)
            for row in (
                (_file(version=2), "version 2 is not known"),
                (_file(later={}), "'later', which is not known"),
                (_file(secret="eA=="), "secret is too short"),
                (_file(secret=7), "not base64"),
                (_file(accounts=[]), "no accounts"),
                (_file(accounts={"a" * (NAME_CHARACTERS_MAX + 1): {}}), "256 characters"),
                (_file(accounts={"a": {}}), "no credentials"),
                (_file(accounts={"a": {"SCRAM-SHA-256": {}}}), "another form"),
                (_account(iterations=0), "not positive"),
                (_account(salt=b64encode(b"x" * 1025).decode()), "salt has more than 1,024 bytes"),
                (_account(stored_key="eA=="), "does not have 32 bytes"),
                (_account(server_key=b64encode(b"x" * 64).decode()), "does not have 32 bytes"),
                (_account("SCRAM-SHA-1"), "'SCRAM-SHA-1' is not a mechanism"),
                (_account(more=1), "another form"),
                (_account().replace(b"4096", b"4097"), "checksum"),
            )
        ),
        *(
            (CONFIGS, *row)
            for row in (
                (seal({"version": 2, "brokers": {}}), "version 2 is not known"),
                (seal({"version": 1, "later": {}}), "'later', which is not known"),
                (seal({"version": 1, "brokers": {"1": {"num.partitions": 7}}}), "not text"),
                (seal({"version": 1, "brokers": {"x": {}}}), "'x' is not the number of a broker"),
                (
                    seal({"version": 1, "brokers": {"1": {"log.dir": "/x"}}}),
                    "'log.dir' is not a key that can be set at run time",
                ),
                (seal({"version": 1, "brokers": {"1": {"num.partitions": "0"}}}), "must be a whole number from 1"),
                (seal({"version": 1, "groups": {"g": {"streams.session.timeout.ms": "1"}}}), "would have no effect"),
                (seal({"version": 1, "groups": {"g": {"consumer.session.timeout.ms": "x"}}}), "must be a whole number"),
                (encode_dynamic_configs(NEW).replace(b"-1", b"-2"), "checksum"),
            )
        ),
    ],
)
def test_a_file_that_is_not_understood_is_refused_and_stays(path: str, content: bytes, why: str) -> None:
    fs = disk()
    fs.load({path: content})
    for _ in range(2):
        with pytest.raises(LogDirectoryError, match=why) as caught:
            open_directory(fs).close()
        assert path in caught.value.message
        assert "c2FsdA" not in caught.value.message
        assert fs.snapshot()[path] == content


@each_case("policy", [PROCESS_KILL, POWER_LOSS, *map(RANDOM, range(5))])
def test_a_crash_after_any_operation_leaves_the_old_accounts_or_the_new_ones(policy: CrashPolicy) -> None:
    fs = disk()
    store = opened(fs)
    put(store, change("old"))
    plan = finished(store.planned([change("new"), change("old", deletes=True)]))
    found: list[list[str]] = []
    fs.on_operation = lambda _: found.append(opened(fs.found_after(policy)).names())
    store.write(plan)
    fs.on_operation = None
    assert len(found) > 3
    assert all(names in (["old"], ["new"]) for names in found)
    assert opened(fs.found_after(policy)).names() == ["new"]


@each_case("operation", ["open", "pwritev", "fdatasync", "rename"])
def test_what_cannot_be_written_is_not_in_force(operation: str) -> None:
    fs = disk()
    store = opened(fs)
    put(store, change("old"))
    fs.inject(Fault(operation, error=errno.EIO))
    with pytest.raises(OSError):
        store.write(finished(store.planned([change("new")])))
    assert store.names() == ["old"]
    assert set(opened(fs).names()) <= {"old", "new"}


def test_the_example_of_the_document_is_an_account_of_the_example_of_rfc_7677() -> None:
    page = (REPOSITORY / "docs" / "STORAGE.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```json\n(\{\"version\": 1, \"secret\".*\n)```", page)
    _, accounts = decode_accounts(example.encode())
    salt = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
    assert accounts["user"]["SCRAM-SHA-256"] == from_salted(
        "SCRAM-SHA-256", 4096, salt, salted("SCRAM-SHA-256", b"pencil", salt, 4096)
    )


# --- Settings at run time ---------------------------------------------------------------------------------------------


numbers = st.integers(1, 2**31 - 1).map(str)
brokers = st.dictionaries(
    st.sampled_from([ALL_BROKERS, "0", "1", "4711"]),
    st.fixed_dictionaries(
        {},
        optional={
            "num.partitions": numbers,
            "log.retention.ms": numbers | st.just("-1"),
            "seglog.log.level": st.sampled_from(["debug", "error"]),
            "log.cleanup.policy": st.sampled_from(["", "compact", "compact,delete"]),
            "advertised.listeners": st.just("PLAINTEXT://kafka.example:9092"),
        },
    ),
)


groups = st.dictionaries(
    st.text(),
    st.dictionaries(st.sampled_from([name for name in GROUP_KEYS if name.startswith("consumer.")]), numbers),
)


entity_names = st.none() | st.text(min_size=1, max_size=255)
clients = st.dictionaries(
    st.dictionaries(st.sampled_from(["user", "client-id"]), entity_names, min_size=1).map(entity_of),
    st.dictionaries(
        st.sampled_from([CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE]),
        st.integers(1, 2**63).map(float),
        min_size=1,
    ),
)


@given(brokers, groups, clients)
def test_settings_that_are_written_are_read_back(
    brokers: dict[str, dict[str, str]], groups: dict[str, dict[str, str]], clients: ClientQuotas
) -> None:
    kept, fs = DynamicConfig(brokers, groups, clients), disk()
    write_file_atomically(fs, CONFIGS, encode_dynamic_configs(kept))
    assert read_dynamic_configs(fs, CONFIGS) == kept


@settings(max_examples=examples(2000))
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.booleans() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "brokers", "clients", "entity", "1", "num.partitions", "x"]),
                inner | st.just(1),
                max_size=3,
            )
        ),
    ).map(lambda value: seal(value) if isinstance(value, dict) else json.dumps(value).encode())
)
def test_any_content_is_settings_or_refused_with_a_sentence(content: bytes) -> None:
    found = DynamicConfig()
    with suppress(ValueError, InvalidConfigError):
        found = decode_dynamic_configs(content)
    assert decode_dynamic_configs(encode_dynamic_configs(found)) == found


def test_the_example_in_the_document_is_such_a_file() -> None:
    page = (REPOSITORY / "docs" / "STORAGE.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```json\n(\{\"version\": 1, \"brokers\".*\n)```", page)
    found = decode_dynamic_configs(example.encode())
    assert encode_dynamic_configs(found).decode() == example
    assert found.of_broker(ALL_BROKERS)


def test_a_file_without_its_checksum_was_edited_by_hand_and_is_taken() -> None:
    fs = disk()
    assert read_dynamic_configs(fs, CONFIGS) == DynamicConfig(), "without a file there are none"
    fs.load({CONFIGS: b'{"version": 1, "brokers": {"": {"num.partitions": "3"}}}'})
    assert read_dynamic_configs(fs, CONFIGS) == OLD
