"""``seglog-accounts.json``: the accounts, each with its SCRAM credentials (RFC 5802), and never a password.

The file is written before a change is in force. Nothing replaces it, so a start is refused while it cannot be
understood. It also keeps a secret, from which answers for users that do not exist are made: they stay the same over
restarts, as those of users that exist do.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Any, Final, NamedTuple

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import not_understood, seal_members, unseal_version
from seglog_protocol.errors import PolicyViolationError
from seglog_protocol.scram import HASHES
from seglog_protocol.steps import Steps, finished

ACCOUNTS_MAX: Final = 10_000
"""The most accounts: the file is written as a whole."""

NAME_CHARACTERS_MAX: Final = 255
NAME_OF_NOBODY: Final = "ANONYMOUS"
"""Whoever comes without authentication is ``User:ANONYMOUS``, and no account."""

SALT_BYTES_MAX: Final = 1_024
"""Whoever begins a login is sent the salt. Kafka takes any, also none; of fewer than some bytes others have it, too."""

_ACCOUNTS_A_STEP: Final = 50
"""Accounts that are encoded, or put in force, before others run: a millisecond or two."""

_SECRET_BYTES: Final = 32
_VERSION: Final = 1
_KEYS: Final = frozenset({"version", "secret", "accounts"})
_CREDENTIAL_KEYS: Final = frozenset({"iterations", "salt", "stored_key", "server_key"})
_TEXT_SALT: Final = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class Credential:
    """What proves a password under one mechanism. Who has its keys could pose as the broker."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for one that is not possible."""
        if self.mechanism not in HASHES:
            raise ValueError(f"{self.mechanism[:60]!r} is not a mechanism")
        size = digest_bytes(self.mechanism)
        if len(self.stored_key) != size or len(self.server_key) != size:
            raise ValueError(f"a key of {self.mechanism} does not have {size} bytes")
        if len(self.salt) > SALT_BYTES_MAX:
            raise ValueError(f"a salt has more than {SALT_BYTES_MAX:,} bytes")
        if self.iterations < 1:
            raise ValueError("a number of iterations is not positive")


def digest_bytes(mechanism: str) -> int:
    """The size of the keys of a mechanism, and of a salted password."""
    return hashlib.new(HASHES[mechanism]).digest_size


class Shape(NamedTuple):
    """What a client can see of a credential without knowing the password, but for the salt's content."""

    mechanism: str
    iterations: int
    salt_bytes: int
    is_text_salt: bool
    """Whether the salt is digits and lower-case letters alone, as Kafka's tools make it."""


Account = Mapping[str, Credential]
"""An account's credentials by mechanism; there is at least one."""


def for_password(account: Account) -> Credential:
    """The credential that a password is checked against which comes as it is."""
    return account.get("SCRAM-SHA-256") or next(iter(account.values()))


class Change(NamedTuple):
    """A credential of the account ``name`` that is set, or deleted where it is None."""

    name: str
    mechanism: str
    credential: Credential | None


class Plan(NamedTuple):
    """Changes that are to come into force together."""

    altered: Mapping[str, Account]
    """The accounts that differ, as they will be; empty for one that is deleted."""
    texts: Mapping[str, str]
    """Their entries in the file."""


