"""OAUTHBEARER (RFC 7628): the client shows a token signed by an identity provider, whose keys are a JWKS (RFC 7517).

As with Kafka, a token that is not accepted is answered, ``{"status":"invalid_token"}``; the exchange fails at the
client's next token, by which it says that it has understood.

The keys are kept, read again when they are old, and looked up at once for a token whose key is not known: but no more
often than every ten seconds, however many such tokens come.
"""

import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio
from jwt import PyJWK, PyJWTError, decode, get_unverified_header
from jwt.types import Options

from seglog_broker.logger import get_logger
from seglog_broker.runtime.offload import Offload
from seglog_broker.security.sasl import Exchange, Identity, refused
from seglog_broker.storage.directory.accounts import why_impossible_name
from seglog_broker.storage.io.clock import Clock

log = get_logger()

ALGORITHMS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Signatures that are accepted, none of which a client could make: each with the type of its key, and its curve."""

RETRY_SECONDS: Final = 10
"""Keys are read at most this often."""

TIMEOUT_SECONDS: Final = 10
BYTES_MAX: Final = 1_048_576
KEYS_MAX: Final = 100

Read = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key. ``public`` is of ``cryptography``."""

    kid: str | None
    kty: str
    curve: str | None
    algorithm: str | None
    public: Any

    def fits(self, algorithm: str) -> bool:
        """Whether a signature by ``algorithm``, one of ALGORITHMS, may be by this key."""
        return (self.kty, self.curve) == ALGORITHMS[algorithm] and self.algorithm in {None, algorithm}


def parse_keys(content: bytes) -> list[SigningKey]:
    """The keys in a JWKS that sign by one of ALGORITHMS; others are left out. Raises ValueError."""
    found = json.loads(content)
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it has no list of keys")  # noqa: TRY004 - the content of a file
    keys = []
    for each in listed[:KEYS_MAX]:
        if not isinstance(each, dict) or each.get("kty") not in {"RSA", "EC", "OKP"} or each.get("use") == "enc":
            continue
        if "d" in each:
            raise ValueError("it has a private key, which only the provider should know")
        try:
            public = PyJWK(each).key
        except PyJWTError:
            continue  # of a kind that is not known, as a newer one
        kid, algorithm = each.get("kid"), each.get("alg")
        keys.append(SigningKey(kid, each["kty"], each.get("crv"), algorithm, public))
    if not keys:
        raise ValueError("it has no key that tokens may be signed with")
    return keys


class _TlsRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to addresses with TLS alone: on any other, somebody could lead to keys of their own."""

    def redirect_request(self, *args: Any, **named: Any) -> urllib.request.Request | None:
        """See the class. Raises ValueError."""
        request = super().redirect_request(*args, **named)
        if request is not None and request.type != "https":
            raise ValueError("it leads to an address without TLS")
        return request


def read_url(url: str, bytes_max: int = BYTES_MAX) -> bytes:
    """What is at a ``file:`` or ``https:`` address, ``bytes_max`` at most. Raises OSError, or ValueError."""
    handlers: list[urllib.request.BaseHandler] = [_TlsRedirects()]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read(bytes_max + 1)
    except urllib.error.HTTPError as error:
        raise OSError(f"its server answers {error.code}") from None
    if len(content) > bytes_max:
        raise ValueError(f"it has more than {bytes_max:,} bytes")
    return content


class Jwks:
    """The keys of one address."""

    def __init__(self, url: str, refresh_ms: int, clock: Clock, offload: Offload, read: Read = read_url) -> None:
        self._url = url
        self._refresh_ms = refresh_ms
        self._clock = clock
        self._offload = offload
        self._read = read
        self._keys: list[SigningKey] = []
        self._read_at_ms: int | None = None
        self._tried_at = -float("inf")  # in the loop's time
        self._reading = trio.Lock()
        self._failure: str | None = ""  # of the last reading; empty before the first

    async def keys(self, kid: object) -> list[SigningKey]:
        """The keys called ``kid``, all without one; read anew where they are old or none has the name."""
        if self._is_old() and not self._reading.locked():
            await self._renew()
        if not self._called(kid):
            await self._renew()
        return self._called(kid)

    def _called(self, kid: object) -> list[SigningKey]:
        return [key for key in self._keys if kid is None or key.kid == kid]

    def _is_old(self) -> bool:
        age = None if self._read_at_ms is None else self._clock.now_ms() - self._read_at_ms
        return age is None or not 0 <= age < self._refresh_ms

    async def _renew(self) -> None:
        """Read the keys, unless that was done a moment ago; who comes meanwhile waits for it. Keeps them on failure."""
        began = trio.current_time()
        async with self._reading:
            if self._tried_at >= began or trio.current_time() < self._tried_at + RETRY_SECONDS:
                return
            self._tried_at = trio.current_time()
            try:
                content = await self._offload.configuration(self._read, self._url)
                self._keys = parse_keys(content)
            except (OSError, ValueError, RecursionError) as error:
                if self._failure != str(error):
                    log.warning("oauth_keys_not_read", url=self._url, reason=str(error), keys=len(self._keys))
                self._failure = str(error)
            else:
                self._read_at_ms = self._clock.now_ms()
                tell = log.debug if self._failure is None else log.info  # reading them again and again is no news
                tell("oauth_keys_read", url=self._url, keys=len(self._keys))
                self._failure = None


INVALID_TOKEN: Final = b'{"status":"invalid_token"}'

TOKEN_BYTES_MAX: Final = 48 * 1024
"""Most bytes of a message: JSON of half a megabyte, which Kafka would let in, takes half a tenth of a second."""

_MESSAGE: Final = re.compile(rb"n,(?:a=([^\x00\x01,]+))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01")
_SCHEME: Final = re.compile(rb"bearer +([-_.A-Za-z0-9=]+)", re.IGNORECASE)
_TIMES: Final = ("exp", "nbf", "iat")

_CHECKED_HERE: Final = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}  # by the broker's clock


class TokenError(Exception):
    """A token is not accepted: why, without any part of it."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say."""

    audience: Sequence[str]
    """One of these; empty for any."""
    issuer: str
    """Empty for any."""
    sub_claim: str
    scope_claim: str
    clock_skew_seconds: int


