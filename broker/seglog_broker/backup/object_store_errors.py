"""What object stores, and the library that speaks to them, say when something fails, as sentences for an operator.

Codes of S3 and Azure are in the XML of their answers, which the library puts into its own error's text. Nothing of what
may be secret is in the sentences: no queries of addresses, which may be signatures, and of an answer the code and the
message alone.
"""

import re
from typing import Final

from obstore import exceptions

from seglog_broker.backup.destination import DestinationError

_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,400})")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_SYSTEM_MESSAGE: Final = re.compile(r'message: "([^"]{1,100})"')
"""In the library's list of causes: the operating system's."""

_QUERY: Final = re.compile(r"\?\S*")
_RETRIES: Final = re.compile(r"(?:Generic \w+ error: )|(?:, max_retries: \d+, retry_timeout: [\w.]+(?= ))")
_DETAIL_MAX: Final = 300

_METADATA_ADDRESSES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where machines are told their role: asked where the environment has no credentials."""

_NO_CREDENTIALS: Final = ("Missing AccessKeyId", "Missing SecretAccessKey", "Account must be specified")

_NO_FILE: Final = frozenset({"NoSuchKey", "BlobNotFound"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_REFUSED: Final = frozenset(
    {
        "AccessDenied",
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
    }
)
_REFUSED_STATUSES: Final = frozenset({"401", "403"})


def is_missing(error: Exception) -> bool:
    """Whether the store has no object of that name, and nothing else is wrong."""
    code = _CODE.search(_answer(error))
    return isinstance(error, FileNotFoundError) and (code is None or code[1] in _NO_FILE)


def store_error(doing: str, where: str, error: Exception, credentials: str) -> DestinationError:
    """The error for one of the library's; ``credentials`` says where those are from."""
    answer = _answer(error)
    code, status = _CODE.search(answer), _STATUS.search(answer)
    if any(address in answer for address in _METADATA_ADDRESSES) or any(text in answer for text in _NO_CREDENTIALS):
        return DestinationError(
            f"cannot {doing} {where}: there are no credentials: set {credentials} in the environment, or run where the "
            "machine has a role"
        )
    detail = _detail(error)
    # Where a file is written, or files are listed, only the bucket can be missing.
    if code[1] in _NO_BUCKET if code is not None else isinstance(error, FileNotFoundError):
        return DestinationError(f"cannot {doing} {where}: there is no such bucket ({detail}): make it, or name another")
    if (code is not None and code[1] in _REFUSED) or (status is not None and status[1] in _REFUSED_STATUSES):
        return DestinationError(
            f"cannot {doing} {where}: the store refuses these credentials ({detail}): set those of an account that may "
            f"list, read, write and delete there ({credentials})"
        )
    if isinstance(error, exceptions.UnknownConfigurationKeyError):
        return DestinationError(f"cannot {doing} {where}: {detail}")
    return DestinationError(
        f"cannot {doing} {where}: {detail}: see that the store can be reached, and run the same command again"
    )


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
