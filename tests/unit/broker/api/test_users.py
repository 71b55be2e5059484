"""Accounts changed while the broker runs: each change is on the disk before it is answered, and none is half done."""

import errno
from typing import Any, Final

import pytest
import trio
from structlog.testing import capture_logs

from seglog_broker.api.broker import Broker
from seglog_broker.api.users import UserDeletion, UserUpsertion
from seglog_broker.storage.directory.accounts import ACCOUNTS_MAX, Change, Credential
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.scram import HASHES, salted
from seglog_protocol.steps import finished
from tests.unit.broker.brokers import open_broker
from tests.unit.broker.security.exchanges import log_in_scram

SALT: Final = b"salt of 16 bytes"
ADMIN: Final = "User:admin"


def upsertion(
    name: str, mechanism: str = "SCRAM-SHA-256", password: str = "secret word", **facts: Any
) -> UserUpsertion:
    usual: dict[str, Any] = {"iterations": 4096, "salt": SALT}
    if mechanism in HASHES:
        usual["salted_password"] = salted(mechanism, password.encode(), SALT, 4096)
    else:
        usual["salted_password"] = b"x" * 32
    return UserUpsertion(name, mechanism, **{**usual, **facts})


def deletion(name: str) -> UserDeletion:
    return UserDeletion(name, "SCRAM-SHA-256")


async def alter(broker: Broker, *changes: UserDeletion | UserUpsertion, **how: bool) -> dict[str, str | None]:
    """The code of each account's error, None where it was changed."""
    deletions = [each for each in changes if isinstance(each, UserDeletion)]
    upsertions = [each for each in changes if isinstance(each, UserUpsertion)]
    results = await broker.users.change(deletions, upsertions, ADMIN, **how)
    return {result.user: None if result.error is None else result.error.code for result in results}


async def test_an_account_that_was_made_logs_in_also_after_a_power_cut(broker: Broker, fs: ForgetfulFileSystem) -> None:
    assert await alter(broker, *(upsertion("alice", mechanism) for mechanism in HASHES)) == {"alice": None}
    again = open_broker(fs.found_after(POWER_LOSS))
    for each in (broker, again):
        for mechanism in HASHES:
            exchange = each.authenticator.begin(mechanism, is_private=False)
            await log_in_scram(exchange, "alice", "secret word")
            assert exchange.identity is not None
    again.close()


async def test_a_change_is_logged_with_who_made_it_and_without_a_secret(broker: Broker) -> None:
    with capture_logs() as logged:
        await alter(broker, upsertion("alice"), upsertion("alice", "SCRAM-SHA-512"))
        await alter(broker, UserDeletion("alice", "SCRAM-SHA-256"))
    known = [{key: entry[key] for key in ("event", "user", "mechanism", "change", "principal")} for entry in logged]
    assert known == [
        {"event": "user_changed", "user": "alice", "mechanism": mechanism, "change": change, "principal": ADMIN}
        for mechanism, change in (
            ("SCRAM-SHA-256", "credential_set"),
            ("SCRAM-SHA-512", "credential_set"),
            ("SCRAM-SHA-256", "credential_deleted"),
        )
    ]
    for request_part in (upsertion("alice"),):
        assert repr(request_part.salted_password) not in str(logged)
    assert repr(SALT) not in str(logged)


