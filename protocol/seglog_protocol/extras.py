"""What comes with an extra of seglog only, and the sentence where it is missing."""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

_BROKER: Final = {
    "trio": "trio",
    "structlog": "structlog",
    "numpy": "numpy",
    "re2": "google-re2",
    "cryptography": "cryptography",
    "jwt": "pyjwt",
    "trustme": "trustme",
    "h11": "h11",
    "rich": "rich",
}

_ARROW: Final = {"pyarrow": "pyarrow", "numpy": "numpy"}
_ARCHIVE: Final = {**_ARROW, "obstore": "obstore"}

EXTRAS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "archive": _ARCHIVE,
        "arrow": _ARROW,
        "backup": {**_BROKER, "obstore": "obstore"},
        "broker": _BROKER,
        "console": {
            "starlette": "starlette",
            "uvicorn": "uvicorn",
            "jinja2": "jinja2",
            "python_multipart": "python-multipart",
        },
        "delta": {**_ARCHIVE, "deltalake": "deltalake"},
        "iceberg": {**_ARCHIVE, "pyiceberg": "pyiceberg", "sqlalchemy": "sqlalchemy"},
        "kafka": {"confluent_kafka": "confluent-kafka"},
        "load": {"trio": "trio", "hdrh": "hdrhistogram"},
        "testing": _BROKER,
        "top": {"rich": "rich"},
        "trio": {"trio": "trio"},
        "values": {**_ARROW, "fastavro": "fastavro", "ptars": "ptars", "grpc_tools": "grpcio-tools"},
    }
)
"""For each extra the modules it is needed for, by their names, and the packages that have them."""


def missing(what: str, extra: str, *, beside: str = "") -> ModuleNotFoundError | None:
    """What to raise, or to say, where a package of ``extra``, which ``what`` needs, is not there.

    What the extra ``beside`` has, too, is there, and not looked for. Imports none of them, so that the sentence comes
    before the first module that would fail without.
    """
    for module, package in EXTRAS[extra].items():
        if module not in EXTRAS.get(beside, ()) and find_spec(module) is None:
            return ModuleNotFoundError(
                f"{what} needs the package {package}, which is missing: pip install 'seglog[{extra}]'", name=module
            )
    return None
