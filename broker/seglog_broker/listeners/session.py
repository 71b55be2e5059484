"""Who the client of a connection is, and how it proves that: the same for every wire.

========== ================== =======================================================================================
protocol   who the client is  what comes before its requests
========== ================== =======================================================================================
PLAINTEXT  ``User:ANONYMOUS`` nothing
SSL        its certificate's  the handshake of TLS; ``User:ANONYMOUS`` where it shows no certificate
           subject
SASL_...   the account that   an exchange of SASL, behind the handshake with SASL_SSL; and again before the session ends
           it has proven
========== ================== =======================================================================================
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config.listeners import ServedListener
from seglog_broker.listeners.tls_transport import TlsTransport
from seglog_broker.listeners.transport import Transport, shown_host
from seglog_broker.logger import get_logger
from seglog_broker.runtime.metrics import NATIVE
from seglog_broker.security.authority import NAME_CHARACTERS_MAX, Asked, Use
from seglog_broker.security.principals import ANONYMOUS, subject_of
from seglog_broker.security.sasl import Exchange
from seglog_broker.security.tls import LoadedTls, ServerTls
from seglog_protocol import errors
from seglog_protocol.access import ANY_NAME, CLUSTER, OPERATIONS, Kind, Operation

EXCHANGE_SECONDS: Final = 10
"""A connection that is not authenticated after this time, waits of the broker's own included, is closed."""

CERTIFICATE: Final = "TLS"
"""The mechanism of a client that has shown a certificate."""

STEPS_MAX: Final = 10
"""Tokens of one exchange; SCRAM takes two. Further ones are refused."""

_IS_OPEN: Final = "SaslAuthenticate request received after successful authentication"
"""Kafka's sentence."""

log = get_logger()


Need = tuple[Operation, Kind]
"""The need of a request: an operation, with whatever resources of a kind."""

_ADMINISTERED: Final = {Kind.TOPIC: "topics", Kind.GROUP: "groups"}


def error_for(kind: Kind) -> tuple[type[errors.AuthorizationError], str]:
    """The error for who may not do something with a resource, and its field for the name, if it has one."""
    match kind:
        case Kind.TOPIC:
            return errors.TopicAuthorizationError, "topic"
        case Kind.GROUP:
            return errors.GroupAuthorizationError, "group"
        case Kind.TRANSACTIONAL_ID:
            return errors.TransactionalIdAuthorizationError, "transactional_id"
    return errors.AuthorizationError, ""


