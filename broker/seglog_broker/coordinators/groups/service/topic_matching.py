"""Matches the regular expressions of members against the names of topics, in turns with all other requests.

A new expression is matched against all names. A topic that is created or deleted is matched against each expression,
once for all groups.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import trio

from seglog_broker.coordinators.client_patterns import ClientPattern, PatternError
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_requests import Matching, MaySee
from seglog_broker.coordinators.groups.service.machines import Group
from seglog_broker.coordinators.groups.topics import Topics
from seglog_broker.partitions.scheduler import Scheduler
from seglog_broker.runtime import budget

PATTERNS_MAX: Final = 100
"""Compiled expressions that are kept, each of some hundred KiB at most; others are compiled again."""

PAUSE_SECONDS: Final = 1.0
"""Seconds between two rounds over all groups, however often topics are created."""

GROUPS_A_TURN: Final = budget.items_of(cost=20)
"""Groups that are looked at before other tasks run."""


class TopicMatching:
    """The task that matches, and what a request waits for that brings a new expression."""

    def __init__(self, groups: Mapping[str, Group], topics: Topics, scheduler: Scheduler) -> None:
        self._groups: Final = groups
        self._topics: Final = topics
        self._scheduler: Final = scheduler
        self._pattern = lru_cache(PATTERNS_MAX)(ClientPattern)
        self._changed: set[str] = set()
        self._restored: set[str] = set()
        self._wanted = trio.Event()

    async def match_all(self, regex: str, may_see: MaySee) -> Matching:
        """The names that an expression matches when this returns, or why it is invalid."""
        seen: set[str] = set()
        found: set[str] = set()
        try:
            self._pattern(regex)
            while names := [name for name in self._topics.names() if name not in seen]:
                seen.update(names)
                found |= await self._match(regex, names)
        except PatternError as error:
            return error
        return frozenset(filter(may_see, found.intersection(self._topics.names())))

    def note_topic(self, topic: str) -> None:
        """Match a topic that was created or deleted, soon."""
        self._changed.add(topic)
        self._wanted.set()

    def note_restored(self, group: str) -> None:
        """Match all topics for a group that comes from the log, soon."""
        self._restored.add(group)
        self._wanted.set()

    async def run(self) -> None:
        """Match what was noted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            changed, self._changed = self._changed, set()
            restored, self._restored = self._restored, set()
            found: dict[str, frozenset[str]] = {}
            async for name in self._scheduler.spread(list(self._groups), GROUPS_A_TURN):
                group = self._groups.get(name)
                if group is not None and group.consumer is not None:
                    await self._match_group(name, group.consumer, changed, found, is_restored=name in restored)
            await trio.sleep(PAUSE_SECONDS)
            if self._restored:
                self._wanted.set()

    async def _match_group(
        self, name: str, group: ConsumerGroup, changed: set[str], found: dict[str, frozenset[str]], *, is_restored: bool
    ) -> None:
        if not changed and not is_restored:
            return
        may_see = group.regexes.may_see
        for regex in list(group.regexes):
            if may_see is None:  # it is not known who asks, until a member is heard of or its session has ended
                self._restored.add(name)
                return
            await self._scheduler.turn()
            if is_restored:
                matching = await self.match_all(regex, may_see)
                if not isinstance(matching, PatternError):  # else it keeps what it had
                    group.regexes.note(regex, None, matching)
                continue
            if regex not in found:
                try:
                    found[regex] = await self._match(regex, changed.intersection(self._topics.names()))
                except PatternError:
                    continue
            group.regexes.note(regex, changed, frozenset(filter(may_see, found[regex])))

    async def _match(self, regex: str, names: Iterable[str]) -> frozenset[str]:
        found = set()
        for name in self._pattern(regex).matching(names):
            if name is None:
                await self._scheduler.turn()
            else:
                found.add(name)
        return frozenset(found)
