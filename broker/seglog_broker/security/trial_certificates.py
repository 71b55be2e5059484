"""``seglogd certificates``: an authority and certificates for a trial, and the configuration that uses them.

Exit codes: 0 they are made; 1 they could not be written; 2 wrong usage, or a file that is there already.
"""

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seglog_broker.config.values import join_address
from seglog_broker.standard_output import EXIT_FAILED, EXIT_OK, EXIT_USAGE, print_and_end, refuse
from seglog_protocol.errors import InvalidConfigError

if TYPE_CHECKING:
    import trustme

PROGRAM: Final = "seglogd certificates"

HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""The broker's certificate is always for these."""

DAYS: Final = 365
"""A certificate is valid for so long."""

AUTHORITY: Final = "authority.pem"
AUTHORITY_KEY: Final = "authority-key.pem"
SERVER: Final = "server.pem"

_SCRAM_OF_JAVA: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_ORGANISATION: Final = "seglog trial"
_NAME: Final = re.compile(r"[A-Za-z0-9_@-][A-Za-z0-9._@-]{0,63}")


def main(argv: Sequence[str]) -> int:
    """Make them and print what to do with them; returns the exit code. Raises SystemExit(2) on wrong usage."""
    options = make_parser().parse_args(argv)
    from seglog_protocol.extras import missing  # noqa: PLC0415 - wrong usage needs none of it

    if (error := missing(PROGRAM, "broker")) is not None:
        return refuse(PROGRAM, str(error), EXIT_USAGE)
    folder = Path(options.to)
    try:
        made = make_certificates(folder, options.host, options.client)
    except InvalidConfigError as mistake:
        return refuse(PROGRAM, mistake.message, EXIT_USAGE)
    except OSError as failure:
        return refuse(PROGRAM, f"{failure.filename or folder}: {failure.strerror or failure}.", EXIT_FAILED)
    return print_and_end(PROGRAM, _instructions(folder.absolute(), made, options.host), EXIT_OK)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the arguments, which docs/REFERENCE.md lists."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Make an authority, and certificates that it signs, for a trial of TLS: one for the broker, and "
        "one for each client that is named. A directory that has them already gets those that are missing.",
        epilog="Exit codes: 0 they are made, 1 they could not be written, 2 usage. See docs/REFERENCE.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--to", metavar="DIR", required=True, help="directory for the files, which only you can read")
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="names and addresses by which clients reach the broker, beside localhost",
    )
    parser.add_argument(
        "--client", metavar="NAME", action="extend", nargs="+", default=[], help="a certificate for each of them"
    )
    return parser


def make_certificates(folder: Path, hosts: Sequence[str], clients: Sequence[str]) -> list[str]:
    """The names of the files that were made in ``folder``, none of which was there before; all have mode 0600.

    The authority, and the broker's certificate, are made where there is none.

    Raises InvalidConfigError for names that cannot be used, and for files that are there, and OSError.
    """
    import trustme  # noqa: PLC0415 - for this command alone

    for host in hosts:
        if re.fullmatch(r"[0-9.]+", host) or ":" in host:  # meant as an address
            try:
                ip_address(host)
            except ValueError:
                raise InvalidConfigError(
                    f"{host} cannot be a host: it is no address, and no name; write it without a port", key=""
                ) from None
    for name in clients:
        if not _NAME.fullmatch(name):
            raise InvalidConfigError(f"{name} cannot be a client: use letters, digits and . _ @ -", key="")
    wanted = [] if (folder / SERVER).exists() and not hosts else [SERVER]
    wanted += [_file_of(name) for name in clients]
    for file in wanted:
        if (folder / file).exists():
            raise InvalidConfigError(
                f"{folder / file} is there already, and nothing is overwritten: remove it, or choose another directory",
                key="",
            )
    contents: dict[str, bytes] = {}
    if (folder / AUTHORITY).exists() or (folder / AUTHORITY_KEY).exists():
        authority = _authority(folder)
    else:
        authority = trustme.CA(organization_name=_ORGANISATION)
        contents = {AUTHORITY: authority.cert_pem.bytes(), AUTHORITY_KEY: authority.private_key_pem.bytes()}
    contents.update(_issued(authority, hosts if SERVER in wanted else None, clients))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # only when all are there
    for file, content in contents.items():
        _write(folder / file, content)
    return list(contents)


