"""Isolation: which batches of a log a reader gets, by the transactions that they belong to.

At "read_uncommitted" a reader gets every record. At "read_committed" it gets none of a transaction that was aborted,
and reads up to the last stable offset: where the first transaction that is still open begins, else the log end.
"""

from typing import Final, Literal, get_args

Isolation = Literal["read_uncommitted", "read_committed"]

READ_UNCOMMITTED: Final[Isolation] = "read_uncommitted"
READ_COMMITTED: Final[Isolation] = "read_committed"
ISOLATIONS: Final[tuple[str, ...]] = get_args(Isolation)
