"""The keys that an identity provider signs tokens with (JWKS, RFC 7517), read from a file or an address.

They are kept, read again when they are old, and looked up at once for a token whose key is not known: but no more often
than every ten seconds, however many such tokens come.
"""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import trio
from jwt import PyJWK, PyJWTError

from seglog_broker.logger import get_logger
from seglog_broker.runtime.offload import Offload
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
