"""Conversations about accounts: list, make, give another password, delete.

A password never leaves this process: the broker gets what is derived from it, by RFC 5802, for each mechanism of SCRAM.
"""

from collections.abc import Sequence
from typing import Final

from seglog.core.conversations import Conversation
from seglog.core.kafka_requests import ask_kafka, check_kafka
from seglog.core.security import SCRAM_MECHANISMS, Secret
from seglog_protocol import errors
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import Message
from seglog_protocol.scram import NUMBERS, PASSWORD_BYTES_MAX, SALT_BYTES, salted

_NAMES: Final = {number: name for name, number in NUMBERS.items()}


class UserCredential(Message):
    """A SCRAM credential, without what could be used to log in."""

    mechanism: str
    iterations: int


class UserDescription(Message):
    """One account."""

    name: str
    credentials: list[UserCredential]


def list_users(names: Sequence[str] | None = None) -> Conversation[list[UserDescription]]:
    """As ``Client.users``."""
    if names is not None and not names:
        return []  # Kafka takes no names for all of them
    cls = messages.DescribeUserScramCredentialsRequest
    asked = None if names is None else [cls.UserName(name=name) for name in sorted(set(names))]
    response = yield from ask_kafka(cls(users=asked), 0, is_repeatable=True)
    check_kafka(response.error_code, response.error_message, "the accounts")
    users: list[UserDescription] = []
    for found in response.results:
        if found.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            if names is None:
                continue  # it was deleted just now
            raise errors.UnknownUserError(f"there is no account {found.user[:100]!r}", user=found.user)
        check_kafka(found.error_code, found.error_message, f"the account {found.user[:100]!r}", user=found.user)
        shown = [UserCredential(_NAMES[each.mechanism], each.iterations) for each in found.credential_infos]
        users.append(UserDescription(found.user, shown))
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
    [user] = yield from list_users([name])
    cls = messages.AlterUserScramCredentialsRequest
    mechanisms = [NUMBERS[each.mechanism] for each in user.credentials]
    yield from _alter(cls(deletions=[cls.ScramCredentialDeletion(name=name, mechanism=each) for each in mechanisms]))


def _alter(request: messages.AlterUserScramCredentialsRequest) -> Conversation[None]:
    response = yield from ask_kafka(request, 0)
    for altered in response.results:
        check_kafka(altered.error_code, altered.error_message, f"the account {altered.user!r}", user=altered.user)


def _with_password(name: str, password: Secret, iterations: int) -> messages.AlterUserScramCredentialsRequest:
    """Raises ValueError, which does not show the password, for what an account cannot have."""
    if not _is_prepared(Secret(name)):
        raise ValueError(f"{name!r} cannot name an account: {_RULE}")
    if password.problem:
        raise ValueError(f"password {password.problem}")
    if len(password.reveal().encode(errors="surrogateescape")) > PASSWORD_BYTES_MAX:
        raise ValueError(f"this password cannot be used: it has more than {PASSWORD_BYTES_MAX:,} bytes")
    if not _is_prepared(password):
        raise ValueError(f"this password cannot be used: {_RULE}")
    return messages.AlterUserScramCredentialsRequest(
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


def _credential(
    name: str, mechanism: str, password: Secret, iterations: int
) -> messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    import secrets  # noqa: PLC0415 - only accounts need it

    salt = secrets.token_bytes(SALT_BYTES)
    derived = salted(mechanism, password.reveal().encode(), salt, iterations)
    return messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=name, mechanism=NUMBERS[mechanism], iterations=iterations, salt=salt, salted_password=derived
    )