async def test_an_account_without_credentials_is_gone_and_that_is_told(broker: Broker) -> None:
    gone: list[str] = []
    broker.directory.accounts.on_deleted.append(gone.append)
    await alter(broker, *(upsertion(name, mechanism) for name in ("a", "b") for mechanism in HASHES))
    assert await alter(broker, UserDeletion("a", "SCRAM-SHA-256")) == {"a": None}
    assert gone == []
    both = [UserDeletion("b", mechanism) for mechanism in HASHES]
    assert await alter(broker, UserDeletion("a", "SCRAM-SHA-512"), *both) == {"a": None, "b": None}
    assert gone == ["a", "b"]
    assert broker.users.names() == []
    assert not broker.directory.accounts.has("a")


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (upsertion(""), "UNACCEPTABLE_CREDENTIAL", "Username must not be empty"),
        (upsertion("ANONYMOUS"), "UNACCEPTABLE_CREDENTIAL", "ANONYMOUS"),
        (upsertion("a", "SCRAM-SHA-1"), "UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
        (upsertion("a", iterations=4095), "UNACCEPTABLE_CREDENTIAL", "Too few iterations"),
        (upsertion("a", iterations=16385), "UNACCEPTABLE_CREDENTIAL", "Too many iterations"),
        (upsertion("a", salt=b"x" * 1025), "UNACCEPTABLE_CREDENTIAL", "more than 1,024"),
        (upsertion("a", salted_password=b"x"), "UNACCEPTABLE_CREDENTIAL", "32 bytes"),
        (upsertion("a" * 256), "UNACCEPTABLE_CREDENTIAL", "256 characters"),
        (upsertion("Ju\u0308rgen"), "UNACCEPTABLE_CREDENTIAL", "SASLprep changes it"),
        (upsertion("a\u00adb"), "UNACCEPTABLE_CREDENTIAL", "SASLprep changes it"),
        (upsertion("\u0627a"), "UNACCEPTABLE_CREDENTIAL", "SASLprep forbids it"),
        (upsertion("a\nb"), "UNACCEPTABLE_CREDENTIAL", "SASLprep forbids it"),
        (UserDeletion("", "SCRAM-SHA-256"), "UNACCEPTABLE_CREDENTIAL", "Username must not be empty"),
        (UserDeletion("a", "x"), "UNSUPPORTED_SASL_MECHANISM", "Unknown SCRAM mechanism"),
        (deletion("a"), "RESOURCE_NOT_FOUND", "Attempt to delete a user credential"),
    ],
)
async def test_credentials_that_are_not_possible_are_refused_as_kafka_does(
    broker: Broker, change: UserDeletion | UserUpsertion, code: str, why: str
) -> None:
    deletions, upsertions = ([change], []) if isinstance(change, UserDeletion) else ([], [change])
    [result] = await broker.users.change(deletions, upsertions, ADMIN)
    assert result.error is not None
    assert result.error.code == code
    assert why in result.error.message
    assert len(result.error.message) < 300
    assert broker.users.names() == []


@pytest.mark.parametrize("name", ["Jürgen", "日本", "a b", "a,=;:'\"", "ß", "名前 with everything ü"])
async def test_odd_names_that_every_client_sends_alike_are_possible(broker: Broker, name: str) -> None:
    assert await alter(broker, upsertion(name)) == {name: None}


async def test_of_an_account_all_is_changed_or_nothing_and_others_stand_for_themselves(broker: Broker) -> None:
    await alter(broker, upsertion("old"))
    bad = upsertion("alice", "SCRAM-SHA-512", iterations=1)
    answer = await alter(broker, deletion("old"), upsertion("alice"), bad, upsertion("bob"))
    assert answer == {"old": None, "alice": "UNACCEPTABLE_CREDENTIAL", "bob": None}
    assert broker.users.names() == ["bob"]


