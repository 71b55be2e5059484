"""Exit codes, and which error leads to which. That of an interrupted command is in the package itself."""

from typing import Final

from seglog_protocol import errors

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_REACHABLE: Final = 3
REFUSED: Final = 4


class UsageError(Exception):
    """The command line is wrong; the message shows the right form."""


class InputError(Exception):
    """Input is malformed: a line that is not of its format, a folder that is no archive."""


def exit_code_of(error: BaseException | None) -> int:
    """The exit code for an error; for records that were not acknowledged, that of the cause."""
    if isinstance(error, errors.DeliveryFailed):
        return exit_code_of(error.__cause__)
    if isinstance(error, errors.ClientTimeoutError):  # of a broker that takes connections and never answers, too
        return NOT_REACHABLE if error.__cause__ is None else exit_code_of(error.__cause__)
    if isinstance(error, errors.NotReachableError | errors.ConnectionLostError | errors.TlsError):
        return NOT_REACHABLE
    if isinstance(error, errors.LocalProtocolError | errors.CorruptRecordError):
        return FAILED
    if isinstance(error, errors.ProtocolError):
        return NOT_REACHABLE  # what answers there is not a broker
    if isinstance(error, errors.ClientError) or not isinstance(error, errors.SeglogError):
        return FAILED
    return REFUSED
