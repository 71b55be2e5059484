"""Templates: what others have named or written is text in them, and numbers have their units by filters."""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from seglog.cli import figures
from seglog.cli.tables import named
from seglog.core.errors import count_of, duration_of
from seglog_protocol.texts import disarmed


def _shown(value: object) -> object:
    """Text with its lines, and what would turn or hide other text as escapes; pictures of ours as they are."""
    return "\n".join(map(disarmed, value.split("\n"))) if type(value) is str else value


class Templates:
    """The templates of this package, whose expressions are text unless a picture of ours says otherwise."""

    def __init__(self, functions: Mapping[str, Callable[..., object]]) -> None:
        self._environment = Environment(
            loader=PackageLoader("seglog_console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._environment.filters |= {
            "bytes": figures.bytes_text,
            "count": figures.count_text,
            "rate": figures.rate_text,
            "seconds": figures.seconds_text,
            "percent": figures.percent_text,
            "duration": duration_of,
            "grouped": lambda number: f"{number:,}",
            "count_of": count_of,
            "named": named,
            "exactly": escape,  # for an attribute that comes back
        }
        self._environment.globals |= functions
        self._environment.globals["parts"] = self._environment.get_template("parts.html").module

    def whole(self, name: str, shown: Mapping[str, Any]) -> str:
        """The whole page."""
        return self._environment.get_template(name).render(shown)

    def live(self, name: str, shown: Mapping[str, Any]) -> str:
        """The block ``live``, which changes."""
        template = self._environment.get_template(name)
        block = template.blocks.get("live")  # not every page has one
        return "" if block is None else "".join(block(template.new_context(dict(shown))))