async def test_a_credential_is_named_once_and_with_kafka_an_account(broker: Broker) -> None:
    twice = (upsertion("alice"), upsertion("alice"))
    assert await alter(broker, *twice) == {"alice": "DUPLICATE_RESOURCE"}
    both = tuple(upsertion("alice", mechanism) for mechanism in HASHES)
    assert await alter(broker, *both, once=True) == {"alice": "DUPLICATE_RESOURCE"}
    assert broker.users.names() == []
    assert await alter(broker, *both) == {"alice": None}
    one_of_each = (UserDeletion("alice", "SCRAM-SHA-512"), upsertion("alice"))
    assert await alter(broker, *one_of_each, once=True) == {"alice": "DUPLICATE_RESOURCE"}
    assert await alter(broker, *one_of_each) == {"alice": None}
    assert [each.mechanism for each in broker.users.credentials_of("alice")] == ["SCRAM-SHA-256"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_changes_that_cannot_be_kept_are_not_in_force(
    broker: Broker, number: int, fs: ForgetfulFileSystem
) -> None:
    await alter(broker, upsertion("old"))
    fs.inject(Fault("pwritev", "seglog-accounts.json.tmp", error=number))
    with pytest.raises(errors.StorageError, match="the accounts could not be kept") as caught:
        await alter(broker, upsertion("new"), deletion("old"))
    assert isinstance(caught.value, errors.DiskFullError) == (number == errno.ENOSPC)
    assert broker.users.names() == ["old"]
    assert await alter(broker, upsertion("new")) == {"new": None}


async def test_changes_at_the_same_time_lose_nothing(broker: Broker, fs: ForgetfulFileSystem) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(alter, broker, upsertion(f"u{number}"))
    assert len(broker.users.names()) == 20
    again = open_broker(fs.found_after(POWER_LOSS))
    assert again.users.names() == broker.users.names()
    again.close()


async def test_beyond_the_most_accounts_none_is_made_and_the_rest_is_done(broker: Broker) -> None:
    made = Credential("SCRAM-SHA-256", 4096, SALT, b"S" * 32, b"V" * 32)
    accounts = broker.directory.accounts
    plan = finished(
        accounts.planned([Change(f"u{number}", made.mechanism, made) for number in range(ACCOUNTS_MAX - 1)])
    )
    finished(accounts.adopted(plan))
    answer = await alter(broker, upsertion("u1"), upsertion("x"), upsertion("y"))
    assert answer == {"u1": None, "x": None, "y": "POLICY_VIOLATION"}
    assert await alter(broker, upsertion("y"), deletion("x")) == {"x": None, "y": None}
    assert len(accounts) == ACCOUNTS_MAX


async def test_where_there_is_room_for_few_the_accounts_that_administer_are_made_first() -> None:
    broker = open_broker(ForgetfulFileSystem(), *SUPER_USERS)
    made = Credential("SCRAM-SHA-256", 4096, SALT, b"S" * 32, b"V" * 32)
    accounts = broker.directory.accounts
    names = ["admin", *(f"u{number}" for number in range(ACCOUNTS_MAX - 1))]
    accounts.change([Change(name, made.mechanism, made) for name in names])
    answer = await alter(broker, deletion("admin"), upsertion("x"), upsertion("root"))
    assert answer == {"admin": None, "x": "POLICY_VIOLATION", "root": None}
    broker.close()


SUPER_USERS: Final = ("listeners=SASL_PLAINTEXT://127.0.0.1:0", "super.users=User:admin;User:root")


async def test_the_last_account_that_administers_is_not_deleted() -> None:
    """Nor are all of them in one request; another one of super.users that is made before, or with it, is enough."""
    broker = open_broker(ForgetfulFileSystem(), *SUPER_USERS)
    gone = deletion("admin")
    await alter(broker, upsertion("admin"), upsertion("alice"))
    assert await alter(broker, gone, deletion("alice")) == {"admin": "POLICY_VIOLATION", "alice": None}
    assert broker.users.names() == ["admin"]
    assert await alter(broker, gone, upsertion("root")) == {"admin": None, "root": None}
    await alter(broker, upsertion("admin"))
    refused = await alter(broker, gone, deletion("root"))
    assert refused == {"admin": "POLICY_VIOLATION", "root": "POLICY_VIOLATION"}
    assert await alter(broker, gone) == {"admin": None}
    broker.close()


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["super.users=User:admin;User:ANONYMOUS", "listeners=PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"],
        ["sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER", "seglog.sasl.oauthbearer.unsecured=true"],
    ],
)
async def test_the_last_account_goes_where_others_may_administer(flags: list[str]) -> None:
    """Everyone, those without an account, or those with a token."""
    broker = open_broker(ForgetfulFileSystem(), *(SUPER_USERS if flags else ()), *flags)
    await alter(broker, upsertion("admin"))
    assert await alter(broker, deletion("admin")) == {"admin": None}
    broker.close()
