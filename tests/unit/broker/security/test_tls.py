"""The broker's TLS: what certificates and keys are taken, what is refused and how, and what clients are asked for."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

from seglog_broker.config import BrokerConfig, native_listener
from seglog_broker.security.tls import LoadedTls, ServerTls, load_all_tls, load_tls
from seglog_protocol.errors import InvalidConfigError

KINDS: Final = (b"CERTIFICATE", b"PRIVATE KEY")
DAY_MS: Final = 86_400_000
NOW: Final = datetime.now(UTC)
PASSWORD: Final = "correct horse"
JAVAS_CIPHER: Final = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def issued(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("localhost", "127.0.0.1", common_name="broker")


@pytest.fixture
def pem(tmp_path: Path, issued: trustme.LeafCert) -> Path:
    """A file with key and chain."""
    return written(tmp_path / "server.pem", issued.private_key_and_cert_chain_pem.bytes())


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def chain_of(issued: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)


def encrypted(issued: trustme.LeafCert, password: str = PASSWORD) -> bytes:
    """The key as PKCS#8 with a password, and the chain."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    closed = serialization.BestAvailableEncryption(password.encode())
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, closed)
    return encoded + chain_of(issued)


def config_of(path: Path | str = "", **values: object) -> BrokerConfig:
    return BrokerConfig(ssl_keystore_location=str(path), **values)  # type: ignore[arg-type] # as the tests name them


def refused(config: BrokerConfig) -> InvalidConfigError:
    with pytest.raises(InvalidConfigError) as caught:
        load_tls(config)
    assert PASSWORD not in repr(caught.value)
    return caught.value


