"""The names of a client that `make docs` shows otherwise than they are declared: its verbs, and ``connect``."""

import re
from copy import copy
from typing import Any

from griffe import Extension, Function, Module, Parameters


class Verbs(Extension):
    """Has the results of verbs without ``Conversation[...]``, and classes in place of their type variables.

    ``connect`` of the async faces, a method that they get from ``Face``, is shown as that method.
    """

    def on_function(self, *, func: Function, **_: Any) -> None:
        """A function has been read."""
        if func.parent is not None and func.parent.name.endswith("Verbs"):
            told = re.sub(r"^Conversation\[(.*)\]$", r"\1", str(func.returns).strip("\"'"))
            func.returns = re.sub(r"\b(\w+)T\b", r"\1", told)

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """A package has been read."""
        if pkg.name == "seglog":
            for face in ("asyncio", "trio"):
                connect = copy(pkg["asynchronous.client.Face.connect"])
                connect.parameters = Parameters(*list(connect.parameters)[1:])  # without self
                pkg[face].set_member("connect", connect)
