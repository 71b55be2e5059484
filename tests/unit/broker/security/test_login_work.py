"""No time tells a user that does not exist from a wrong password: the broker makes the same calls for both."""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import pytest

from seglog_protocol.errors import AuthenticationError
from tests.unit.broker.security.exchanges import authenticator, log_in_scram_client, plain, store

DIFFERENT_MAX: Final = 4
"""Calls, of five hundred and more: a look into a dictionary, the text of a reason for the log."""


@contextmanager
def counted(calls: Counter[str]) -> Iterator[None]:
    """Count the calls of functions, Python's own and others, but for those of the garbage collector."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            calls[argument.__qualname__] += 1

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        gc.enable()


async def work_of(mechanism: str, user: str) -> Counter[str]:
    """The calls of a login with a wrong password."""
    exchange = authenticator(store({"alice": "right"})).begin(mechanism, is_private=True)
    calls: Counter[str] = Counter()
    client = None if mechanism == "PLAIN" else log_in_scram_client(mechanism, user, "wrong")
    token = plain(user, "wrong") if client is None else client.get_client_first().encode()
    with counted(calls):
        first = exchange.respond(token)
        if client is None:
            with pytest.raises(AuthenticationError):
                await first
            return calls
        answer = await first
    client.set_server_first(answer.decode())
    token = client.get_client_final().encode()
    with counted(calls), pytest.raises(AuthenticationError):
        await exchange.respond(token)
    return calls


@pytest.mark.trio
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_an_unknown_user_makes_the_same_work_as_a_wrong_password(mechanism: str) -> None:
    await work_of(mechanism, "alice")  # what is imported and kept at the first time
    known, unknown = await work_of(mechanism, "alice"), await work_of(mechanism, "alicf")
    assert sum(known.values()) > 200
    differing = (known - unknown) + (unknown - known)
    assert not [name for name in differing if "hmac" in name or "digest" in name or "pbkdf2" in name]
    assert sum(differing.values()) <= 2 * DIFFERENT_MAX, differing