@contextmanager
def connected(
    server: ssl.SSLContext, authority: trustme.CA, client: trustme.LeafCert | None = None, name: str = "localhost"
) -> Iterator[tuple[ssl.SSLObject, ssl.SSLObject]]:
    """Client and server behind their handshake, in memory. Raises what either side raises."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if client is not None:
        client.configure_cert(context)
    one_way, other_way = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        context.wrap_bio(one_way, other_way, server_hostname=name),
        server.wrap_bio(other_way, one_way, server_side=True),
    )
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    yield ends


# --- What is taken ----------------------------------------------------------------------------------------------------


def test_a_file_with_key_and_chain_serves_clients_that_trust_its_authority(pem: Path, authority: trustme.CA) -> None:
    loaded = load_tls(config_of(pem))
    with connected(loaded.context, authority) as (client, server):
        assert client.version() == server.version() == "TLSv1.3"
        assert server.selected_alpn_protocol() is None
    assert loaded.certificate.names == ("localhost", "127.0.0.1")
    assert "CN=broker" in loaded.certificate.subject


@pytest.mark.parametrize("joint", ["\n", " ", ""], ids=["lines", "one line", "one word"])
def test_chain_and_key_may_stand_in_the_configuration(
    issued: trustme.LeafCert, authority: trustme.CA, joint: str
) -> None:
    """Also on one line, as a file of properties has them."""
    chain, key = (text.decode().replace("\n", joint) for text in (chain_of(issued), issued.private_key_pem.bytes()))
    config = BrokerConfig(ssl_keystore_certificate_chain=chain, ssl_keystore_key=key)
    with connected(load_tls(config).context, authority):
        pass


@pytest.mark.parametrize("content", ["the chain first", "an encrypted key"])
def test_a_file_may_begin_with_the_chain_and_have_an_encrypted_key(
    content: str, tmp_path: Path, issued: trustme.LeafCert, authority: trustme.CA
) -> None:
    chain_first = b"a remark\xff\n" + chain_of(issued) + issued.private_key_pem.bytes()
    path = written(tmp_path / "x.pem", chain_first if content == "the chain first" else encrypted(issued))
    with connected(load_tls(config_of(path, ssl_key_password=PASSWORD)).context, authority):
        pass


def test_loading_leaves_no_file(pem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    descriptors = set(Path("/proc/self/fd").iterdir())
    load_tls(config_of(pem))
    assert list(tmp_path.iterdir()) == [pem]
    assert len(set(Path("/proc/self/fd").iterdir()) - descriptors) <= 1


# --- What is refused --------------------------------------------------------------------------------------------------


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    error = refused(config_of(tmp_path / "none.pem"))
    assert error.key == "ssl.keystore.location"
    assert error.message == (
        f"ssl.keystore.location = {tmp_path}/none.pem cannot be used: it cannot be read: No such file or directory."
    )


@pytest.mark.parametrize(
    ("values", "key", "why"),
    [
        ({}, "ssl.keystore.location", "a listener speaks TLS, and there is no certificate"),
        ({"ssl_keystore_key": "x"}, "ssl.keystore.key", "belong together, and one of them is missing"),
        ({"path": "a.pem", "ssl_keystore_key": "x"}, "ssl.keystore.location", "choose the file or the other two"),
    ],
)
def test_what_belongs_together_is_checked(values: dict[str, str], key: str, why: str) -> None:
    error = refused(config_of(**values))
    assert error.key == key
    assert why in error.message


def test_a_key_of_another_certificate_is_refused(
    tmp_path: Path, authority: trustme.CA, issued: trustme.LeafCert
) -> None:
    other = authority.issue_cert("localhost")
    path = written(tmp_path / "x.pem", other.private_key_pem.bytes() + chain_of(issued))
    assert refused(config_of(path)).message == (
        f"ssl.keystore.location = {path} cannot be used: the private key does not fit the certificate."
    )


def test_a_chain_in_the_wrong_order_is_refused(tmp_path: Path, authority: trustme.CA, issued: trustme.LeafCert) -> None:
    content = issued.private_key_pem.bytes() + authority.cert_pem.bytes() + chain_of(issued)
    error = refused(config_of(written(tmp_path / "x.pem", content)))
    assert "must be the first of its chain" in error.message


def test_an_encrypted_key_needs_its_password(tmp_path: Path, issued: trustme.LeafCert) -> None:
    path = written(tmp_path / "x.pem", encrypted(issued))
    missing, wrong = refused(config_of(path)), refused(config_of(path, ssl_key_password="battery staple"))
    assert missing.key == wrong.key == "ssl.key.password"
    assert f"the private key in {path} is encrypted, and ssl.key.password is not set" in missing.message
    assert "SEGLOG_SSL_KEY_PASSWORD" in missing.message
    assert f"the private key in {path} cannot be opened with ssl.key.password" in wrong.message
    assert "staple" not in repr(wrong) + repr(wrong.__context__)


def test_javas_stores_are_refused_with_the_way_to_convert_them(tmp_path: Path, issued: trustme.LeafCert) -> None:
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    certificate = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    closed = serialization.BestAvailableEncryption(b"x")
    store = pkcs12.serialize_key_and_certificates(b"broker", key, certificate, None, closed)  # type: ignore[arg-type] # it is RSA or EC
    for content in (store, b"\xfe\xed\xfe\xed\x00\x00\x00\x02"):
        error = refused(config_of(written(tmp_path / "store", content)))
        assert "openssl pkcs12 -in FILE.p12 -out FILE.pem" in error.message


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no PEM"),
        (b"hello", "it is no PEM"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "there is no private key in it"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "there is no certificate in it"),
        (
            b"".join(b"-----BEGIN %s-----\nAA\n-----END %s-----\n" % (kind, kind) for kind in KINDS),
            "the private key cannot be read",
        ),
    ],
)
def test_what_is_no_keystore_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    assert why in refused(config_of(written(tmp_path / "x.pem", content))).message


def test_every_cut_of_a_keystore_is_refused_with_a_sentence(tmp_path: Path, issued: trustme.LeafCert) -> None:
    content = issued.private_key_and_cert_chain_pem.bytes().rstrip()
    for end in range(0, len(content), 37):
        error = refused(config_of(written(tmp_path / "x.pem", content[:end])))
        assert error.message.startswith(f"ssl.keystore.location = {tmp_path}/x.pem cannot be used: ")


# --- Clients ----------------------------------------------------------------------------------------------------------


def with_truststore(pem: Path, authority: trustme.CA, wanted: str) -> LoadedTls:
    trusted = written(pem.parent / "authority.pem", authority.cert_pem.bytes())
    return load_tls(config_of(pem, ssl_client_auth=wanted, ssl_truststore_location=str(trusted)))


def test_a_certificate_that_is_required_is_the_one_that_is_seen(pem: Path, authority: trustme.CA) -> None:
    loaded = with_truststore(pem, authority, "required")
    client = authority.issue_cert("alice@example.org", common_name="alice")
    with connected(loaded.context, authority, client) as (_, server):
        der = server.getpeercert(binary_form=True)
        assert der is not None
        assert ssl.DER_cert_to_PEM_cert(der).encode() == client.cert_chain_pems[0].bytes().replace(b"\r", b"")
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"), connected(loaded.context, authority):
        pass


def test_a_certificate_that_is_requested_may_be_left_out_but_not_be_wrong(pem: Path, authority: trustme.CA) -> None:
    loaded = with_truststore(pem, authority, "requested")
    with connected(loaded.context, authority) as (_, server):
        assert server.getpeercert(binary_form=True) is None
    days = ((NOW + timedelta(days=begins), NOW + timedelta(days=begins + 2)) for begins in (-3, 3))
    untimely = (authority.issue_cert("a@b.c", not_before=begins, not_after=ends) for begins, ends in days)
    for client in (trustme.CA().issue_cert("mallory@example.org"), *untimely):
        failing = pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED")
        with failing, connected(loaded.context, authority, client):
            pass


def test_asking_clients_needs_a_truststore(pem: Path) -> None:
    error = refused(config_of(pem, ssl_client_auth="required"))
    assert error.key == "ssl.client.auth"
    assert "ssl.truststore.location" in error.message


def test_a_truststore_without_certificates_is_refused(pem: Path, issued: trustme.LeafCert) -> None:
    path = written(pem.parent / "x.pem", issued.private_key_pem.bytes())
    error = refused(config_of(pem, ssl_client_auth="required", ssl_truststore_location=str(path)))
    assert error.key == "ssl.truststore.location"
    assert "there is no certificate in it" in error.message


# --- Versions and suites ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_only_the_versions_named_are_spoken(pem: Path, authority: trustme.CA, version: str) -> None:
    context = load_tls(config_of(pem, ssl_enabled_protocols=(version,))).context
    with connected(context, authority) as (client, _):
        assert client.version() == version
    assert context.minimum_version == context.maximum_version


@pytest.mark.parametrize("name", [JAVAS_CIPHER, "ECDHE-RSA-AES128-GCM-SHA256"])
def test_a_suite_may_be_named_as_java_or_as_openssl_does(pem: Path, name: str) -> None:
    context = load_tls(config_of(pem, ssl_cipher_suites=(name,))).context
    assert {c["name"] for c in context.get_ciphers() if c["protocol"] == "TLSv1.2"} == {"ECDHE-RSA-AES128-GCM-SHA256"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ECDHE-RSA-AES128-GCM-SHA257", "OpenSSL has no ECDHE-RSA-AES128-GCM-SHA257"),
        ("HIGH:!aNULL", "OpenSSL has no HIGH:!aNULL"),
        ("TLS_AES_128_GCM_SHA256", "is one of TLS 1.3, whose suites are fixed"),
    ],
)
def test_a_suite_that_is_not_there_is_refused(pem: Path, name: str, why: str) -> None:
    """Although OpenSSL leaves out of a list what it does not know."""
    assert why in refused(config_of(pem, ssl_cipher_suites=(JAVAS_CIPHER, name))).message


def test_a_client_can_neither_speak_tls_1_1_nor_have_the_handshake_again(pem: Path) -> None:
    context = load_tls(config_of(pem)).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION


# --- The end of a certificate -----------------------------------------------------------------------------------------


def test_the_end_of_a_certificate_is_told_thirty_days_before(tmp_path: Path, authority: trustme.CA) -> None:
    begins, ends = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    issued = authority.issue_cert("broker.example.org", not_before=begins, not_after=ends)
    authoritys_own = load_tls(
        config_of(written(tmp_path / "x.pem", issued.private_key_and_cert_chain_pem.bytes()))
    ).certificate
    ends_ms = int(ends.timestamp() * 1000)
    assert authoritys_own.begins_ms == int(begins.timestamp() * 1000)
    assert authoritys_own.ends_ms == ends_ms
    assert authoritys_own.problem(ends_ms - 31 * DAY_MS) is None
    assert "ends on 2031-01-01 00:00 UTC, in 30 days: renew it" in str(authoritys_own.problem(ends_ms - 30 * DAY_MS))
    assert "ends on 2031-01-01 00:00 UTC, in 1 day:" in str(authoritys_own.problem(ends_ms - DAY_MS))
    assert "ended on 2031-01-01 00:00 UTC" in str(authoritys_own.problem(ends_ms))
    assert "is not valid before 2030-01-01" in str(authoritys_own.problem(authoritys_own.begins_ms - 1))


def test_a_connection_stays_as_it_is_where_the_certificate_is_replaced(pem: Path, authority: trustme.CA) -> None:
    listening = BrokerConfig(seglog_listen="SSL://127.0.0.1:0", listeners=(), ssl_keystore_location=str(pem))
    server_tls = ServerTls(load_all_tls(listening))
    tls = server_tls.of(native_listener(listening))
    assert tls is not None
    with connected(tls.context, authority) as (client, server):
        other = trustme.CA()
        written(pem, other.issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
        server_tls.replace(load_all_tls(listening))
        client.write(b"still here")
        assert server.read(64) == b"still here"
        with pytest.raises(ssl.SSLCertVerificationError), connected(tls.context, authority):
            pass
        with connected(tls.context, other):
            pass
