"""Where seglog's answers about permissions are not a real Kafka's, and why. Nothing else may differ."""

from typing import Final, NamedTuple


class Difference(NamedTuple):
    """Why a part of the answers to some requests is another: those whose titles begin so, in json."""

    why: str
    titles: str
    kafka: str
    ours: str


_SHARE_KEY: Final = '"key": "workers-share:AAAAAAAAAAAAAAAAAAAAAQ:0"'

DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference(
        "topics that are created are there when Metadata is answered, in Kafka a moment later",
        "Metadata v",
        '{"error_code": 3, "name": "auto',
        '{"name": "auto',
    ),
    Difference(
        "there are no coordinators of share partitions, for nobody",
        "FindCoordinator v6: of share partitions",
        f"{_SHARE_KEY}}}",
        f'{_SHARE_KEY}, "error_code": 42}}',
    ),
    Difference(
        "the same, for those who may not ask",
        "FindCoordinator v6: of share partitions",
        '"error_code": 31',
        '"error_code": 42',
    ),
)
