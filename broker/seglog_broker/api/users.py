"""The accounts, described and changed: one change after the other, each on the disk before it is answered."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.security.access_warnings import needed_accounts
from seglog_broker.security.credentials import ITERATIONS_MAX, ITERATIONS_MIN, from_salted, why_not_prepared
from seglog_broker.storage.directory.accounts import (
    ACCOUNTS_MAX,
    AccountStore,
    Change,
    Credential,
    digest_bytes,
    why_impossible_name,
)
from seglog_protocol import errors
from seglog_protocol.scram import HASHES

log = get_logger()

CHANGE_COST: Final = 100
"""To judge a change, whose name may be long and odd."""

# Kafka's own sentences begin these: tools look at the code, people search for them.
_TWICE: Final = "A user credential cannot be altered twice in the same request"
_NONE_TO_DELETE: Final = "Attempt to delete a user credential that does not exist"


class UserDeletion(NamedTuple):
    """A credential to delete."""

    name: str
    mechanism: str


class UserUpsertion(NamedTuple):
    """A SCRAM credential to set: ``salted_password`` is Hi(password, salt, iterations) of RFC 5802."""

    name: str
    mechanism: str
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        """Without what could be used to log in."""
        return f"UserUpsertion(name={self.name!r}, mechanism={self.mechanism!r}, iterations={self.iterations})"


class AlteredUser(NamedTuple):
    """An account that was changed, or why it was not."""

    user: str
    error: errors.SeglogError | None


@dataclass(eq=False, repr=False)
class UserService(Service):
    """Describes and changes accounts."""

    def __post_init__(self) -> None:
        self._accounts = self._directory.accounts
        self._lock = trio.Lock()

    def names(self) -> list[str]:
        """The names of all accounts, sorted."""
        return self._accounts.names()

    def credentials_of(self, name: str) -> list[Credential]:
        """The credentials of an account, in the order of HASHES; empty if there is none."""
        account = self._accounts.account(name) or {}
        return [account[mechanism] for mechanism in HASHES if mechanism in account]

    async def change(
        self,
        deletions: Sequence[UserDeletion],
        upsertions: Sequence[UserUpsertion],
        by: str,
        *,
        once: bool = False,
    ) -> list[AlteredUser]:
        """Delete and set credentials for the principal ``by``: of each account all that is asked, or nothing.

        A credential is named once, with ``once`` an account, as in Kafka. Results are in the order of first mention;
        those without an error survive a power cut. Raises StorageError when they cannot be kept: nothing is changed.
        """
        async with self._lock:
            judged = _Judged(self._accounts, needed_accounts(self._config.current), once=once)
            turns = budget.Turns(self._scheduler.turn)
            asked: list[UserDeletion | UserUpsertion] = [*deletions, *upsertions]
            for each in asked:
                await turns.spend(CHANGE_COST)
                judged.add(each)
            changes = judged.possible()
            if changes:
                plan = await self._scheduler.in_turns(self._accounts.planned(changes))
                with trio.CancelScope(shield=True):  # what is on the disk is to be in force
                    await self._replace_file(
                        "the accounts could not be kept", "send them again", self._accounts.write, plan
                    )
                    await self._scheduler.in_turns(self._accounts.adopted(plan))
                    for name, mechanism, credential in changes:
                        await turns.spend(CHANGE_COST)
                        what = "credential_deleted" if credential is None else "credential_set"
                        log.info("user_changed", user=name, mechanism=mechanism, change=what, principal=by)
        return [AlteredUser(name, error) for name, error in judged.errors.items()]


class _Judged:
    """Changes that are asked for, and those of them that are possible."""

    def __init__(self, accounts: AccountStore, needed: Collection[str], *, once: bool) -> None:
        """One of the accounts ``needed`` has to remain, if any is there."""
        self._accounts = accounts
        self._needed = needed
        self._once = once
        self._changes: dict[str, dict[str, Credential | None]] = {}
        self.errors: dict[str, errors.SeglogError | None] = {}
        """By account in the order of first mention: why it stays as it is, None where it is changed."""

    def add(self, asked: UserDeletion | UserUpsertion) -> None:
        """Judge one more change."""
        name = asked.name
        if self.errors.setdefault(name, None) is not None:
            return
        named = self._changes.setdefault(name, {})
        try:
            if isinstance(asked, UserDeletion):
                self._refuse_unknown(asked)
                found = None
            else:
                found = _made(asked)
            if asked.mechanism in named or (self._once and named):
                raise errors.DuplicateUserError(_TWICE, user=name)
            named[asked.mechanism] = found
        except errors.SeglogError as error:
            self.errors[name] = error

    def possible(self) -> list[Change]:
        """The changes of the accounts without an error, of which there are not too many afterwards."""
        possible = {name: changes for name, changes in self._changes.items() if self.errors[name] is None}
        gone = [name for name, changes in possible.items() if not self._remains(name, changes)]
        new = [name for name in possible if not self._accounts.has(name)]
        new.sort(key=lambda name: name not in self._needed)  # those that administer first, where there is room for few
        is_room = ACCOUNTS_MAX - len(self._accounts) + len(gone) > 0
        if not any(name not in gone and (is_room or self._accounts.has(name)) for name in self._those_needed(possible)):
            for name in [name for name in gone if name in self._needed]:
                gone.remove(name)
                del possible[name]
                self.errors[name] = errors.PolicyViolationError(
                    f"{name} cannot be deleted: no name of super.users would have an account then, and nobody could "
                    "administer this broker. Make another such account first, or stop the broker and use seglogd user "
                    "delete"
                )
        for name in new[max(ACCOUNTS_MAX - len(self._accounts) + len(gone), 0) :]:
            del possible[name]
            self.errors[name] = errors.PolicyViolationError(
                f"there are {ACCOUNTS_MAX:,} accounts, and no more are possible: delete some"
            )
        return [Change(name, *each) for name, changes in possible.items() for each in changes.items()]

    def _those_needed(self, possible: Collection[str]) -> list[str]:
        """The accounts of which one has to remain that are there, or are made."""
        return [name for name in self._needed if name in possible or self._accounts.has(name)]

    def _remains(self, name: str, changes: dict[str, Credential | None]) -> bool:
        after = {**(self._accounts.account(name) or {}), **changes}
        return any(credential is not None for credential in after.values())

    def _refuse_unknown(self, asked: UserDeletion) -> None:
        """Raise UnknownUserError for a credential that there is not."""
        _check(asked.name, asked.mechanism)
        if self._accounts.credential(asked.name, asked.mechanism) is None:
            raise errors.UnknownUserError(_NONE_TO_DELETE, user=asked.name)


def _check(name: str, mechanism: str) -> None:
    if not name:
        raise errors.UnacceptableCredentialError("Username must not be empty", user=name)
    if mechanism not in HASHES:
        raise errors.UnsupportedMechanismError("Unknown SCRAM mechanism", mechanisms=list(HASHES))


def _made(asked: UserUpsertion) -> Credential:
    """The credential that an upsertion sets. Raises UnacceptableCredentialError, UnsupportedMechanismError."""
    name = asked.name
    _check(name, asked.mechanism)
    problem = None
    impossible = why_impossible_name(name) or why_not_prepared(name)
    if impossible is not None:
        problem = f"{name[:100]!r} cannot name an account: {impossible}"
    elif asked.iterations < ITERATIONS_MIN:
        problem = "Too few iterations"
    elif asked.iterations > ITERATIONS_MAX:
        problem = "Too many iterations"
    elif len(asked.salted_password) != digest_bytes(asked.mechanism):
        problem = f"the salted password does not have {digest_bytes(asked.mechanism)} bytes, as {asked.mechanism} gives"
    if problem is None:
        try:
            return from_salted(asked.mechanism, asked.iterations, asked.salt, asked.salted_password)
        except ValueError as error:
            problem = str(error)
    raise errors.UnacceptableCredentialError(problem, user=name)
