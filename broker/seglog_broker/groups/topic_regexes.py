"""The regular expressions of a group's members, and the topics that they match."""

from collections.abc import Iterable
from typing import Final

from seglog_broker.groups import consumer_errors as errors
from seglog_broker.groups.consumer_requests import Topics
from seglog_broker.groups.consumer_state import ConsumerState, MatchedTopics
from seglog_broker.groups.membership import Now
from seglog_broker.groups.topic_patterns import PatternError, TopicPattern

REFRESH_PAUSE_MS: Final = 10_000
"""Between two times when all expressions of a group are matched again, however often topics are created."""


class TopicRegexes:
    """Matches a new expression at once, and all of them again when topics have changed."""

    def __init__(self, state: ConsumerState, topics: Topics) -> None:
        self._state: Final = state
        self._topics: Final = topics
        self._patterns: Final[dict[str, TopicPattern]] = {}
        self._topics_changed = True
        self._matched_ms: int | None = None

    def topics_changed(self) -> None:
        """Have all expressions matched again."""
        self._topics_changed = True

    def match_new(self, regex: str, now: Now) -> bool:
        """Match an expression that no member had until now, if it is one: then members read other topics.

        Raises InvalidRegularExpressionError for one that is refused, or takes too long.
        """
        if not regex or regex in self._state.matched:
            return False
        try:
            pattern = TopicPattern(regex)
            matched = pattern.matching(self._topics.names())
        except PatternError as error:
            raise errors.no_regular_expression(self._state.group_id, regex, str(error)) from None
        if not self._state.matched:
            self._topics_changed = False
            self._matched_ms = now.monotonic_ms
        self._patterns[regex] = pattern
        self._state.set_matched(regex, MatchedTopics(matched, now.wall_ms))
        return True

    def drop_unused(self, regexes: Iterable[str]) -> None:
        """Forget those of ``regexes`` that no member has any more."""
        for regex in regexes:
            if regex in self._state.matched and not self._state.is_used(regex):
                self._state.set_matched(regex, None)
                self._patterns.pop(regex, None)

    def refresh(self, now: Now) -> bool:
        """Match all expressions again if topics have changed, at most every ten seconds; whether they match others now.

        An expression that has come to take too long for so many topics keeps those that it had.
        """
        if not self._topics_changed or not self._state.matched:
            return False
        if self._matched_ms is not None and now.monotonic_ms < self._matched_ms + REFRESH_PAUSE_MS:
            return False
        self._topics_changed = False
        self._matched_ms = now.monotonic_ms
        differs = False
        for regex, before in list(self._state.matched.items()):
            try:
                if regex not in self._patterns:
                    self._patterns[regex] = TopicPattern(regex)
                topics = self._patterns[regex].matching(self._topics.names())
            except PatternError:
                continue
            if topics != before.topics:
                self._state.set_matched(regex, MatchedTopics(topics, now.wall_ms))
                differs = True
        return differs
