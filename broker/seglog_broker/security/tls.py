"""TLS of the broker's side: its certificate and key, and what it asks of clients, as a context of OpenSSL.

``load_tls`` reads what the keys ``ssl.*`` name, and checks it as a whole, ``load_all_tls`` for each listener.
``ServerTls`` keeps what is in use; a reload replaces it for new connections, those that are open stay as they are.
"""

import os
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from seglog_broker.config import BrokerConfig, ServedListener, has_tls
from seglog_broker.config.listeners import listeners_with_tls
from seglog_broker.security.principals import PrincipalRules
from seglog_broker.texts import counted
from seglog_protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

ENDS_SOON_MS: Final = 30 * 86_400_000
"""A certificate that ends within this time is warned about."""

PEM_BYTES_MAX: Final = 4_194_304
"""Bytes of a file with certificates; those of all public authorities together need a small part of it."""

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)

_KEYS: Final = frozenset({"PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"})
"""What the blocks of private keys are called."""

_JAVAS_CIPHER: Final = re.compile(r"TLS_(?:(ECDHE|DHE)_)?(RSA|ECDSA)_WITH_(AES)_(128|256)_(GCM|CBC)_(SHA\d*)")
_JAVAS_CHACHA: Final = re.compile(r"TLS_(ECDHE|DHE)_(RSA|ECDSA)_WITH_CHACHA20_POLY1305_SHA256")
_CIPHER: Final = re.compile(r"[A-Za-z0-9-]{3,64}")

_JAVAS_STORES: Final = (b"\xfe\xed\xfe\xed", b"\x30\x82", b"\x30\x80")
"""How a JKS and a PKCS12 begin."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """What the broker's certificate says; moments are ms since 1970."""

    subject: str
    """As RFC 4514 writes it; empty where the certificate has only names."""
    names: tuple[str, ...]
    """The host names and addresses that it is for."""
    begins_ms: int
    ends_ms: int
    """When the first of its chain ends."""
    listener: str = ""
    """The name of the listener that has it for itself; empty for that of all others."""

    @property
    def end(self) -> str:
        """The day and time when it ends, for people."""
        return _day(self.ends_ms)

    def is_valid(self, now_ms: int) -> bool:
        """Whether clients take it now."""
        return self.begins_ms <= now_ms < self.ends_ms

    def problem(self, now_ms: int) -> str | None:
        """A sentence where it is not valid now, or not for much longer; None if all is well."""
        own = self.listener
        whose = f"the TLS certificate of the listener {own}" if own else "the broker's TLS certificate"
        which = f"{whose} ({self.subject or ', '.join(self.names)})"
        if now_ms < self.begins_ms:
            return f"{which} is not valid before {_day(self.begins_ms)}: clients refuse it until then."
        if now_ms >= self.ends_ms:
            return (
                f"{which} ended on {_day(self.ends_ms)}: clients refuse it. Put a new one in its place and send SIGHUP."
            )
        days = (self.ends_ms - now_ms) // 86_400_000
        if self.ends_ms - now_ms <= ENDS_SOON_MS:
            return f"{which} ends on {_day(self.ends_ms)}, in {counted(days, 'day')}: renew it and send SIGHUP."
        return None


@dataclass(slots=True, eq=False)
class LoadedTls:
    """A context made of the keys ``ssl.*``, and what its certificate says. A reload changes the one of a listener."""

    context: "ssl.SSLContext"
    """For the next connection; do not keep it."""
    certificate: ServerCertificate
    rules: PrincipalRules
    """They make a name of the subject of a client's certificate."""