class TokenValidator:
    """Checks tokens: signed ones by ``jwks``, and those without a signature alone where that is None."""

    def __init__(self, rules: TokenRules, jwks: Jwks | None, clock: Clock) -> None:
        self._rules = rules
        self._jwks = jwks
        self._clock = clock

    def begin(self) -> "BearerExchange":
        """An exchange whose token is checked so."""
        return BearerExchange(self)

    async def identity(self, token: str) -> Identity:
        """Whom the token names, and until when. Raises TokenError."""
        try:
            header = get_unverified_header(token)
            claims = self._unsecured(token, header) if self._jwks is None else await self._secured(token, header)
        except PyJWTError as error:
            problem = type(error).__name__
        else:
            return self._checked(claims)
        raise TokenError(f"it is not valid: {problem}")

    async def _secured(self, token: str, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claims of a token with a good signature."""
        assert self._jwks is not None
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise TokenError("its algorithm is not accepted")
        keys = [key for key in await self._jwks.keys(kid) if key.fits(algorithm)]
        problem = "no key fits it"
        for key in keys:
            try:
                return self._decoded(token, key=key.public, algorithms=[algorithm], options={})
            except PyJWTError as error:
                problem = type(error).__name__
        raise TokenError(f"it is not valid: {problem}")

    def _unsecured(self, token: str, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """The claims of a token without a signature, which anyone can make."""
        if header.get("alg") != "none" or not token.endswith("."):
            raise TokenError("it has a signature, and tokens without one are expected")
        return self._decoded(
            token, options={"verify_signature": False, "verify_aud": True, "verify_iss": True, "verify_sub": True}
        )

    def _decoded(self, token: str, *, options: Options, **key: Any) -> Mapping[str, Any]:
        rules = self._rules
        all_options: dict[str, Any] = {
            **options,
            **_CHECKED_HERE,
            "verify_aud": bool(rules.audience),
            "verify_jti": False,
            "enforce_minimum_key_length": True,
        }
        if rules.sub_claim != "sub":
            all_options["verify_sub"] = False
        return decode(
            token,
            options=all_options,  # type: ignore[arg-type]  # put together
            audience=rules.audience or None,
            issuer=rules.issuer or None,
            **key,
        )

    def _checked(self, claims: Mapping[str, Any]) -> Identity:
        rules, now = self._rules, self._clock.now_ms() / 1000
        times: dict[str, Any] = {name: claims[name] for name in _TIMES if claims.get(name) is not None}
        if any(type(value) not in {int, float} or not 0 <= value < 2**53 for value in times.values()):
            raise TokenError("a time in it is no number")
        expires = times.get("exp")
        if expires is None:
            raise TokenError("it has no exp, when it ends")
        if expires + rules.clock_skew_seconds <= now:
            raise TokenError("it has expired")
        if max(times.get("nbf", 0), times.get("iat", 0)) - rules.clock_skew_seconds > now:
            raise TokenError("it is not valid yet")
        scope = claims.get(rules.scope_claim, "")
        if not isinstance(scope, str) and not (isinstance(scope, list) and all(isinstance(s, str) for s in scope)):
            raise TokenError(f"its {rules.scope_claim} is neither text nor a list of texts")
        name = claims.get(rules.sub_claim)
        if not isinstance(name, str) or not name.strip() or why_impossible_name(name) is not None:
            raise TokenError(f"its {rules.sub_claim} names no account")
        return Identity(f"User:{name}", int(expires * 1000))


class BearerExchange(Exchange):
    """One token of the client, and a second one after a failure."""

    mechanism = "OAUTHBEARER"

    def __init__(self, validator: TokenValidator) -> None:
        self._validator = validator
        self._reason: str | None = None
        self._told: str | None = None
        self._is_begun = False

    async def respond(self, token: bytes) -> bytes:
        """See Exchange."""
        if self._is_begun:
            raise refused(self.mechanism, self._reason or "the exchange has ended", self._told)
        self._is_begun = True
        if len(token) > TOKEN_BYTES_MAX:
            raise refused(self.mechanism, self._fail(f"its message has more than {TOKEN_BYTES_MAX:,} bytes"))
        found = _MESSAGE.fullmatch(token)
        parts = [part.split(b"=", 1) for part in (found[2].split(b"\x01") if found else ()) if part]
        shown = [value for name, value in parts if name == b"auth"]
        bearer = _SCHEME.fullmatch(shown[0]) if len(shown) == 1 else None
        if found is None or bearer is None:
            raise refused(self.mechanism, self._fail("its first message is malformed"))
        acting_as = (found[1] or b"").decode(errors="replace").replace("=2C", ",").replace("=3D", "=")
        try:
            identity = await self._validator.identity(bearer[1].decode())
        except TokenError as error:
            self._fail(str(error))
            self._told = INVALID_TOKEN.decode()
            return INVALID_TOKEN
        self.claimed = identity.principal.removeprefix("User:")
        if acting_as not in {"", self.claimed}:
            told = (
                f"Authentication failed: Client requested an authorization id ({acting_as}) that is different from the "
                f"token's principal name ({self.claimed})"
            )
            raise refused(self.mechanism, self._fail("it asks to act as another user"), told)
        self.identity = identity
        return b""

    def _fail(self, reason: str) -> str:
        self._reason = reason
        return reason
