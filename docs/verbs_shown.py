"""What `make docs` shows of a client's verbs: their results, and not the conversations that they are declared as."""

import re
from typing import Any

from griffe import Extension, Function


class Verbs(Extension):
    """Has the results of verbs without ``Conversation[...]``, and classes in place of their type variables."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """A function has been read."""
        if func.parent is not None and func.parent.name.endswith("Verbs"):
            told = re.sub(r"^Conversation\[(.*)\]$", r"\1", str(func.returns).strip("\"'"))
            func.returns = re.sub(r"\b(\w+)T\b", r"\1", told)
