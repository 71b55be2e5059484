"""Certificates for a broker and its clients in files as PEM, as every client takes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives import serialization

HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Files:
    """A key (PKCS#8, which Java wants) and its chain: in one file each, and together."""

    key: Path
    chain: Path
    together: Path


@dataclass(frozen=True)
class Certificates:
    """An authority, and what it has issued."""

    folder: Path
    authority: trustme.CA
    authority_file: Path

    def issue(self, name: str, *hosts: str) -> Files:
        """A certificate whose CN is ``name``, for ``hosts``, or for a client without any; again under the same name."""
        issued = self.authority.issue_cert(*(hosts or [f"{name}@example.org"]), common_name=name)
        return written(self.folder / name, issued)


def certificates(folder: Path) -> Certificates:
    """A new authority, whose files are in ``folder``."""
    authority = trustme.CA()
    path = folder / "authority.pem"
    folder.mkdir(parents=True, exist_ok=True)
    authority.cert_pem.write_to_path(str(path))
    return Certificates(folder, authority, path)


def written(place: Path, issued: trustme.LeafCert) -> Files:
    """The files of a certificate, beside ``place``."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    files = Files(*(place.with_name(f"{place.name}{suffix}") for suffix in (".key", ".crt", ".pem")))
    for path, content in ((files.key, key), (files.chain, chain), (files.together, key + chain)):
        path.write_bytes(content)
    return files
