"""The accounts of a broker in tests: who there is, and the password that the test has given each."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from seglog.core.security import Account, Secret
from seglog_broker.accounts.commands import locked_accounts
from seglog_broker.security.credentials import ITERATIONS_MIN, from_password, why_no_password, why_not_prepared
from seglog_broker.storage.directory.accounts import Change, Credential, why_impossible_name
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.errors import UnknownUserError
from seglog_protocol.scram import HASHES

Password = str | Callable[[], str] | Secret

ADMINISTRATOR: Final = "seglog-testing"
"""The account of the broker's own client."""

ITERATIONS: Final = ITERATIONS_MIN
"""Nobody guesses at passwords of tests, and each login takes as long as they say."""

_OWN_PASSWORD: Final = Secret(secrets.token_urlsafe(18))
"""Nobody else knows it; the same for all brokers of a process, so that a start need not derive anything from it."""
_CREDENTIALS_MAX: Final = 1_000


def hide(users: Any) -> Any:
    """``users`` with each password hidden, before anything can fail: a traceback may show the variables of its calls.

    What is no mapping is hidden as a whole, and refused by ``Accounts``.
    """
    if isinstance(users, Mapping):
        return {name: Secret(password) for name, password in users.items()}
    return None if users is None else Secret(users)


class Accounts:
    """Names and passwords, as long as they are changed by nobody else; with one more, that of the broker's own client.

    ``users`` comes from ``hide``. ``admins`` are those of them that administer.
    """

    def __init__(self, users: Mapping[str, Password], admins: Iterable[str]) -> None:
        """Raises TypeError, ValueError, neither of which shows a password."""
        if not isinstance(users, Mapping):
            raise TypeError('users are passwords by their names, as in Broker(users={"alice": "secret"})')
        if isinstance(admins, str):
            raise TypeError(f"admins is a list of names, as in admins=[{admins!r}]")
        self._passwords = {name: checked(name, password) for name, password in users.items()}
        others = [name for name in admins if name not in self._passwords]
        if others:
            raise ValueError(f"admins has {others[0]!r}, who is not one of users")
        self._admins = [*admins]
        self._passwords[ADMINISTRATOR] = _OWN_PASSWORD
        self._is_written = False

    @property
    def super_users(self) -> str:
        """Those that administer, as ``super.users`` has them."""
        return ";".join(f"User:{name}" for name in (ADMINISTRATOR, *self._admins))

    def account(self, user: str | None) -> Account:
        """An account with its password; None for that of the broker's own client. Raises UnknownUserError."""
        name = ADMINISTRATOR if user is None else user
        if name not in self._passwords:
            there = ", ".join(sorted(self._passwords.keys() - {ADMINISTRATOR})) or "none"
            raise UnknownUserError(
                f"no password of {name!r} is known: Broker(users=…) and create_user give them; there are those of: "
                f"{there}",
                user=name,
            )
        return Account(name, self._passwords[name])

    def remember(self, name: str, password: Secret) -> None:
        """The broker has an account with this password."""
        self._passwords[name] = password

    def forget(self, name: str) -> None:
        """The broker has no such account any more."""
        self._passwords.pop(name, None)

    def write(self, fs: FileSystem, log_dir: str) -> None:
        """Give a log directory that no broker uses these accounts, beside others that it has.

        Once: from then on the broker keeps them. Raises LogDirectoryError, OSError.
        """
        if self._is_written:
            return
        with locked_accounts(fs, log_dir) as store:
            store.change(
                Change(name, mechanism, _credential(mechanism, password.reveal()))
                for name, password in self._passwords.items()
                for mechanism in HASHES
            )
        self._is_written = True


def checked(name: str, password: Password) -> Secret:
    """The password of a new account ``name``. Raises TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an account is text, not {name!r}")
    check_is_not_own(name)
    problem = why_impossible_name(name) or why_not_prepared(name)
    if problem is not None:
        raise ValueError(f"{name[:100]!r} cannot name an account: {problem}")
    known = Secret(Secret(password).reveal())
    problem = why_no_password(known.reveal())
    if problem is not None:
        raise ValueError(f"this cannot be the password of {name!r}: {problem}")
    return known


def check_is_not_own(name: str) -> None:
    """Raises ValueError for the account of the broker's own client."""
    if name == ADMINISTRATOR:
        raise ValueError(f"{name!r} is the account by which the broker itself prepares tests and looks at them")


@lru_cache(_CREDENTIALS_MAX)
def _credential(mechanism: str, password: str) -> Credential:
    """Derived once for all brokers of a process, as it takes milliseconds."""
    return from_password(mechanism, password, ITERATIONS)
