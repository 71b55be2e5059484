"""What a connection proves and trusts: settings, valid once they are made, without I/O.

Secrets are kept in a ``Secret``, which shows them to no ``repr``, and so to no log, no error, no traceback with its
variables. All of it can be pickled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast, get_args

from seglog.core.dialing import Address, parse_address

if TYPE_CHECKING:
    import ssl

Mechanism = Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"]
MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)
SCRAM_MECHANISMS: Final[tuple[Mechanism, ...]] = ("SCRAM-SHA-512", "SCRAM-SHA-256")

_SCHEMES: Final = {"seglog": False, "seglogs": True}


class Secret:
    """A text that is not to be shown, or the function that gives it each time it is needed."""

    __slots__ = ("_source",)

    def __init__(self, source: "str | Callable[[], str] | Secret") -> None:
        """Whatever is given is hidden first; ``problem`` tells what is wrong with it."""
        self._source: str | Callable[[], str] = source._source if isinstance(source, Secret) else source  # noqa: SLF001

    @property
    def problem(self) -> str:
        """Why it cannot be a secret; "" if it can, as far as that is known before it is needed."""
        if callable(self._source):
            return ""
        if not isinstance(self._source, str):
            return "is text, or a function that returns it"
        return "" if self._source else "must not be empty"

    def reveal(self) -> str:
        """The text. Raises ValueError, which does not show it, where there is none."""
        found = Secret(self._source()) if callable(self._source) else self
        if found.problem:
            raise ValueError(f"the password or token {found.problem}")
        return cast("str", found._source)  # noqa: SLF001 - its own

    def __repr__(self) -> str:
        return "Secret(...)"


def hidden(text: "str | Callable[[], str] | Secret | None") -> Secret | None:
    """The same as a Secret, for whoever was given it, before anything can fail."""
    return None if text is None else Secret(text)


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client checks the broker's certificate, and which it shows.

    ``ca`` is a file with the certificates of authorities that are trusted, in PEM; None for those of the system.
    ``certificate`` and ``key`` are files in PEM, for brokers that want a certificate of their clients; the key may be
    in the file of the certificate, and encrypted: ``key_password`` is text, or a function that returns it. Without
    ``check_hostname`` any certificate that such an authority has signed will do.
    """

    ca: str | PathLike[str] | None = None
    certificate: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None
    key_password: "str | Callable[[], str] | Secret | None" = field(default=None, repr=False)
    check_hostname: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a key without a certificate, and a password without either."""
        if self.key is not None and self.certificate is None:
            raise ValueError("a key is for a certificate, which is missing")
        if self.key_password is not None:
            if self.certificate is None:
                raise ValueError("the password of a key is for a certificate and its key, which are missing")
            object.__setattr__(self, "key_password", Secret(self.key_password))


class Account(NamedTuple):
    """Whom a client claims to be, with a password. ``mechanism`` None: the best that the listener takes."""

    user: str
    password: Secret
    mechanism: Mechanism | None = None


class Bearer(NamedTuple):
    """A token that says who the client is, for OAUTHBEARER."""

    token: Secret

    @property
    def mechanism(self) -> Mechanism:
        """The only one there is for it."""
        return "OAUTHBEARER"


Identity = Account | Bearer


class Target(NamedTuple):
    """A broker, and how to come to it. ``tls`` None: without TLS; ``identity`` None: without an account."""

    address: Address
    tls: "Tls | ssl.SSLContext | None" = None
    identity: Identity | None = None

    @property
    def is_private(self) -> bool:
        """Whether nobody else can read what is sent: with TLS, or on this machine."""
        return self.tls is not None or is_loopback(self.address.host)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its address or as ``localhost``."""
    import ipaddress  # noqa: PLC0415 - only where PLAIN is offered

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def parse_server(text: str) -> tuple[Address, bool | None]:
    """``HOST:PORT``, ``seglog://HOST:PORT`` or ``seglogs://HOST:PORT``; whether that says TLS, None where it does not.

    Raises ValueError, with a sentence for users, for anything else.
    """
    if not isinstance(text, str):
        what = f"{text}: write 'localhost:{text}'" if isinstance(text, int) else type(text).__name__
        raise TypeError(f"the address is text, HOST:PORT, not {what}")
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        return parse_address(text), None
    return parse_address(rest.removesuffix("/")), _SCHEMES[scheme.lower()]


def target_of(
    server: str,
    *,
    user: str | None = None,
    password: Secret | None = None,
    token: Secret | None = None,
    mechanism: str | None = None,
    tls: "bool | str | PathLike[str] | Tls | ssl.SSLContext | None" = None,
) -> Target:
    """The target by what a program gives. Raises ValueError with a sentence for what does not fit together."""
    address, says_tls = parse_server(server)
    return Target(address, _tls(server, says_tls, tls), _identity(user, password, token, mechanism))


def _tls(server: str, says_tls: bool | None, tls: Any) -> "Tls | ssl.SSLContext | None":
    if tls is None:
        return Tls() if says_tls else None
    if tls is False:
        if says_tls:
            raise ValueError(f"{server} is with TLS, and tls is False; write seglog:// for a connection without")
        return None
    if says_tls is False:
        raise ValueError(f"{server} is without TLS, and tls asks for it; write seglogs:// for a connection with TLS")
    if tls is True:
        return Tls()
    return Tls(ca=tls) if isinstance(tls, str | PathLike) else cast("Tls | ssl.SSLContext", tls)


def _identity(
    user: str | None, password: Secret | None, token: Secret | None, mechanism: str | None
) -> Identity | None:
    if mechanism is not None and mechanism.upper() not in MECHANISMS:
        raise ValueError(f"there is no mechanism {mechanism!r}; there are {', '.join(MECHANISMS)}")
    named = cast("Mechanism | None", None if mechanism is None else mechanism.upper())
    if token is not None:
        if user is not None or password is not None:
            raise ValueError("a token says who the client is: leave out user and password")
        if named not in {None, "OAUTHBEARER"}:
            raise ValueError(f"a token is for OAUTHBEARER, not for {named}")
        return Bearer(_checked("token", token))
    if named == "OAUTHBEARER":
        raise ValueError("OAUTHBEARER needs a token: token, text or a function that returns it")
    if user is None:
        if password is not None:
            raise ValueError("there is a password without a user")
        if named is not None:
            raise ValueError(f"{named} needs a user and a password")
        return None
    if not user:
        raise ValueError("the user has no name")
    if "\0" in user:
        raise ValueError("the name of a user cannot have a NUL in it")
    if password is None:
        raise ValueError(f"there is no password for user {user!r}")
    return Account(user, _checked("password", password), named)


def _checked(name: str, secret: Secret) -> Secret:
    if secret.problem:
        raise ValueError(f"{name} {secret.problem}")
    return secret
