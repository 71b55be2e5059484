"""Who may do what: rules (ACLs), super users, and the switch that says whether rules are in force.

============ =========================================================================================================
the switch   who may do what
============ =========================================================================================================
off          changing topics, groups, the broker and its accounts is for administrators: those of super.users, or
             everyone where it is empty and no listener authenticates. All else is for everyone.
on           as Kafka's StandardAuthorizer: super users all; others what a rule allows and none denies, and with
             allow.everyone.if.no.acl.found what is done with a resource that no rule is for.
============ =========================================================================================================
"""

from collections import Counter
from typing import Final, NamedTuple

from seglog_broker.config import BrokerConfig
from seglog_broker.config.listeners import has_authentication
from seglog_protocol.access import ABOVE_RULES, ANY_RESOURCE, NO_RULE, Decision, Kind, Operation, Rules

ADMINISTRATIVE: Final = frozenset(
    (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS, Operation.CLUSTER_ACTION)
)
"""The operations that are for administrators alone while rules are not in force, with whatever resource."""

DECISIONS_MAX: Final = 50_000
"""The most decisions that are kept for all clients; the next one drops them all."""

NAME_CHARACTERS_MAX: Final = 249
"""The most characters of a name that is kept or told: as many as a topic's may have; a group's has up to 32 KiB."""

NOTED_MAX: Final = 1_000
"""The most refusals that are told in a minute, and uses that rules would refuse that are known, the newest."""

TOLD_OF_ONE_MAX: Final = 100
"""The most refusals of one principal among these: whoever asks for much silences nobody else."""

QUIET_MS: Final = 60_000
"""A refusal that is repeated is told again after so long."""


Asked = tuple[str, str, Operation, Kind, str | None]
"""A principal and the address of its client, and what it wants to do with which resource; None is any of the kind."""


class Use(NamedTuple):
    """An operation of a client with a resource, as it is told."""

    principal: str
    operation: Operation
    kind: Kind
    name: str | None

    @classmethod
    def of(cls, asked: Asked) -> "Use":
        """The use that is asked for, with the beginning of a long name."""
        principal, _, operation, kind, name = asked
        return cls(principal, operation, kind, name and name[:NAME_CHARACTERS_MAX])


class Authority:
    """Decides for the sessions of all listeners; each change of what it goes by raises ``epoch``."""

    def __init__(self, config: BrokerConfig, rules: Rules) -> None:
        self.epoch = 0
        """Decisions made with the same epoch are the same."""
        self.decisions: dict[Asked, bool] = {}
        """Those made with this one; while rules are not in force, of uses that were noted."""
        self.rules = rules
        self._seen: dict[Use, tuple[str, int]] = {}  # host and moment, the newest last
        self._told_until = 0
        self._told: dict[Use, int] = {}  # refusals of this minute, with their repeats
        self._told_before: dict[Use, int] = {}  # those of the minute before
        self._told_of: Counter[str] = Counter()  # by principal
        self._configure(config)

    def _configure(self, config: BrokerConfig) -> None:
        self.is_enforced = bool(config.authorizer_class_name)
        """True while rules are in force."""
        self.super_users = frozenset(config.super_users)
        self._allows_unruled = config.allow_everyone_if_no_acl_found
        self._is_open = not config.super_users and not has_authentication(config)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Go by another configuration."""
        before = (self.is_enforced, self.super_users, self._allows_unruled)
        self._configure(config)
        if before != (self.is_enforced, self.super_users, self._allows_unruled):
            self._begin_epoch()

    def adopt(self, rules: Rules) -> None:
        """Go by other rules."""
        self.rules = rules
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.decisions.clear()

    def administers(self, principal: str) -> bool:
        """True if a client administers whatever rules say."""
        return principal in self.super_users or (self._is_open and not self.is_enforced)

    def allows(self, principal: str, host: str, operation: Operation, kind: Kind, name: str | None) -> bool:
        """True if a client at the address ``host`` may do an operation with a resource; None: with any of the kind."""
        return self.decide(principal, host, operation, kind, name).is_allowed

    def decide(
        self, principal: str, host: str, operation: Operation, kind: Kind, name: str | None, *, by_rules: bool = False
    ) -> Decision:
        """``allows`` with the reason; ``by_rules`` as if they were in force."""
        if not (self.is_enforced or by_rules):
            return Decision(operation not in ADMINISTRATIVE or self.administers(principal), "for super.users alone")
        if principal in self.super_users:
            return Decision(is_allowed=True, why=ABOVE_RULES)
        asked = ANY_RESOURCE if name is None else name
        decision = self.rules.decide(principal, host, operation, kind, asked, is_open=self._allows_unruled)
        if name is not None or decision.is_allowed:
            return decision
        return Decision(self.rules.decide_any(principal, host, operation, kind), NO_RULE)

    def decided(self, asked: Asked, used_ms: int | None = None) -> bool:
        """``allows``, of which the decision is kept where it goes by rules.

        It is also kept with ``used_ms``, the moment of a use: what rules, not in force, would refuse is known then.
        """
        found = self.decisions.get(asked)
        if found is not None:
            return found
        found = self.allows(*asked)
        if self.is_enforced or used_ms is not None:
            if len(asked[-1] or "") <= NAME_CHARACTERS_MAX:
                if len(self.decisions) >= DECISIONS_MAX:
                    self.decisions.clear()
                self.decisions[asked] = found
            if found and used_ms is not None and not self.is_enforced:
                self._note_use(asked, used_ms)
        return found

    def _note_use(self, asked: Asked, now_ms: int) -> None:
        if not self.decide(*asked, by_rules=True).is_allowed:
            use = Use.of(asked)
            self._seen.pop(use, None)
            self._seen[use] = asked[1], now_ms
            if len(self._seen) > NOTED_MAX:
                del self._seen[next(iter(self._seen))]

    def refused_if_enforced(self) -> list[tuple[Use, int]]:
        """What clients did and rules, as they are now, would refuse, with when it was seen; the newest first."""
        return [
            (use, at)
            for use, (host, at) in reversed(self._seen.items())
            if not self.decide(use.principal, host, *use[1:], by_rules=True).is_allowed
        ]

    def note_refusal(self, use: Use, now_ms: int) -> int | None:
        """Count a refusal: how often it was repeated since it was told last, or None if it is not to be told now.

        In a minute so many are told, and no more, whatever clients ask for; of each principal a part of them.
        """
        if now_ms >= self._told_until:
            self._told_until = now_ms + QUIET_MS
            self._told, self._told_before, self._told_of = {}, self._told, Counter()
        if use in self._told:
            self._told[use] += 1
            return None
        if len(self._told) >= NOTED_MAX or self._told_of[use.principal] >= TOLD_OF_ONE_MAX:
            return None
        self._told[use] = 0
        self._told_of[use.principal] += 1
        return self._told_before.pop(use, 0)