def _authority(folder: Path) -> "trustme.CA":
    """The authority that is there already."""
    import trustme  # noqa: PLC0415 - as above

    try:
        return trustme.CA.from_pem((folder / AUTHORITY).read_bytes(), (folder / AUTHORITY_KEY).read_bytes())
    except ValueError:
        raise InvalidConfigError(
            f"{folder / AUTHORITY} and {AUTHORITY_KEY} are no authority: choose another directory", key=""
        ) from None


def _issued(
    authority: "trustme.CA", hosts: Sequence[str] | None, clients: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """The files with a key and a chain; None for ``hosts``: without that of the broker."""
    ends = datetime.now(UTC) + timedelta(days=DAYS)
    if hosts is not None:
        try:
            issued = authority.issue_cert(
                *dict.fromkeys((*HOSTS, *hosts)),
                common_name="seglogd",
                organization_name=_ORGANISATION,
                organization_unit_name="brokers",
                not_after=ends,
            )
        except ValueError as error:
            raise InvalidConfigError(f"a certificate cannot be for one of these hosts: {error}", key="") from None
        yield SERVER, _key_and_chain(issued)
    for name in clients:
        issued = authority.issue_cert(
            common_name=name, organization_name=_ORGANISATION, organization_unit_name="clients", not_after=ends
        )
        yield _file_of(name), _key_and_chain(issued)


def _key_and_chain(issued: "trustme.LeafCert") -> bytes:
    """As PEM; the key as PKCS#8, the one format that Java takes."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - trustme needs it, too

    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded + b"".join(certificate.bytes() for certificate in issued.cert_chain_pems)


def _file_of(client: str) -> str:
    return f"client-{client}.pem"


def _write(path: Path, content: bytes) -> None:
    """Make a file that only its owner can read. Raises FileExistsError where there is one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _instructions(folder: Path, made: Sequence[str], hosts: Sequence[str]) -> Iterator[str]:
    """Lines that tell how broker and clients use the files that were made."""
    if not made:
        yield f"{folder} has all of them already; --client NAME makes one more."
        return
    yield f"Made in {folder}: {', '.join(made)}."
    yield f"They are for a trial, and valid for {DAYS} days; whoever has {AUTHORITY_KEY} can make more."
    yield ""
    clients = [file for file in made if file.startswith("client-")]
    protocol = "SASL_SSL" if hosts and not clients else "SSL"
    if protocol == "SSL":
        yield "# The broker's configuration (SASL_SSL in place of SSL for accounts):"
    else:
        yield "# The broker's configuration; seglogd init --data DIR makes the account admin:"
    where = "0.0.0.0" if hosts else "127.0.0.1"  # noqa: S104 - to be reached by those names
    yield f'"seglog.listen" = "{protocol}://{where}:9192"'
    yield f'"listeners" = "{protocol}://{where}:9092"'
    if hosts:
        yield f'"advertised.listeners" = "{protocol}://{join_address(hosts[0], 9092)}"'
        administrator = "admin" if protocol == "SASL_SSL" else clients[0].removeprefix("client-").removesuffix(".pem")
        yield f'"super.users" = "User:{administrator}"'
    yield f'"ssl.keystore.location" = "{folder / SERVER}"'
    if clients:
        yield "# Clients show a certificate, and User:NAME is who they are:"
        yield '"ssl.client.auth" = "required"'
        yield f'"ssl.truststore.location" = "{folder / AUTHORITY}"'
        yield '"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+),OU=clients.*$/$1/"'
    yield ""
    yield "# Kafka's clients:"
    yield f"security.protocol={protocol}"
    yield "ssl.truststore.type=PEM"
    yield f"ssl.truststore.location={folder / AUTHORITY}"
    if clients:
        yield "ssl.keystore.type=PEM"
        yield f"ssl.keystore.location={folder / clients[0]}"
    if protocol == "SASL_SSL":
        yield "sasl.mechanism=SCRAM-SHA-512"
        yield f'sasl.jaas.config={_SCRAM_OF_JAVA} required username="admin" password="...";'
