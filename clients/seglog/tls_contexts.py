"""What OpenSSL needs to know of authorities and certificates, read from their files."""

import ssl
from os import fspath
from pathlib import Path

from seglog.core.security import Secret, Tls


def context_of(tls: Tls | ssl.SSLContext) -> ssl.SSLContext:
    """The context for connections.

    Raises OSError for files that cannot be read, and ValueError for those with other content.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    context = _trusting(tls)
    context.check_hostname = tls.check_hostname
    if tls.certificate is not None:
        _load_certificate(context, tls)
    return context


def _trusting(tls: Tls) -> ssl.SSLContext:
    if tls.ca is None:
        return ssl.create_default_context()
    path = fspath(tls.ca)
    with Path(path).open("rb"):  # for an error that names the file
        pass
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ValueError(f"{path} holds no certificates in PEM, which it must as the file of an authority") from error


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    assert tls.certificate is not None
    certificate = fspath(tls.certificate)
    key = certificate if tls.key is None else fspath(tls.key)
    for path in (certificate, key):
        with Path(path).open("rb"):  # for an error that names the file
            pass
    password = tls.key_password
    try:
        context.load_cert_chain(certificate, key, password.reveal if isinstance(password, Secret) else _no_password)
    except _KeyIsEncryptedError:
        wrong = f"the key in {key} is encrypted: give its password, key_password"
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            wrong = f"the key in {key} does not belong to the certificate in {certificate}"
        else:
            wrong = f"{certificate} and {key} must be a certificate and its key in PEM, and the key's password right"
    else:
        return
    raise ValueError(wrong)


class _KeyIsEncryptedError(Exception):
    pass


def _no_password() -> str:
    """OpenSSL would ask for it on the terminal."""
    raise _KeyIsEncryptedError