class ServerTls:
    """The TLS in use by all listeners that have it, as ``load_all_tls`` loads it."""

    def __init__(self, loaded: Mapping[str, LoadedTls]) -> None:
        self._of = {name: replace(each) for name, each in loaded.items()}  # of its own for each
        self._replaced = trio.Event()

    def of(self, listener: ServedListener) -> LoadedTls | None:
        """The TLS of a listener; None for one without."""
        return self._of[listener.name] if listener.has_tls else None

    @property
    def certificates(self) -> list[ServerCertificate]:
        """Those that the next connections are shown, each once."""
        return list(dict.fromkeys(tls.certificate for tls in self._of.values()))

    def replace(self, loaded: Mapping[str, LoadedTls]) -> None:
        """Use other certificates, or other rules, from the next connection on."""
        for tls, new in [(tls, loaded[name]) for name, tls in self._of.items()]:  # all of them, or none
            tls.context, tls.certificate, tls.rules = new.context, new.certificate, new.rules
        self._replaced.set()
        self._replaced = trio.Event()

    async def replaced(self) -> None:
        """Return after the next time that it is replaced."""
        await self._replaced.wait()


def server_tls(config: BrokerConfig) -> ServerTls | None:
    """The TLS of a broker that starts; None where no listener has it. Raises as ``load_tls``."""
    return ServerTls(load_all_tls(config)) if has_tls(config) else None


def load_all_tls(config: BrokerConfig) -> dict[str, LoadedTls]:
    """The TLS of each listener that has it, by its name, which is empty for those that are not Kafka's.

    Listeners without settings of their own share one. Blocks, and raises, as ``load_tls``.
    """
    shared: LoadedTls | None = None
    found = {}
    for name in dict.fromkeys(listener.name for listener in listeners_with_tls(config)):
        own = config.of_listener(name)
        if own is not config:
            found[name] = _load_own(own, name)
        else:
            shared = found[name] = load_tls(config) if shared is None else shared
    return found


def _load_own(config: BrokerConfig, listener: str) -> LoadedTls:
    """The TLS of a listener with settings of its own."""
    try:
        loaded = load_tls(config)
    except InvalidConfigError as error:
        raise InvalidConfigError(
            f"listener {listener}: {error.message}", key=error.key
        ) from None  # nothing of a key may get into a log
    has_own = any(each.listener == listener and "keystore" in each.key.name for each in config.listener_settings)
    return replace(loaded, certificate=replace(loaded.certificate, listener=listener)) if has_own else loaded


def load_tls(config: BrokerConfig) -> LoadedTls:
    """Read and check certificate, key and truststore, and make a context of them. Blocks, for some milliseconds.

    An expired certificate is loaded, as Kafka does: ``ServerCertificate.problem`` tells of it.

    Raises InvalidConfigError, which names key, file and what to do.
    """
    rules = PrincipalRules.parse(config.ssl_principal_mapping_rules)
    chain, key = _keystore(config)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    versions = sorted(ssl.TLSVersion[name.replace(".", "_")] for name in config.ssl_enabled_protocols)
    if not versions:
        _refuse("ssl.enabled.protocols", "it is empty: name TLSv1.2, TLSv1.3 or both")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _set_ciphers(context, config.ssl_cipher_suites)
    with _private_file(chain + key) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:  # such as a key that is too short for OpenSSL's level of security
            _refuse(_store_key(config), f"OpenSSL does not take certificate and key: {error.reason or error}")
    _set_client_auth(context, config)
    return LoadedTls(context, _described(_certificates(config, chain)), rules)


# --- Certificate and key ----------------------------------------------------------------------------------------------


