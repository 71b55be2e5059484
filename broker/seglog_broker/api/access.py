"""The rules of access (ACLs), described and changed: one change after the other, each on the disk before it counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.security.authority import Authority
from seglog_broker.storage.directory.acls import ACLS_MAX, why_not_kept
from seglog_protocol.access import Rule, RuleFilter
from seglog_protocol.errors import InvalidRequestError, PolicyViolationError, SeglogError

CHANGE_COST: Final = 20
"""Microseconds to judge a rule, and to log that it has changed."""

DELETED_MAX: Final = 100_000
"""The most rules in the answer to one deletion, in which each filter names all that it has found."""

log = get_logger()


@dataclass(eq=False, repr=False)
class AccessService(Service):
    """Describes and changes rules, in force or not."""

    _authority: Authority

    def __post_init__(self) -> None:
        self._acls = self._directory.acls
        self._lock = trio.Lock()

    async def describe(self, wanted: RuleFilter) -> list[Rule]:
        """The rules that a filter asks for. Raises InvalidRequestError for one by which nothing can be found."""
        if (problem := wanted.why_impossible()) is not None:
            raise InvalidRequestError(problem, field="")
        return await self._scheduler.in_turns(self._acls.rules.found(wanted))

    async def create(self, rules: Sequence[Rule], by: str) -> list[SeglogError | None]:
        """Make rules for the principal ``by``: for each its error, or None. A rule that exists already is no error.

        Those without an error survive a power cut. Raises StorageError when they cannot be kept: none is made.
        """
        async with self._lock:
            turns = budget.Turns(self._scheduler.turn)
            known, new = self._acls.rules, dict[Rule, None]()
            results: list[SeglogError | None] = []
            for rule in rules:
                await turns.spend(CHANGE_COST)
                error: SeglogError | None = None
                if (problem := why_not_kept(rule)) is not None:
                    error = InvalidRequestError(problem, field="")
                elif rule not in known and rule not in new:
                    if len(known) + len(new) >= ACLS_MAX:
                        error = PolicyViolationError(f"there are {ACLS_MAX:,} ACLs, and no more are possible")
                    else:
                        new[rule] = None
                results.append(error)
            await self._change(new, (), by, turns)
        return results

    async def delete(self, filters: Sequence[RuleFilter], by: str) -> list[list[Rule] | SeglogError]:
        """Delete all rules that filters ask for, for the principal ``by``: for each filter those that it has found.

        A rule that several filters find is in the answer of each, as in Kafka. They stay deleted over a power cut.
        Raises StorageError when that cannot be kept: none is deleted.
        """
        async with self._lock:
            turns = budget.Turns(self._scheduler.turn)
            results: list[list[Rule] | SeglogError] = []
            gone: dict[Rule, None] = {}
            count = 0
            for wanted in filters:
                await turns.spend(CHANGE_COST)
                try:
                    found = await self.describe(wanted)
                    count += len(found)
                    if count > DELETED_MAX:
                        raise PolicyViolationError(  # noqa: TRY301 - answered as others
                            f"one request deletes at most {DELETED_MAX:,} ACLs, counted for each filter: send the rest "
                            "of its filters again"
                        )
                except (InvalidRequestError, PolicyViolationError) as error:
                    results.append(error)
                else:
                    gone |= dict.fromkeys(found)
                    results.append(found)
            await self._change((), gone, by, turns)
        return results

    async def _change(self, added: Iterable[Rule], removed: Iterable[Rule], by: str, turns: budget.Turns) -> None:
        if not added and not removed:
            return
        rules = await self._scheduler.in_turns(self._acls.planned(added, removed))
        with trio.CancelScope(shield=True):  # what is on the disk is to be in force
            await self._replace_file("the ACLs could not be kept", "send them again", self._acls.write, rules)
            self._acls.rules = rules
            self._authority.adopt(rules)
            for change, changed in (("created", added), ("deleted", removed)):
                for rule in changed:
                    await turns.spend(CHANGE_COST)
                    log.info("acl_changed", acl=str(rule), change=change, principal=by)
