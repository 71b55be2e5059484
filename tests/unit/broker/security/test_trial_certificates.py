"""``seglogd certificates``: what it makes serves clients, and nothing that is there is overwritten."""

import ssl
import tomllib
from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_certificate

from seglog_broker.config import load_config
from seglog_broker.security.principals import PrincipalRules, subject_of
from seglog_broker.security.tls import load_tls
from seglog_broker.security.trial_certificates import main
from seglog_broker.standard_output import EXIT_FAILED, EXIT_OK, EXIT_USAGE


def configuration(printed: str) -> str:
    """The lines for the broker's configuration."""
    return printed.split("# The broker's configuration")[1].split("\n\n", maxsplit=1)[0].split("\n", 1)[1]


def test_what_is_printed_is_a_configuration_that_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--to", str(tmp_path / "certs"), "--host", "broker", "10.0.0.7"]) == EXIT_OK
    config, warnings = load_config(configuration(capsys.readouterr().out), "seglogd.toml", {}, [])
    assert warnings == []
    assert set(load_tls(config).certificate.names) == {"localhost", "127.0.0.1", "::1", "broker", "10.0.0.7"}


def test_each_client_is_known_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--to", str(tmp_path), "--client", "alice", "bob"]) == EXIT_OK
    text = configuration(capsys.readouterr().out)
    config, _ = load_config(text, "seglogd.toml", {}, [])
    context = load_tls(config).context
    assert context.verify_mode is ssl.CERT_REQUIRED
    rules = PrincipalRules.parse(tomllib.loads(text)["ssl.principal.mapping.rules"])
    for name in ("alice", "bob"):
        pem = (tmp_path / f"client-{name}.pem").read_bytes()
        assert b"-----BEGIN PRIVATE KEY-----" in pem, "the one format of keys that Java takes"
        certificate = load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERTIFICATE-----") :])
        certificate.verify_directly_issued_by(load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes()))
        der = ssl.PEM_cert_to_DER_cert(pem[pem.index(b"-----BEGIN CERTIFICATE-----") :].decode())
        assert rules.name_of(subject_of(der)) == name


def test_only_their_owner_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    main(["--to", str(folder), "--client", "alice"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == dict.fromkeys(
        ("authority.pem", "authority-key.pem", "server.pem", "client-alice.pem"), 0o600
    )


def test_one_more_client_has_the_same_authority_and_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--to", str(tmp_path), "--client", "alice"])
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["--to", str(tmp_path), "--client", "bob"]) == EXIT_OK
    assert {file: file.read_bytes() for file in before} == before
    authority = load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes())
    bob = (tmp_path / "client-bob.pem").read_bytes()
    load_pem_x509_certificate(bob[bob.index(b"-----BEGIN CERTIFICATE-----") :]).verify_directly_issued_by(authority)
    capsys.readouterr()
    for again in (["--client", "carol", "alice"], ["--host", "broker"]):
        assert main(["--to", str(tmp_path), *again]) == EXIT_USAGE
        assert "is there already, and nothing is overwritten" in capsys.readouterr().err
    assert not (tmp_path / "client-carol.pem").exists()
    assert main(["--to", str(tmp_path)]) == EXIT_OK
    assert "has all of them already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "name", "why"),
    [
        *(("--client", name, "a client") for name in ["../mallory", "", ".hidden", "a/b", "a\nb", "x" * 65]),
        *(("--host", name, "a host") for name in ["10.0.0.300", "1.2.3", "broker:9092", "fe80::zz"]),
        ("--host", "no host", "for one of these hosts"),
    ],
)
def test_a_name_that_is_no_file_or_no_host_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, name: str, why: str
) -> None:
    assert main(["--to", str(tmp_path / "certs"), option, name]) == EXIT_USAGE
    assert f"cannot be {why}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert main(["--to", str(tmp_path / "file" / "certs")]) == EXIT_FAILED
    assert f"{tmp_path}/file" in capsys.readouterr().err
    (tmp_path / "authority.pem").write_bytes(b"x")
    (tmp_path / "authority-key.pem").write_bytes(b"x")
    assert main(["--to", str(tmp_path)]) == EXIT_USAGE
    assert "are no authority" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "protocol"), [((), "SASL_SSL"), (("--client", "alice"), "SSL")])
def test_what_is_printed_for_a_host_is_reached_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], protocol: str
) -> None:
    """Kafka's clients come back to the advertised name, which has to be one that the certificate is for."""
    assert main(["--to", str(tmp_path / "certs"), "--host", "broker.example", *more]) == EXIT_OK
    config, warnings = load_config(configuration(capsys.readouterr().out), "seglogd.toml", {}, [])
    assert warnings == []
    assert config.seglog_listen == f"{protocol}://0.0.0.0:9192"
    assert config.listeners == (f"{protocol}://0.0.0.0:9092",)
    assert config.advertised_listeners == (f"{protocol}://broker.example:9092",)