def _keystore(config: BrokerConfig) -> tuple[bytes, bytes]:
    """The chain, the broker's own certificate first, and its private key without a password, as PEM."""
    location, chain, key = config.ssl_keystore_location, config.ssl_keystore_certificate_chain, config.ssl_keystore_key
    if location and (chain or key):
        _refuse(
            "ssl.keystore.location",
            "ssl.keystore.key or ssl.keystore.certificate.chain is set, too: choose the file or the other two",
        )
    if bool(chain) != bool(key):
        _refuse(
            "ssl.keystore.certificate.chain" if chain else "ssl.keystore.key",
            "ssl.keystore.certificate.chain and ssl.keystore.key belong together, and one of them is missing",
        )
    if not location and not chain:
        _refuse(
            "ssl.keystore.location",
            "a listener speaks TLS, and there is no certificate: name a PEM file with key and chain, such as "
            "seglogd certificates makes for a trial",
        )
    text = _read("ssl.keystore.location", location) if location else f"{chain}\n{key}"
    blocks = _blocks(text)
    certificates = [pem for kind, pem in blocks if kind == "CERTIFICATE"]
    keys = [pem for kind, pem in blocks if kind in _KEYS]
    if not certificates or len(keys) != 1:
        what = "no certificate" if not certificates else "no private key" if not keys else f"{len(keys)} private keys"
        where = "ssl.keystore.location" if location else "ssl.keystore.key"
        _refuse(where, f"there is {what} in it; it must have the broker's key and its chain, as PEM", location)
    private = _private_key(config, keys[0], location)
    pem = "".join(certificates).encode()
    own = _certificates(config, pem)
    if not _fits(own[0], private):
        why = "the private key does not fit the certificate"
        if any(_fits(certificate, private) for certificate in own):
            why = "the certificate that the private key fits must be the first of its chain"
        _refuse(_store_key(config), why, location)
    return pem, _plain(private)


def _store_key(config: BrokerConfig) -> str:
    return "ssl.keystore.location" if config.ssl_keystore_location else "ssl.keystore.certificate.chain"


def _private_key(config: BrokerConfig, pem: str, named: str) -> "PrivateKeyTypes":
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - large, and only for TLS
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415 - as above

    is_encrypted = "ENCRYPTED" in pem
    password = config.ssl_key_password.encode() if is_encrypted else None
    if is_encrypted and not password:
        raise InvalidConfigError(
            f"the private key in {named or 'ssl.keystore.key'} is encrypted, and ssl.key.password is not set: set it, "
            "best by the environment variable SEGLOG_SSL_KEY_PASSWORD.",
            key="ssl.key.password",
        )
    try:
        return load_pem_private_key(pem.encode(), password)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # not chained: nothing of a key may get into a log
        if is_encrypted:
            raise InvalidConfigError(
                f"the private key in {named or 'ssl.keystore.key'} cannot be opened with ssl.key.password: it is the "
                "password of another key, or the key is damaged.",
                key="ssl.key.password",
            ) from None
        _refuse(_store_key(config), "the private key cannot be read: it is damaged, or no PEM of PKCS#8", named)


def _plain(key: "PrivateKeyTypes") -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - as above

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _fits(certificate: "Certificate", key: "PrivateKeyTypes") -> bool:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415 - as above

    encoded = [
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (certificate.public_key(), key.public_key())
    ]
    return encoded[0] == encoded[1]


def _certificates(config: BrokerConfig, pem: bytes) -> list["Certificate"]:
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 - as above

    try:
        return load_pem_x509_certificates(pem)
    except ValueError as error:
        _refuse(_store_key(config), f"a certificate in it cannot be read: {error}", config.ssl_keystore_location)


def _described(chain: Sequence["Certificate"]) -> ServerCertificate:
    from cryptography import x509  # noqa: PLC0415 - as above

    names: list[str] = []
    try:
        extension = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += extension.get_values_for_type(x509.DNSName)
        names += map(str, extension.get_values_for_type(x509.IPAddress))
    except (x509.ExtensionNotFound, ValueError):
        pass  # an old one: clients refuse it, or look at its subject
    return ServerCertificate(
        chain[0].subject.rfc4514_string(),
        tuple(names),
        max(_ms(certificate.not_valid_before_utc) for certificate in chain),
        min(_ms(certificate.not_valid_after_utc) for certificate in chain),
    )


# --- What is asked of clients -----------------------------------------------------------------------------------------


