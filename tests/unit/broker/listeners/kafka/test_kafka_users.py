"""Accounts by Kafka's requests; what is refused, and in which words, is held by answers of a Kafka."""

from typing import Final

from seglog_protocol.kafka import messages
from seglog_protocol.scram import salted
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer

_Alter = messages.AlterUserScramCredentialsRequest
_Describe = messages.DescribeUserScramCredentialsRequest

SALT: Final = b"salt-of-sixteen-"


def up(name: str, mechanism: int = 1, iterations: int = 4096) -> _Alter.ScramCredentialUpsertion:
    password = salted("SCRAM-SHA-512" if mechanism == 2 else "SCRAM-SHA-256", b"secret", SALT, 4096)
    return _Alter.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=password
    )


def gone(name: str, mechanism: int = 1) -> _Alter.ScramCredentialDeletion:
    return _Alter.ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(
    peer: KafkaPeer, *changes: _Alter.ScramCredentialUpsertion | _Alter.ScramCredentialDeletion
) -> dict[str, tuple[int, str | None]]:
    deletions = [each for each in changes if isinstance(each, _Alter.ScramCredentialDeletion)]
    upsertions = [each for each in changes if isinstance(each, _Alter.ScramCredentialUpsertion)]
    response = await peer.ask(_Alter(deletions=deletions, upsertions=upsertions))
    return {result.user: (result.error_code, result.error_message) for result in response.results}


async def describe(peer: KafkaPeer, *names: str, every: bool = False) -> dict[str, tuple[int, str, dict[int, int]]]:
    """By user: code, message, and iterations by mechanism."""
    users = None if every else [_Describe.UserName(name=name) for name in names]
    response = await peer.ask(_Describe(users=users))
    assert (response.error_code, response.error_message) == (0, "")
    return {
        each.user: (
            each.error_code,
            each.error_message or "",
            {info.mechanism: info.iterations for info in each.credential_infos},
        )
        for each in response.results
    }


async def test_users_are_made_described_and_deleted(peer: KafkaPeer) -> None:
    assert await describe(peer, every=True) == {}
    assert await alter(peer, up("alice"), up("bob", 2, 8192)) == {"alice": (0, None), "bob": (0, None)}
    assert await alter(peer, up("alice", 2)) == {"alice": (0, None)}
    both = {"alice": (0, "", {1: 4096, 2: 4096}), "bob": (0, "", {2: 8192})}
    assert await describe(peer, every=True) == both
    assert await describe(peer) == both
    assert await describe(peer, "bob", "carol", "alice", "alice") == {
        "bob": both["bob"],
        "carol": (91, "Attempt to describe a user credential that does not exist: carol", {}),
        "alice": (92, "Cannot describe SCRAM credentials for the same user twice in a single request: alice", {}),
    }
    assert await alter(peer, gone("alice"), gone("bob", 2)) == {"alice": (0, None), "bob": (0, None)}
    assert await describe(peer) == {"alice": (0, "", {2: 4096})}
