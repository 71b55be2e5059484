"""How the running Python was built: a build with profile-guided optimization (PGO) serves small requests faster."""

import sys
import sysconfig
from collections.abc import Mapping
from typing import Any


def is_profile_optimized(variables: Mapping[str, Any] | None = None) -> bool | None:
    """Whether this Python was built with PGO; None if its build does not say so.

    ``variables`` are those of ``sysconfig``. Debian and Ubuntu train their Python outside of configure and empty the
    variable that would tell: for these the answer is None.
    """
    variables = sysconfig.get_config_vars() if variables is None else variables
    arguments = variables.get("CONFIG_ARGS")
    if not arguments:
        return None
    if "--enable-optimizations" in arguments:
        return True
    return False if variables.get("PGO_PROF_USE_FLAG") else None


def describe_interpreter() -> str:
    """Version of this Python for the log, with a note if it was built without PGO."""
    version = sys.version.split()[0]
    if is_profile_optimized() is not False:
        return version
    return f"{version}, built without PGO: one with it is faster, see 'Which Python' in docs/OPERATIONS.md"