class AccountStore:
    """The accounts of one log directory. A change is planned, written, which a thread may do, and adopted."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """With no accounts; ``load`` reads the file ``path``."""
        self._fs = fs
        self._path = path
        self._accounts: dict[str, Account] = {}
        self._texts: dict[str, str] = {}  # the entries of the file, encoded, by name
        self.secret = SystemRandom().randbytes(_SECRET_BYTES)
        """Not known to clients, and the same for as long as there are accounts."""
        self.shapes: dict[str, Counter[Shape]] = {mechanism: Counter() for mechanism in HASHES}
        """How often each shape occurs, by mechanism."""
        self.password_shapes: Counter[Shape] = Counter()
        """The same of the credentials that passwords are checked against."""
        self.on_deleted: list[Callable[[str], None]] = []
        """Called with the name of each account that is gone."""

    def __len__(self) -> int:
        return len(self._accounts)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._accounts)

    def has(self, name: str) -> bool:
        """Whether there is such an account."""
        return name in self._accounts

    def account(self, name: str) -> Account | None:
        """The credentials of an account; None if there is none."""
        return self._accounts.get(name)

    def credential(self, name: str, mechanism: str) -> Credential | None:
        """The credential of an account for ``mechanism``."""
        return self._accounts.get(name, {}).get(mechanism)

    def load(self) -> None:
        """Read the file; no accounts where there is none. Raises OSError, and LogDirectoryError if it is malformed."""
        if not self._fs.exists(self._path):
            return
        try:
            secret, accounts = decode_accounts(read_file(self._fs, self._path))
        except ValueError as error:
            # the cause could show a secret
            raise not_understood(self._path, str(error), "start without accounts and make them anew") from None
        self.secret = secret
        for name, account in accounts.items():
            self._take(name, account, _text(name, account))

    def planned(self, changes: Iterable[Change]) -> Steps[Plan]:
        """What the accounts will be with ``changes``, of which later ones win.

        Raises PolicyViolationError where there would be too many. The next plan is made when this one is in force, or
        given up.
        """
        altered: dict[str, dict[str, Credential]] = {}
        for name, mechanism, credential in changes:
            account = altered.setdefault(name, dict(self._accounts.get(name, {})))
            if credential is None:
                account.pop(mechanism, None)
            else:
                account[mechanism] = credential
        count = len(self._accounts) + sum(bool(a) - (name in self._accounts) for name, a in altered.items())
        if count > ACCOUNTS_MAX and count > len(self._accounts):
            raise PolicyViolationError(f"there would be {count:,} accounts, and at most {ACCOUNTS_MAX:,} are possible")
        texts = {}
        for number, (name, account) in enumerate(altered.items(), start=1):
            texts[name] = _text(name, account)
            if number % _ACCOUNTS_A_STEP == 0:
                yield
        return Plan(altered, texts)

    def content(self, plan: Plan) -> bytes:
        """The file as it will be."""
        texts = {**self._texts, **plan.texts}
        gone = {name for name, account in plan.altered.items() if not account}
        return _encoded(self.secret, [texts[name] for name in sorted(texts) if name not in gone])

    def write(self, plan: Plan) -> None:
        """Replace the file; return when it survives a power cut. May run in a thread. Raises OSError.

        After an error the file has its former content or the new one.
        """
        write_file_atomically(self._fs, self._path, self.content(plan))

    def change(self, changes: Iterable[Change]) -> Plan:
        """Plan, write and adopt ``changes`` at once, where nothing else runs. Raises what these raise."""
        plan = finished(self.planned(changes))
        self.write(plan)
        finished(self.adopted(plan))
        return plan

    def adopted(self, plan: Plan) -> Steps[None]:
        """Put a written plan in force, one account after the other."""
        for number, (name, account) in enumerate(plan.altered.items(), start=1):
            was_there = name in self._accounts
            self._take(name, account, plan.texts[name])
            if was_there and not account:
                for call in self.on_deleted:
                    call(name)
            if number % _ACCOUNTS_A_STEP == 0:
                yield

    def _take(self, name: str, account: Account, text: str) -> None:
        before = self._accounts.pop(name, None)
        self._texts.pop(name, None)
        if before:
            self._count(before, -1)
        if account:
            self._accounts[name] = account
            self._texts[name] = text
            self._count(account, 1)

    def _count(self, account: Account, number: int) -> None:
        counted = [(self.shapes[mechanism], credential) for mechanism, credential in account.items()]
        for counter, credential in (*counted, (self.password_shapes, for_password(account))):
            salt = credential.salt
            shape = Shape(credential.mechanism, credential.iterations, len(salt), _TEXT_SALT.issuperset(salt))
            counter[shape] += number
            if not counter[shape]:
                del counter[shape]


def why_impossible_name(name: str) -> str | None:
    """Why no account can have this name, as the end of a sentence; None if one can."""
    if not name:
        return "it is empty"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"it has {len(name):,} characters, and at most {NAME_CHARACTERS_MAX} are possible"
    if "\0" in name:
        return "it has a zero character"
    if name == NAME_OF_NOBODY:
        return "it is the name of those who come without an account"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "it has half of a character"
    return None


def decode_accounts(content: bytes) -> tuple[bytes, Mapping[str, Account]]:
    """The secret and the accounts in a file. Raises ValueError; its message is the end of a sentence and no secret."""
    found = unseal_version(content, _KEYS, _VERSION)
    secret = _bytes(found.get("secret"))
    if len(secret) < _SECRET_BYTES:
        raise ValueError("its secret is too short")
    accounts = found.get("accounts")
    if not isinstance(accounts, dict):
        raise ValueError("it has no accounts")  # noqa: TRY004 - the content of a file
    return secret, {_name(name): _account(name, credentials) for name, credentials in accounts.items()}


def _name(name: str) -> str:
    problem = why_impossible_name(name)
    if problem is not None:
        raise ValueError(f"the name {name[:60]!r} is not possible: {problem}")
    return name


def _account(name: str, found: Any) -> Account:
    if not isinstance(found, dict) or not found:
        raise ValueError(f"account {name[:60]!r} has no credentials")
    account = {}
    for mechanism, facts in found.items():
        if not isinstance(facts, dict) or facts.keys() != _CREDENTIAL_KEYS or type(facts["iterations"]) is not int:
            raise ValueError(f"a credential of account {name[:60]!r} has another form")
        keys = [_bytes(facts[key]) for key in ("salt", "stored_key", "server_key")]
        try:
            account[mechanism] = Credential(mechanism, facts["iterations"], *keys)
        except ValueError as error:
            raise ValueError(f"account {name[:60]!r}: {error}") from None
    return account


def _bytes(found: Any) -> bytes:
    try:
        return b64decode(found, validate=True)
    except (ValueError, TypeError):
        raise ValueError("a value is not base64") from None


def _text(name: str, account: Account) -> str:
    """An account's line in the file, built by hand: the library's encoder takes three times as long."""
    credentials = ", ".join(
        f'"{mechanism}": {{"iterations": {credential.iterations}, "salt": "{b64encode(credential.salt).decode()}", '
        f'"stored_key": "{b64encode(credential.stored_key).decode()}", '
        f'"server_key": "{b64encode(credential.server_key).decode()}"}}'
        for mechanism, credential in account.items()
    )
    return f"{json.dumps(name)}: {{{credentials}}}"


def _encoded(secret: bytes, texts: Sequence[str]) -> bytes:
    accounts = ",\n  ".join(texts)
    return seal_members(
        (
            f'"version": {_VERSION}',
            f'"secret": "{b64encode(secret).decode()}"',
            f'"accounts": {{\n  {accounts}\n }}' if texts else '"accounts": {}',
        )
    )
