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
from typing import Any, Final, NamedTuple

from seglog_broker.config import BrokerConfig
from seglog_broker.config.listeners import has_authentication
from seglog_protocol.access import ANY_RESOURCE, Decision, Kind, Operation, Rules

ADMINISTRATIVE: Final = frozenset(
    (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS, Operation.CLUSTER_ACTION)
)
"""The operations that are for administrators alone while rules are not in force, with whatever resource."""

NOTED_MAX: Final = 1_000
"""The most refusals, and uses that rules would refuse, that are known; the oldest are forgotten."""

TOLD_OF_ONE_MAX: Final = 100
"""The most refusals of one principal among these: whoever asks for much silences nobody else."""

QUIET_MS: Final = 60_000
"""A refusal that is repeated is told again after so long."""


class Use(NamedTuple):
    """An operation of a client with a resource."""

    principal: str
    operation: Operation
    kind: Kind
    name: str | None
    """None: of any of the kind."""


class Authority:
    """Decides for the sessions of all listeners; each change of what it goes by raises ``epoch``."""

    def __init__(self, config: BrokerConfig, rules: Rules) -> None:
        self.epoch = 0
        """Decisions made with the same epoch are the same."""
        self.rules = rules
        self._seen: dict[Use, tuple[str, int]] = {}  # host and moment, the newest last
        self._refused: dict[Use, tuple[int, int]] = {}  # when it was told, and repeats since; the oldest first
        self._told_of: Counter[str] = Counter()  # of these, by principal
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
            self.epoch += 1

    def adopt(self, rules: Rules) -> None:
        """Go by other rules."""
        self.rules = rules
        self.epoch += 1

    def administers(self, principal: str) -> bool:
        """True if a client administers whatever rules say."""
        return principal in self.super_users or (self._is_open and not self.is_enforced)

    def allows(self, principal: str, host: str, operation: Operation, kind: Kind, name: str | None) -> bool:
        """True if a client at the address ``host`` may do an operation with a resource; None: with any of the kind."""
        if not self.is_enforced:
            return operation not in ADMINISTRATIVE or self.administers(principal)
        return self.would_allow(principal, host, operation, kind, name)

    def would_allow(self, principal: str, host: str, operation: Operation, kind: Kind, name: str | None) -> bool:
        """``allows`` with rules in force."""
        is_allowed = self.decide(principal, host, operation, kind, ANY_RESOURCE if name is None else name).is_allowed
        if name is not None or is_allowed:
            return is_allowed
        return self.rules.decide_any(principal, host, operation, kind)

    def decide(self, principal: str, host: str, operation: Operation, kind: Kind, name: str) -> Decision:
        """The decision of rules and super.users, in force or not, with the rule that decides."""
        if principal in self.super_users:
            return Decision(is_allowed=True, rule=None, has_rules=False)
        decision = self.rules.decide(principal, host, operation, kind, name)
        if self._allows_unruled and not decision.has_rules:
            return decision._replace(is_allowed=True)
        return decision

    def note_use(self, use: Use, host: str, now_ms: int) -> None:
        """Remember what a client does while rules are not in force, if they would refuse it."""
        if not self.would_allow(use.principal, host, *use[1:]):
            self._seen.pop(use, None)
            self._seen[use] = host, now_ms
            _forget_oldest(self._seen)

    def refused_if_enforced(self) -> list[tuple[Use, int]]:
        """What clients did and rules, as they are now, would refuse, with when it was seen; the newest first."""
        seen = reversed(self._seen.items())
        return [(use, at) for use, (host, at) in seen if not self.would_allow(use.principal, host, *use[1:])]

    def note_refusal(self, use: Use, now_ms: int) -> int | None:
        """Count a refusal: how often it was repeated since it was told last, or None if it is not to be told now.

        In a minute so many are told, and no more, whatever clients ask for; of each principal a part of them.
        """
        refused = self._refused
        told_ms, repeated = refused.get(use, (now_ms - QUIET_MS, 0))
        if now_ms < told_ms + QUIET_MS:
            refused[use] = told_ms, repeated + 1
            return None
        kept_ms = QUIET_MS if len(refused) >= NOTED_MAX else 2 * QUIET_MS
        while refused and next(iter(refused.values()))[0] + kept_ms <= now_ms:
            self._forget_refusal()
        if use not in refused:
            if len(refused) >= NOTED_MAX or self._told_of[use.principal] >= TOLD_OF_ONE_MAX:
                return None
            self._told_of[use.principal] += 1
        refused.pop(use, None)
        refused[use] = now_ms, 0
        return repeated

    def _forget_refusal(self) -> None:
        """Forget the one that was told longest ago."""
        use = next(iter(self._refused))
        del self._refused[use]
        self._told_of -= Counter((use.principal,))


def _forget_oldest(noted: dict[Use, tuple[Any, int]]) -> None:
    if len(noted) > NOTED_MAX:
        del noted[next(iter(noted))]
