"""Conversations about accounts: list, make, give another password, delete.

A password never leaves this process: the broker gets what is derived from it, by RFC 5802, for each mechanism of SCRAM.
"""

from collections.abc import Sequence
from typing import Final

from seglog.core.conversations import Conversation, ask, check
from seglog.core.security import SCRAM_MECHANISMS, Secret
from seglog_protocol import errors, messages
from seglog_protocol.scram import PASSWORD_BYTES_MAX, SALT_BYTES, salted


def list_users(names: Sequence[str] | None = None) -> Conversation[list[messages.UserDescription]]:
    """As ``Client.users``."""
    asked = None if names is None else list(names)
    users: list[messages.UserDescription] = []
    while True:
        after = users[-1].name if users else ""
        reply, _ = yield from ask(messages.UsersRequest(asked, after), messages.UsersReply, is_repeatable=True)
        for error in reply.unknown:
            raise error
        users += reply.users
        if not reply.has_more or not reply.users:
            return users


def create_user(name: str, password: Secret, iterations: int) -> Conversation[None]:
    """As ``Client.create_user``."""
    request = _with_password(name, password, iterations)
    try:
        yield from list_users([name])
    except errors.UnknownUserError:
        yield from _alter(request)
        return
    raise errors.UserExistsError(f"there is an account {name!r} already", user=name)


def set_password(name: str, password: Secret, iterations: int) -> Conversation[None]:
    """As ``Client.set_password``."""
    request = _with_password(name, password, iterations)
    yield from list_users([name])
    yield from _alter(request)


def delete_user(name: str) -> Conversation[None]:
    """As ``Client.delete_user``."""
    yield from _alter(messages.AlterUsersRequest(deletions=[messages.UserDeletion(name)]))


def _alter(request: messages.AlterUsersRequest) -> Conversation[None]:
    reply, _ = yield from ask(request, messages.AlterUsersReply)
    check(reply.results)


def _with_password(name: str, password: Secret, iterations: int) -> messages.AlterUsersRequest:
    """Raises ValueError, which does not show the password, for what an account cannot have."""
    if not _is_prepared(Secret(name)):
        raise ValueError(f"{name!r} cannot name an account: {_RULE}")
    if password.problem:
        raise ValueError(f"password {password.problem}")
    if len(password.reveal().encode(errors="surrogateescape")) > PASSWORD_BYTES_MAX:
        raise ValueError(f"this password cannot be used: it has more than {PASSWORD_BYTES_MAX:,} bytes")
    if not _is_prepared(password):
        raise ValueError(f"this password cannot be used: {_RULE}")
    return messages.AlterUsersRequest(
        upsertions=[_credential(name, mechanism, password, iterations) for mechanism in SCRAM_MECHANISMS]
    )


_RULE: Final = (
    "it is empty, or has characters that clients send in different ways (control characters, wide or combined forms, "
    "unusual spaces, writing in both directions: what SASLprep, RFC 4013, changes or forbids)"
)


def _is_prepared(text: Secret) -> bool:
    from scramp.utils import ScramException, saslprep  # noqa: PLC0415 - only accounts need it

    if text.problem:
        return False
    try:
        return bool(saslprep(text.reveal()) == text.reveal())
    except ScramException:
        return False


def _credential(name: str, mechanism: str, password: Secret, iterations: int) -> messages.UserUpsertion:
    import secrets  # noqa: PLC0415 - only accounts need it

    salt = secrets.token_bytes(SALT_BYTES)
    derived = salted(mechanism, password.reveal().encode(), salt, iterations)
    return messages.UserUpsertion(name, mechanism, iterations, salt, derived)
