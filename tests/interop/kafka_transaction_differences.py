"""Where answers about transactions are not Kafka's, and why."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Differences(NamedTuple):
    """Lines of a story that differ: by number, with what is said here."""

    why: str
    ours: Mapping[int, str]


TOO_LATE: Final = (
    "a commit after the transaction was aborted: the producer learns that it is too late, as in Kafkas after 4.4.0, not"
    " that it has asked for something that makes no sense"
)

DIFFERENCES: Final[Mapping[str, Differences]] = {
    "committed-by-version-2": Differences(TOO_LATE, {13: "commit v5: PRODUCER_FENCED none/-1"}),
    "init-while-open-by-version-2": Differences(TOO_LATE, {4: "commit v5: PRODUCER_FENCED none/-1"}),
    "timed-out-by-version-2": Differences(TOO_LATE, {3: "commit v5: PRODUCER_FENCED none/-1"}),
    "offsets-that-are-refused": Differences(
        "offsets of a transactional id that nobody has are refused at once, where Kafka goes by the producer id alone;"
        " and a commit makes no group, so that a member is told of its generation, not of its name: either is final",
        {
            8: "commit offsets v0: INVALID_PRODUCER_ID_MAPPING",
            14: "commit offsets v3: INVALID_PRODUCER_ID_MAPPING",
            20: "commit offsets v4: INVALID_PRODUCER_ID_MAPPING",
            26: "commit offsets v5: INVALID_PRODUCER_ID_MAPPING",
            32: "commit offsets v6: INVALID_PRODUCER_ID_MAPPING",
            36: "commit offsets v3: ILLEGAL_GENERATION",
            37: "commit offsets v5: ILLEGAL_GENERATION",
            38: "commit offsets v6: ILLEGAL_GENERATION",
            42: "commit offsets v3: ILLEGAL_GENERATION",
            43: "commit offsets v5: ILLEGAL_GENERATION",
            44: "commit offsets v6: ILLEGAL_GENERATION",
        },
    ),
    "repeated-init": Differences(
        "a producer of an older epoch that asks to go on is fenced at once: in Kafka it aborts the transaction of its"
        " successor first",
        {
            6: "init v5: PRODUCER_FENCED none/-1",
            7: "described v0: NONE Ongoing p1/2 [0]",
            8: "init v5: CONCURRENT_TRANSACTIONS none/-1",
            9: "described v0: NONE CompleteAbort p1/3 []",
        },
    ),
}