class Listener(NamedTuple):
    """What a listener asks of its clients."""

    name: str = ""
    """In capitals; empty for the native one."""
    protocol: str = "PLAINTEXT"
    """Kafka's security protocol."""
    is_loopback: bool = True
    """Whether it is reached from this machine alone."""
    tls: LoadedTls | None = None
    """With SSL and SASL_SSL."""

    @classmethod
    def of(cls, served: ServedListener, tls: ServerTls | None) -> "Listener":
        """What a listener of the configuration asks; ``tls`` is the broker's, where any listener has it."""
        return cls(served.name, served.protocol, served.is_loopback, None if tls is None else tls.of(served))

    @property
    def label(self) -> str:
        """Its name in metrics and in the log."""
        return self.name or NATIVE

    @property
    def has_sasl(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self.protocol.startswith("SASL")

    def transport(self, plain: Transport, broker: Broker) -> Transport:
        """The transport of an accepted connection. Raises OSError if its peer has left."""
        if self.tls is None:
            return plain
        if plain.has_left():  # while it waited to be accepted: without a handshake it has asked for nothing
            broker.metrics.tls_handshakes_failed += 1
            raise ConnectionResetError
        return TlsTransport(plain, self.tls.context, broker.offload)


WITHOUT_AUTHENTICATION: Final = Listener()
"""One that asks for nothing."""


class Step(NamedTuple):
    """The broker's part of one step of an exchange."""

    token: bytes
    is_done: bool
    session_ms: int | None
    """How long the client is who it has proven to be, from the last step on; None: as long as it likes."""


class Session:
    """Who the client of one connection is."""

    def __init__(self, broker: Broker, listener: Listener, transport: Transport) -> None:
        self.listener = listener
        self.principal = ANONYMOUS
        self.is_open = not listener.has_sasl
        """Whether requests are served."""
        self.ends_at = math.inf
        """By trio's clock: from then on, requests are barred that do not authenticate the client again."""
        self._ends_after = math.inf  # as ``ends_at``, also during an exchange
        self.has_failed = False
        """Whether a proof was refused: the connection is to be closed."""
        self._broker = broker
        self._authority = broker.authority
        self._decisions = broker.authority.decisions
        self.counts = broker.metrics.listener(listener.label)
        """Of its listener."""
        self._transport = transport
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._steps = 0
        self.peer = transport.peer  # as it was, for when it has left
        self._host = shown_host(self.peer.rpartition(":")[0].strip("[]"))[1:]  # as Kafka writes it; may be empty
        self.at_end: Callable[[Session], None] | None = None
        """Called when the connection has ended."""

    def end(self) -> None:
        """The connection has ended."""
        if self.at_end is not None:
            self.at_end(self)

    @property
    def _log(self) -> Any:
        """Bound when something is logged: most connections have nothing to say."""
        return log.bind(peer=self.peer, listener=self.listener.label)

    def note_handshake(self) -> None:
        """The handshake of TLS is done: the client may have shown a certificate."""
        certificate = self._transport.peer_certificate
        if certificate is None or self.listener.has_sasl:
            return
        assert self.listener.tls is not None
        try:
            name = self.listener.tls.rules.name_of(subject_of(certificate))
        except errors.AuthenticationError as error:
            self.has_failed = True
            self.counts.authentication_failures[CERTIFICATE] += 1
            self._log.warning(
                "authentication_failed", host=self._transport.host, mechanism=CERTIFICATE, reason=error.message
            )
            return
        self.principal = f"User:{name}"
        self.counts.authentications[CERTIFICATE] += 1
        self._log.info("client_authenticated", principal=self.principal, mechanism=CERTIFICATE)

    def is_of(self, user: str) -> bool:
        """Whether the client has authenticated as an account."""
        return bool(self._mechanism) and self.principal == f"User:{user}"

    # --- SASL ---------------------------------------------------------------------------------------------------------

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of SASL that the client may choose from; none on a listener without accounts."""
        if not self.listener.has_sasl:
            return ()
        return self._broker.authenticator.mechanisms(self.listener.name, is_private=self._is_private)

    @property
    def is_in_exchange(self) -> bool:
        """Whether an exchange has begun that is not complete."""
        return self._exchange is not None

    @property
    def _is_private(self) -> bool:
        return self.listener.is_loopback or self._transport.is_encrypted

    def begin(self, mechanism: str, *, is_alone: bool) -> None:
        """Begin an exchange; with ``is_alone`` all that is not a part of it is barred until it is complete.

        Raises UnsupportedMechanismError, of which the wire says whether it ends the connection, and
        AuthenticationRequiredError where no exchange is wanted: there are no accounts, or the session has no end.
        """
        if self.is_open and self._ends_after == math.inf:
            raise errors.AuthenticationRequiredError(_IS_OPEN)
        self._exchange = self._broker.authenticator.begin(mechanism, self.listener.name, is_private=self._is_private)
        if is_alone:
            self.ends_at = -math.inf
        self._steps = 0

    async def respond(self, token: bytes) -> Step:
        """Go on with the exchange that was begun.

        Raises AuthenticationError when it fails, and OutOfResourcesError where nothing was checked, both after the time
        of ``connection.failed.authentication.delay.ms``: the connection is to be closed with that answer.
        """
        exchange = self._exchange
        if exchange is None:
            raise errors.AuthenticationRequiredError(_IS_OPEN)
        self._steps += 1
        try:
            self._check_step(exchange)
            answer = await exchange.respond(token)
            identity = exchange.identity
            if identity is not None and self._mechanism and identity.principal != self.principal:
                before, now = self.principal, identity.principal
                raise errors.AuthenticationError(
                    f"Cannot change principals during re-authentication from {before} to {now}"
                )
        except errors.SeglogError as error:
            self._exchange = None
            self.has_failed = True
            await self._note_failure(exchange, error)
            raise
        if identity is None:
            return Step(answer, is_done=False, session_ms=None)
        self._exchange = None
        reauth_ms = self._broker.config.of_listener(self.listener.name).connections_max_reauth_ms
        limits = [reauth_ms] if reauth_ms else []
        if identity.expires_at_ms is not None:
            limits.append(max(0, identity.expires_at_ms - self._broker.clock.now_ms()))
        session_ms = min(limits, default=None)  # the shorter of the two, as in Kafka
        self.principal, self._mechanism, self.is_open = identity.principal, exchange.mechanism, True
        self.ends_at = math.inf if session_ms is None else trio.current_time() + session_ms / 1000
        self._ends_after = self.ends_at
        self.counts.authentications[exchange.mechanism] += 1
        self._log.info("client_authenticated", principal=self.principal, mechanism=exchange.mechanism)
        return Step(answer, is_done=True, session_ms=session_ms)

    def _check_step(self, exchange: Exchange) -> None:
        if self._mechanism and exchange.mechanism != self._mechanism:
            raise errors.AuthenticationError(
                f"SASL mechanism '{exchange.mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._mechanism}'"
            )
        if self._steps > STEPS_MAX:
            raise errors.AuthenticationError(f"{exchange.mechanism} takes no more than {STEPS_MAX} steps")

    # --- What it may do -----------------------------------------------------------------------------------------------

    @property
    def administers(self) -> bool:
        """True if the client administers whatever rules say."""
        return self._authority.administers(self.principal)

    def allows(self, operation: Operation, kind: Kind, name: str | None = CLUSTER) -> bool:
        """True if the client may do an operation with a resource; None: with any of the kind.

        A refusal is counted and logged.
        """
        asked = self.principal, self._host, operation, kind, name
        if self._decisions.get(asked):
            return True  # as nearly always
        is_allowed = self._authority.decided(asked, self._broker.clock.now_ms())
        if not is_allowed:
            self._note_refusal(asked)
        return is_allowed

    def sees(self, operation: Operation, kind: Kind, name: str | None = CLUSTER) -> bool:
        """``allows`` of what is not asked for but shown or left out: nothing is noted."""
        return self._authority.decided((self.principal, self._host, operation, kind, name))

    def operations(self, kind: Kind, name: str) -> int:
        """The operations that the client may do with a resource, a bit for each of Kafka's numbers; none is kept."""
        decide, bits = partial(self._authority.allows, self.principal, self._host), OPERATIONS[kind]
        return sum(1 << each for each in Operation if bits >> each & 1 and decide(each, kind, name))

    def refusal(
        self, operation: Operation, kind: Kind, name: str = CLUSTER, *, is_new: bool = False
    ) -> errors.AuthorizationError | None:
        """Why the client may not do an operation with a resource, or with ``is_new`` one to be; None if it may.

        It is for the client, and names no rule.
        """
        return None if self.allows(operation, kind, name) else self._refused(operation, kind, name, is_new=is_new)

    def refusal_of(self, need: Need) -> errors.AuthorizationError | None:
        """Why the client may not ask what ``need`` says; None if it may, and where the resources themselves decide.

        While rules are not in force it is for administrators alone.
        """
        operation, kind = need
        name = CLUSTER if kind is Kind.CLUSTER else ""
        if self._authority.is_enforced:
            return self.refusal(operation, kind) if name else None
        if self.administers:
            return None
        self._note_refusal((self.principal, self._host, operation, kind, name))
        return self._refused(operation, kind, name)

    def _refused(
        self, operation: Operation, kind: Kind, name: str, *, is_new: bool = False
    ) -> errors.AuthorizationError:
        begin = f"there is no topic {name[:NAME_CHARACTERS_MAX]}, and {self.principal}" if is_new else self.principal
        if self._authority.is_enforced:
            what = "create it" if is_new else f"{operation.name} {kind.name} {name[:NAME_CHARACTERS_MAX]}"
            message = f"{begin} may not {what}: who administers this broker can allow it"
        else:
            what = "create it" if is_new else f"administer {_ADMINISTERED.get(kind, 'the broker and its accounts')}"
            message = (
                f"{begin} may not {what}: that is for the accounts of super.users, which an operator sets in the "
                "broker's configuration"
            )
        error, field = error_for(kind)
        return error(message, principal=self.principal, **({field: name} if field else {}))

    def _note_refusal(self, asked: Asked) -> None:
        """Count a refusal, and log it with the rule that decided; one that is repeated once a minute."""
        self._broker.metrics.authorization_refusals += 1
        use = Use.of(asked)
        repeated = self._authority.note_refusal(use, self._broker.clock.now_ms())
        if repeated is not None:
            self._log.warning(
                "authorization_refused",
                principal=use.principal,
                host=self._host,
                operation=use.operation.name,
                resource=use.kind.name,
                name=use.name or ANY_NAME,
                rule=str(self._authority.decide(*asked).why),
                repeated=repeated,
            )

    async def _note_failure(self, exchange: Exchange, error: errors.SeglogError) -> None:
        if isinstance(error, errors.AuthenticationError):  # else nothing was checked
            self.counts.authentication_failures[exchange.mechanism] += 1
        self._log.warning(
            "authentication_failed",
            host=self._transport.host,
            mechanism=exchange.mechanism,
            claimed=exchange.claimed,
            reason=str(error.__cause__ or error.message),
        )
        await trio.sleep(self._broker.config.connection_failed_authentication_delay_ms / 1000)