def _set_client_auth(context: "ssl.SSLContext", config: BrokerConfig) -> None:
    location, inline = config.ssl_truststore_location, config.ssl_truststore_certificates
    if location and inline:
        _refuse("ssl.truststore.location", "ssl.truststore.certificates is set, too: choose one of them")
    if config.ssl_client_auth == "none":
        return
    if not location and not inline:
        _refuse(
            "ssl.client.auth",
            f"it is {config.ssl_client_auth}, and no truststore says whose certificates clients may show: name a PEM "
            "file with those that sign them in ssl.truststore.location",
        )
    key = "ssl.truststore.location" if location else "ssl.truststore.certificates"
    text = _read(key, location) if location else inline
    certificates = [pem for kind, pem in _blocks(text) if kind == "CERTIFICATE"]
    if not certificates:
        _refuse(
            key, "there is no certificate in it; it must have those that sign the certificates of clients", location
        )
    try:
        context.load_verify_locations(cadata="".join(certificates))
    except ssl.SSLError as error:
        _refuse(key, f"a certificate in it cannot be read: {error.reason or error}", location)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # what is trusted need be no root, as in Java
    context.verify_mode = ssl.CERT_REQUIRED if config.ssl_client_auth == "required" else ssl.CERT_OPTIONAL


def _set_ciphers(context: "ssl.SSLContext", names: Sequence[str]) -> None:
    """Those of TLS 1.2, by OpenSSL's names or by Java's."""
    if not names:
        return
    suites = [_openssl_cipher(name) for name in names]
    for name, suite in zip(names, suites, strict=True):
        if not _is_known(suite):
            _refuse("ssl.cipher.suites", f"OpenSSL has no {name}; openssl ciphers -v lists those that it has")
    context.set_ciphers(":".join(suites))


def _is_known(suite: str) -> bool:
    """Whether OpenSSL has a suite; in a list it ignores what it does not know."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(suite)
    except ssl.SSLError:
        return False
    return _CIPHER.fullmatch(suite) is not None


def _openssl_cipher(name: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2 that Kafka's configuration may have by Java's name."""
    if re.match(r"TLS_(AES|CHACHA20)_", name):
        _refuse("ssl.cipher.suites", f"{name} is one of TLS 1.3, whose suites are fixed: leave it out")
    if chacha := _JAVAS_CHACHA.fullmatch(name):
        return f"{chacha[1]}-{chacha[2]}-CHACHA20-POLY1305"
    if found := _JAVAS_CIPHER.fullmatch(name):
        exchange, signature, cipher, bits, mode, digest = found.groups()
        begin = f"{exchange}-{signature}-" if exchange else ""
        return f"{begin}{cipher}{bits}-{'GCM-' if mode == 'GCM' else ''}{digest}"
    return name


# --- PEM --------------------------------------------------------------------------------------------------------------


def _read(key: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        _refuse(key, f"it cannot be read: {error.strerror or error}", path)
    if len(content) > PEM_BYTES_MAX:
        _refuse(key, f"it is larger than {PEM_BYTES_MAX} bytes, so it holds no certificates", path)
    if b"-----BEGIN " not in content:
        if content.startswith(_JAVAS_STORES):
            _refuse(
                key,
                "it is a JKS, a PKCS12 or DER, and must be PEM: convert a PKCS12 by openssl pkcs12 -in FILE.p12 -out "
                "FILE.pem, and a JKS to FILE.p12 before by keytool -importkeystore -deststoretype PKCS12",
                path,
            )
        _refuse(key, "it is no PEM: such a file has lines as -----BEGIN CERTIFICATE-----", path)
    return content.decode("latin-1")  # what is outside of the blocks may be a comment in any encoding


def _blocks(text: str) -> list[tuple[str, str]]:
    """What the PEM has, each with what it is called; a block may stand on one line, as in a file of properties."""
    found = []
    for block in _BLOCK.finditer(text):
        kind, body = block[1], block[2].strip()
        if "\n" not in body:
            body = "\n".join(re.findall(r".{1,64}", re.sub(r"\s", "", body)))
        found.append((kind, f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"))
    return found


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """A path to read ``content`` from, on no disk where the system has such files: OpenSSL takes only paths."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("seglog-key", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
    else:
        import tempfile  # noqa: PLC0415 - for other systems

        with tempfile.NamedTemporaryFile() as named:  # readable for this user alone
            named.write(content)
            named.flush()
            yield named.name


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _refuse(key: str, why: str, path: str = "") -> NoReturn:
    raise InvalidConfigError(f"{key}{' = ' if path else ''}{path} cannot be used: {why}.", key=key) from None
