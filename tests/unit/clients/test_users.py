"""Accounts as both faces administer them: a password stays here, what is derived from it logs in."""

import pytest

from seglog_protocol import messages
from seglog_protocol.errors import (
    AuthenticationError,
    UnacceptableCredentialError,
    UnknownUserError,
    UserExistsError,
)
from tests.support import each_case
from tests.unit.clients.faces import Connect
from tests.unit.clients.secure_broker import secure_broker

PASSWORD = "kept-to-itself"


async def test_an_account_is_made_logs_in_and_is_deleted(connect: Connect) -> None:
    with secure_broker(passwords={"admin": "a"}) as broker:
        async with connect(broker.address, user="admin", password="a") as admin:
            await admin.create_user("alice", PASSWORD)
            (alice,) = await admin.users()
            assert (alice.name, [(c.mechanism, c.iterations) for c in alice.credentials]) == (
                "alice",
                [("SCRAM-SHA-256", 8192), ("SCRAM-SHA-512", 8192)],
            )
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                async with connect(broker.address, user="alice", password=PASSWORD, mechanism=mechanism) as client:
                    assert client.principal == "User:alice"
            await admin.set_password("alice", lambda: "another", iterations=4096)
            assert {c.iterations for c in (await admin.users(["alice"]))[0].credentials} == {4096}
            async with connect(broker.address, user="alice", password="another"):
                pass
            with pytest.raises(AuthenticationError):
                async with connect(broker.address, user="alice", password=PASSWORD):
                    pass
            await admin.delete_user("alice")
            assert await admin.users() == []
    sent = [request for request in broker.requests if isinstance(request, messages.AlterUsersRequest)]
    assert all(PASSWORD.encode() not in request.pack() for request in sent if hasattr(request, "pack"))
    assert "salt" not in repr(sent)
    salts = {upsertion.salt for request in sent for upsertion in request.upsertions}
    assert len(salts) == 4
    assert all(len(salt) == 32 for salt in salts)


async def test_what_is_there_and_what_is_not(connect: Connect) -> None:
    with secure_broker() as broker:
        async with connect(broker.address) as client:
            await client.create_user("alice", PASSWORD)
            with pytest.raises(UserExistsError, match="'alice' already") as caught:
                await client.create_user("alice", PASSWORD)
            assert caught.value.user == "alice"
            for call, *arguments in (
                (client.set_password, "bob", PASSWORD),
                (client.delete_user, "bob"),
                (client.users, ["bob"]),
            ):
                with pytest.raises(UnknownUserError, match="bob"):
                    await call(*arguments)
            with pytest.raises(UnacceptableCredentialError):
                await client.create_user("carol", PASSWORD, iterations=4095)


@each_case(
    ("name", "password", "said"),
    [
        ("", PASSWORD, "cannot name an account"),
        ("a\u00adb", PASSWORD, "cannot name an account"),
        ("\uff41", PASSWORD, "cannot name an account"),
        ("a\x07", PASSWORD, "cannot name an account"),
        ("alice", "", "must not be empty"),
        ("alice", f"{PASSWORD}\u2168", "this password cannot be used"),
        ("alice", f"{PASSWORD}\x00", "this password cannot be used"),
        ("alice", f"{PASSWORD}\u00a0", "this password cannot be used"),
        ("alice", f"e\u0301{PASSWORD}", "this password cannot be used"),
        ("alice", PASSWORD.ljust(1025, "x"), "more than 1,024 bytes"),
    ],
)
async def test_what_clients_would_send_in_different_ways_is_refused_here(
    connect: Connect, name: str, password: str, said: str
) -> None:
    with secure_broker() as broker:
        async with connect(broker.address) as client:
            for call in (client.create_user, client.set_password):
                with pytest.raises(ValueError, match=said) as caught:
                    await call(name, password)
                assert PASSWORD not in str(caught.value)
        assert not broker.asked(messages.AlterUsersRequest)


async def test_accounts_are_asked_for_page_by_page_as_long_as_there_are_any(connect: Connect) -> None:
    """A page that says that others follow, and has none, is the last one: behind what would the next one begin?"""
    pages = [["alice", "bob"], ["carol"], [], ["dave"]]
    asked: list[str] = []

    def page(request: messages.Request, _payload: memoryview) -> messages.UsersReply | None:
        if not isinstance(request, messages.UsersRequest):
            return None
        asked.append(request.after)
        names = pages[len(asked) - 1]
        return messages.UsersReply([messages.UserDescription(name, []) for name in names], has_more=len(asked) < 4)

    with secure_broker() as broker:
        broker.script = page
        async with connect(broker.address) as client:
            assert [user.name for user in await client.users()] == ["alice", "bob", "carol"]
    assert asked == ["", "bob", "carol"]
