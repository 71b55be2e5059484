"""kafka-python's own integration tests against the Kafka listener: only what is listed here, with its reason, may fail.

They come with kafka-python's source distribution, which is unpacked outside this tree. Two modules that it lacks are
stubs, and where it names node 0 its copy gets our node's id.
"""

import os
import re
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from seglog_broker.config import BrokerConfig
from tests.foreign_programs import installed, run, skipped_where_absent
from tests.interop.client_programs import CLIENTS, environment_of
from tests.processes import daemon

pytestmark = [pytest.mark.timeout(600)]

TEST_SECONDS: Final = 40

SETTINGS: Final = (
    "listeners=PLAINTEXT://127.0.0.1:0",
    "num.partitions=4",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",  # its groups have sessions of 3 s
)
"""As the brokers of the suite's authors have them, where it looks at what they do."""

SERVICE: Final = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    pass
"""

_ACLS: Final = "ACLs: there is no authorizer"
_STARTS_ITS_OWN: Final = "TLS: the suite starts a broker of its own for it, from Kafka's release"

EXPECTED: Final = MappingProxyType(
    {
        "test_create_describe_delete_acls": _ACLS,
        "test_legacy_kafka_client_ssl": _STARTS_ITS_OWN,
        "test_ssl_handshake": _STARTS_ITS_OWN,
    }
)
"""The tests that fail, and why each does."""

SKIPPED: Final = 10
"""Nine of SASL, for which the suite starts its own broker, and one for a Kafka before 0.10.1."""


def unpacked() -> Path:
    """The folder of kafka-python's tests, and of what they are run with."""
    pins = CLIENTS / "requirements.txt"
    (pin,) = re.findall(r"^kafka-python==(.+)$", pins.read_text(encoding="utf-8"), re.MULTILINE)

    def make(folder: Path) -> None:
        python = environment_of()
        run(python, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", folder, f"kafka-python=={pin}")
        (archive,) = folder.glob("*.tar.gz")
        run("tar", "-x", "-f", archive, "--strip-components", "1", cwd=folder)
        tests = folder / "test"
        (tests / "__init__.py").touch()
        (tests / "service.py").write_text(SERVICE, encoding="utf-8")
        for path in (tests / "integration").glob("test_*.py"):
            text = path.read_text(encoding="utf-8")
            path.write_text(
                text.replace("[[0], [0]]", f"[[{BrokerConfig().node_id}], [{BrokerConfig().node_id}]]"),
                encoding="utf-8",
            )

    return installed("kafka-python-suite", [Path(__file__), pins], make)


@pytest.fixture
def suite() -> Path:
    with skipped_where_absent("kafka-python: its tests"):
        return unpacked()


def outcomes(report: Path) -> Iterator[tuple[str, str]]:
    """The name and the outcome of each test in a report: passed, failed or skipped."""
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield str(case.get("name")), outcome


def test_only_what_is_listed_fails(suite: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    given = [argument for setting in SETTINGS for argument in ("--set", setting)]
    with daemon(tmp_path / "data", *given) as broker:
        (ready,) = [event for event in broker.logged if event["event"] == "broker_ready"]
        variables = {"KAFKA_URI": f"kafka://{ready['kafka']}", "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": str(suite)}
        limits = ["--timeout", str(TEST_SECONDS), "--timeout-method", "signal", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [environment_of(), "-m", "pytest", "-q", *limits, "--junit-xml", report, "test/integration"],
            cwd=suite,
            env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SEGLOG"))}
            | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=550,
            check=False,
        )
        assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
    found = dict(outcomes(report))
    counts = Counter(found.values())
    print(f"\nkafka-python's own tests: {dict(counts)}")
    failed = {name for name, outcome in found.items() if outcome == "failed"}
    assert failed == EXPECTED.keys(), done.stdout[-8000:]
    assert counts["passed"] == len(found) - len(EXPECTED) - SKIPPED
    assert len(found) > 60
    assert counts["skipped"] == SKIPPED
