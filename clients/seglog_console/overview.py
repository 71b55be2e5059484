"""The first page: problems with their ways out, rates, the disk and its forecast, the busiest topics and groups."""

from typing import Any, Final

from seglog.cli.overview.headline import RED, YELLOW, figures_of
from seglog.cli.overview.readings import Numbers, Reading, families_of, group_rows, topic_rows
from seglog_console.pages import View, unless_refused

ROWS: Final = 12
"""Topics, and groups; the others are behind links."""
LEVELS: Final = {RED: "bad", YELLOW: "warn"}


def _look(reading: Reading) -> None:
    """Look all up that the page shows."""
    numbers = Numbers(reading)
    figures_of(numbers), topic_rows(numbers), group_rows(numbers)
    for name in ("seglog_uptime_seconds", "seglog_topics", "seglog_topics_left_out", "seglog_groups_left_out"):
        numbers.value(name)


FAMILIES: Final = families_of(_look)


async def context(view: View) -> dict[str, Any]:
    """The newest reading; to who may not see that, the sentence that says so."""
    (reading, numbers), refusal = await unless_refused(view.session.viewer.numbers(FAMILIES), (None, Numbers(None)))
    topics, groups = topic_rows(numbers), group_rows(numbers)
    return {
        "refusal": refusal,
        "problems": [] if reading is None else [(problem, "", "") for problem in reading.hello.problems],
        "uptime": numbers.value("seglog_uptime_seconds"),
        "figures": [(figure.label, figure.value, LEVELS.get(figure.style, "")) for figure in figures_of(numbers)],
        "topics": topics[:ROWS],
        "topics_left_out": max(0, len(topics) - ROWS) + int(numbers.value("seglog_topics_left_out") or 0),
        "groups": groups[:ROWS],
        "groups_left_out": max(0, len(groups) - ROWS) + int(numbers.value("seglog_groups_left_out") or 0),
    }
