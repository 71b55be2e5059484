"""The version of the installed package."""

from importlib import metadata
from typing import Final


def _find() -> str:
    try:
        return metadata.version("seglog")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


VERSION: Final = _find()
__version__: Final = VERSION
