"""PLAIN: a password is checked in a thread, and the same is done for users that do not exist."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.runtime import offload as offloading
from seglog_broker.runtime.offload import Offload
from seglog_broker.security.sasl import Identity
from seglog_broker.storage.directory.accounts import AccountStore, Change
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.errors import AuthenticationError, OutOfResourcesError
from tests.unit.broker.security.exchanges import authenticator, changes_for, empty_store, plain, put, store


async def log_in(accounts: AccountStore, token: bytes, offload: Offload | None = None) -> str:
    """The principal, or why it is refused, as the log says it."""
    exchange = authenticator(accounts, offload=offload).begin("PLAIN", is_private=True)
    try:
        assert await exchange.respond(token) == b""
    except AuthenticationError as error:
        refusal = error
    else:
        assert exchange.identity is not None
        return exchange.identity.principal
    assert exchange.identity is None
    assert refusal.message.startswith(("Authentication failed: ", "Invalid SASL/PLAIN response: "))
    return str(refusal.__cause__)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_the_password_of_a_scram_credential_is_the_one_for_plain(mechanism: str) -> None:
    accounts = empty_store()
    put(accounts, *changes_for("Jürgen", "pässword", 4096, mechanism))
    assert await log_in(accounts, plain("Jürgen", "pässword")) == "User:Jürgen"
    assert await log_in(accounts, plain("Jürgen", "pässword", "Jürgen")) == "User:Jürgen"
    assert await log_in(accounts, plain("Ju\u0308rgen", "pa\u0308ssword")) == "User:Jürgen"
    assert await log_in(accounts, plain("Jürgen", "password")) == "the password is wrong"


async def test_a_password_that_kafka_salted_as_it_was_is_right_as_it_is() -> None:
    accounts = empty_store()
    put(accounts, *changes_for("old", "pa\u0308ss", 4096))
    assert await log_in(accounts, plain("old", "pa\u0308ss")) == "User:old"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (b"", "not two names"),
        (b"alice", "not two names"),
        (b"alice\0right", "not two names"),
        (b"\0alice\0right\0", "not two names"),
        (b"\0\xff\0right", "not two names"),
        (b"\0\0right", "no name or no password"),
        (b"\0alice\0", "no name or no password"),
        (b"admin\0alice\0right", "another user"),
        (b"\0" + b"a" * 256 + b"\0right", "too long"),
        (b"\0alice\0" + b"r" * 1025, "too long"),
        (b"\0alice\0" + b"r" * 100_000, "too long"),
        (b"\0bob\0right", "does not exist"),
        (b"\0alice\0wrong", "password is wrong"),
    ],
)
async def test_anything_else_is_refused(token: bytes, why: str) -> None:
    assert why in await log_in(store({"alice": "right"}), token)


async def test_an_exchange_has_one_token() -> None:
    exchange = authenticator(store({"alice": "right"})).begin("PLAIN", is_private=True)
    await exchange.respond(plain("alice", "right"))
    with pytest.raises(AuthenticationError):
        await exchange.respond(plain("alice", "right"))


class _Counting(InlineOffload):
    """Keeps what was derived."""

    def __init__(self) -> None:
        super().__init__()
        self.derived: list[tuple[str, int, int]] = []

    async def derivation(self, fn: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # of any kind
        credential, passwords = args
        self.derived.append((credential.mechanism, credential.iterations, len(passwords)))
        return await super().derivation(fn, *args)


async def test_an_unknown_user_costs_the_same_derivation_as_a_wrong_password() -> None:
    accounts = empty_store()
    put(accounts, *changes_for("alice", "right", 5000, "SCRAM-SHA-512"))
    offload = _Counting()
    for name in ("alice", "nobody"):
        await log_in(accounts, plain(name, "wrong"), offload)
    assert offload.derived == [("SCRAM-SHA-512", 5000, 1)] * 2


async def test_an_account_that_is_deleted_while_its_password_is_checked_is_not_let_in() -> None:
    accounts = store({"alice": "right"})

    class Deleting(InlineOffload):
        async def derivation(self, fn: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # of any kind
            put(accounts, *(Change("alice", mechanism, None) for mechanism in accounts.account("alice") or {}))
            return await super().derivation(fn, *args)

    assert "meanwhile" in await log_in(accounts, plain("alice", "right"), Deleting())


async def test_passwords_that_wait_are_bounded_and_the_loop_goes_on() -> None:
    gate = threading.Event()
    real = offloading.PASSWORDS_WAITING_MAX

    class Held(Offload):
        async def derivation(self, fn: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # of any kind
            return await super().derivation(lambda: gate.wait() and fn(*args))

    broker = authenticator(store({"alice": "right"}), offload=Held())
    done: list[Identity | None] = []

    async def log_in_again() -> None:
        exchange = broker.begin("PLAIN", is_private=True)
        await exchange.respond(plain("alice", "right"))
        done.append(exchange.identity)

    async with trio.open_nursery() as nursery:
        for _ in range(real + offloading.PASSWORD_THREADS_MAX):
            nursery.start_soon(log_in_again)
        await wait_all_tasks_blocked()
        with pytest.raises(OutOfResourcesError, match="try again") as caught:
            await broker.begin("PLAIN", is_private=True).respond(plain("alice", "right"))
        assert caught.value.retriable
        assert not done
        gate.set()
    assert done == [Identity("User:alice")] * (real + offloading.PASSWORD_THREADS_MAX)
