"""The pages: what is asked for by a path, and what it answers.

========== ====================================================================== =========== ======================
page       tells                                                                  shown to    200; else
========== ====================================================================== =========== ======================
/livez     the broker answers                                                     anybody     always
/readyz    all partitions are served, or how far their recovery is                anybody     503 while some recover,
                                                                                             or without its lease
/healthz   the problems that ``seglog ping`` names                                ``refusal`` 503 with problems
/metrics   the families of docs/METRICS.md, for Prometheus; those of ``name[]``   ``refusal`` always
========== ====================================================================== =========== ======================
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.families import FAMILIES_BY_NAME
from seglog_broker.listeners.http.answers import Answer, json_object, text

METHODS: Final = frozenset({b"GET", b"HEAD"})

NAMES_MAX: Final = 200
"""Names of families in one request."""

SHOWN_MAX: Final = 100
"""Characters of a name that an answer repeats."""

INDEX: Final = """\
This is a seglog broker.

/livez    whether it answers
/readyz   whether all partitions are served, and how far their recovery is
/healthz  what is wrong, as JSON
/metrics  its metrics, for Prometheus\
"""


class NotAPageError(Exception):
    """The request is answered with ``answer`` in place of a page."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def path_of(target: bytes) -> tuple[str, str]:
    """Path and query of a request's target, which may be a whole URL. Raises NotAPageError."""
    try:
        parts = urlsplit(target.decode("ascii"))
    except ValueError:
        raise NotAPageError(text(HTTPStatus.BAD_REQUEST, "This is no URL.", is_last=True)) from None
    return parts.path, parts.query


def names_of(query: str) -> list[str]:
    """The families that ``name[]`` asks for; none for all. Raises NotAPageError for one that does not exist."""
    try:
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=NAMES_MAX)
    except ValueError:
        sentence = f"The query has more than {NAMES_MAX} names."
        raise NotAPageError(text(HTTPStatus.BAD_REQUEST, sentence)) from None
    unknown = [name for name in fields.pop("name[]", []) if name not in FAMILIES_BY_NAME]
    if unknown or fields:
        what = (
            f"There is no metric {unknown[0][:SHOWN_MAX]!r}: docs/METRICS.md has all of them."
            if unknown
            else f"There is no parameter {next(iter(fields))[:SHOWN_MAX]!r}, but name[]."
        )
        raise NotAPageError(text(HTTPStatus.BAD_REQUEST, what))
    return parse_qs(query, max_num_fields=NAMES_MAX).get("name[]", [])


def live(_broker: Broker) -> Answer:
    """It answers, so it lives."""
    return text(HTTPStatus.OK, "ok")


def ready(broker: Broker) -> Answer:
    """Whether it serves all partitions, but for those that wait for room on the disk, which are problems."""
    if broker.fence is not None and not broker.fence.is_open:
        return json_object(
            HTTPStatus.SERVICE_UNAVAILABLE, {"status": "without lease", "reason": broker.fence.waits_for}
        )
    progress = broker.recoveries.progress(broker.views)
    if progress is None:
        return json_object(HTTPStatus.OK, {"status": "ready"})
    ratio = round(progress["read_bytes"] / progress["bytes"], 4) if progress["bytes"] else 0.0
    return json_object(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "recovering", **progress, "ratio": ratio})


def index(_broker: Broker) -> Answer:
    """Which pages there are."""
    return text(HTTPStatus.OK, INDEX)


AT_ONCE: Final[dict[str, Callable[[Broker], Answer]]] = {"/": index, "/livez": live, "/readyz": ready}
"""The pages that anybody sees, and that take no time."""

HEALTH: Final = "/healthz"
METRICS: Final = "/metrics"

PATHS: Final = frozenset({*AT_ONCE, HEALTH, METRICS})


async def health(broker: Broker) -> Answer:
    """What is wrong, as ``seglog ping`` tells it."""
    hello = broker.hello(await broker.find_problems())
    status = HTTPStatus.SERVICE_UNAVAILABLE if hello.problems else HTTPStatus.OK
    return json_object(
        status,
        {
            "status": "problems" if hello.problems else "ok",
            "problems": hello.problems,
            "broker": hello.broker,
            "cluster_id": hello.cluster_id,
            "uptime_seconds": hello.uptime_ms / 1000,
            "partitions": hello.partitions,
            "offline": hello.offline,
            "recovery": hello.recovery,
        },
    )
