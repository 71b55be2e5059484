"""Object stores in words: their addresses, their credentials, and what is wrong when their library, obstore, says so.

Credentials and endpoints are from the environment, by the names that the providers' own tools have, or those of the
machine's role; an address never has them.

Codes of S3 and Azure are in the XML of their answers, which the library puts into its own error's text. Nothing of what
may be secret is in the sentences: no queries of addresses, which may be signatures, and of an answer the code and the
message alone.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

RETRY_SECONDS: Final = 120
"""How long a request that fails, for the network or the store's trouble, is tried again."""

REQUEST_SECONDS: Final = 300
"""After which a request has failed: a part takes that long at 30 kB/s."""

SCHEMES: Final = {"s3": "Amazon S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}

CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT_URL where it is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Variables of the environment that credentials are from."""

_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_ADDRESS: Final = re.compile(r"https?://[^/\s]")


def place_at(url: str, environ: Mapping[str, str]) -> str:
    """The address ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``az://CONTAINER/PATH`` without a slash at its end.

    Raises ValueError for one that is none of these, without showing what it may hold, and for an endpoint in
    ``environ`` that is no address: the library does not say what is wrong with it.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}:// ({what})" for name, what in SCHEMES.items())
        raise ValueError(f"there is no kind of destination {scheme}://: name a directory, or one of {known}")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(
            f"an address of a destination has bucket and path alone, as {scheme}://BUCKET/PATH: credentials are from "
            f"the environment ({CREDENTIALS[scheme]})"
        )
    if not parts.netloc:
        raise ValueError(f"{url} names no bucket: it has to be {scheme}://BUCKET/PATH")
    for name in _ENDPOINTS[scheme]:
        if (endpoint := environ.get(name)) and not _ADDRESS.match(endpoint):
            raise ValueError(f"{name} in the environment is no address of a store, such as http://localhost:9000")
    return url.rstrip("/")


def library_options(environ: Mapping[str, str], retry_seconds: float = RETRY_SECONDS) -> dict[str, Any]:
    """The arguments of ``obstore.store.from_url`` beside the address."""
    return {
        "retry_config": {"max_retries": 10, "retry_timeout": timedelta(seconds=retry_seconds)},
        "client_options": {
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=min(10.0, retry_seconds)),
            # Without TLS only where the operator has named such an endpoint.
            "allow_http": any(
                environ.get(name, "").startswith("http://") for names in _ENDPOINTS.values() for name in names
            ),
        },
    }


_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,400})")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_SYSTEM_MESSAGE: Final = re.compile(r'message: "([^"]{1,100})"')
"""In the library's list of causes: the operating system's."""

_QUERY: Final = re.compile(r"\?\S*")
_RETRIES: Final = re.compile(r"(?:Generic \w+ error: )|(?:, max_retries: \d+, retry_timeout: [\w.]+(?= ))")
_DETAIL_MAX: Final = 300

_METADATA_ADDRESSES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Metadata services of clouds, which are asked for a role where the environment has no credentials."""

_NO_CREDENTIALS: Final = ("Missing AccessKeyId", "Missing SecretAccessKey", "Account must be specified")

_NO_FILE: Final = frozenset({"NoSuchKey", "BlobNotFound"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_REFUSED: Final = frozenset({"ExpiredToken", "InvalidToken"})
"""Codes with which S3 refuses credentials in an answer of another status."""

_REFUSED_STATUSES: Final = frozenset({"401", "403"})


def is_missing(error: Exception) -> bool:
    """Whether the store has no object of that name, and nothing else is wrong."""
    code = _CODE.search(_answer(error))
    return isinstance(error, FileNotFoundError) and (code is None or code[1] in _NO_FILE)


def sentence_of(doing: str, where: str, error: Exception) -> str:
    """What was wrong when ``doing`` something with the address ``where``, whose fault it is, and what to do now."""
    credentials = CREDENTIALS[where.partition("://")[0]]
    answer = _answer(error)
    code, status = _CODE.search(answer), _STATUS.search(answer)
    if any(address in answer for address in _METADATA_ADDRESSES) or any(text in answer for text in _NO_CREDENTIALS):
        return (
            f"cannot {doing} {where}: there are no credentials: set {credentials} in the environment, or run where the "
            "machine has a role"
        )
    detail = _detail(error)
    # Where a file is written, or files are listed, only the bucket can be missing.
    if code[1] in _NO_BUCKET if code is not None else isinstance(error, FileNotFoundError):
        return f"cannot {doing} {where}: there is no such bucket ({detail}): make it, or name another"
    if (code is not None and code[1] in _REFUSED) or (status is not None and status[1] in _REFUSED_STATUSES):
        return (
            f"cannot {doing} {where}: the store refuses these credentials ({detail}): set those of an account that may "
            f"list, read, write and delete there ({credentials})"
        )
    if type(error).__name__ == "UnknownConfigurationKeyError":
        return f"cannot {doing} {where}: {detail}"
    return f"cannot {doing} {where}: {detail}: see that the store can be reached, and run the same command again"


def _answer(error: Exception) -> str:
    """What the library says, without its list of causes."""
    return str(error).partition("\n\nDebug source:")[0]


def _detail(error: Exception) -> str:
    """What the store, or else the library says, in a line."""
    answer = _answer(error)
    code, message = _CODE.search(answer), _MESSAGE.search(answer)
    if code is not None:
        if message is None:
            return code[1]
        words, _, _ = message[1].partition("\n")  # Azure adds the number of the request, and the time
        return f"{code[1]}: {words.strip().rstrip('.')}"
    found = _SYSTEM_MESSAGE.search(str(error))
    because = f" ({found[1]})" if found is not None else ""
    return _RETRIES.sub("", _QUERY.sub("", " ".join(answer.split())))[:_DETAIL_MAX].rstrip(" .:") + because
