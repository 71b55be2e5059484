"""Debian's Prometheus, unpacked below ``build/``: its promtool, and a server that scrapes what a test runs."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.foreign_programs import debian_package, skipped_where_absent
from tests.processes import PATIENCE_SECONDS, finished, free_port, wait_until


def program(name: str) -> str:
    """``prometheus`` or ``promtool``. Skips the test where the package cannot be had."""
    with skipped_where_absent("prometheus"):
        return str(debian_package("prometheus", dependencies=False) / "usr" / "bin" / name)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What promtool says."""
    command = [program("promtool"), *map(str, arguments)]
    return finished(command)


class Series(NamedTuple):
    """One series of an answer, at one moment."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    """A running server, asked over its HTTP API."""

    def __init__(self, address: str) -> None:
        self.address = address

    def _get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None

    def instant(self, query: str) -> list[Series]:
        """The series of an expression now; a scalar is one without labels."""
        found = self._get("query", query=query)
        if found["resultType"] == "scalar":
            return [Series({}, float(found["result"][1]))]
        return [Series(each["metric"], float(each["value"][1])) for each in found["result"]]

    def value(self, query: str) -> float:
        """The value of the only series."""
        (only,) = self.instant(query)
        return only.value

    def over(self, query: str, seconds: float, step: float) -> list[tuple[Mapping[str, str], list[float]]]:
        """The values of each series in so many seconds up to now."""
        end = time.time()
        found = self._get("query_range", query=query, start=str(end - seconds), end=str(end), step=str(step))
        return [(each["metric"], [float(value) for _, value in each["values"]]) for each in found["result"]]

    def label_values(self, label: str, selector: str) -> list[str]:
        """As Grafana's variables ask for them: the values of a label in the series of a selector."""
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return found

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Those that fire, by name."""
        firing: dict[str, list[dict[str, Any]]] = {}
        for alert in self._get("alerts")["alerts"]:
            if alert["state"] == "firing":
                firing.setdefault(alert["labels"]["alertname"], []).append(alert)
        return firing

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped, and how that went."""
        found: list[dict[str, Any]] = self._get("targets")["activeTargets"]
        return found

    def wait_for_scrapes(self, job: str, count: int) -> None:
        """Until a job's target has answered so many scrapes; a busy machine may let others take too long."""
        wait_until(
            lambda: bool(self.instant(f'sum_over_time(up{{job="{job}"}}[1h]) >= {count}')), f"{count} scrapes of {job}"
        )


@contextmanager
def prometheus(
    folder: Path, jobs: Sequence[Mapping[str, Any]], *, rules: Sequence[Path] = (), interval: str = "1s"
) -> Iterator[Prometheus]:
    """A server with ``jobs`` as ``scrape_configs`` has them, which scrapes and evaluates each ``interval``."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": list(jobs),
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: _is_ready(process, address, folder), "prometheus")
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _is_ready(process: "subprocess.Popen[bytes]", address: str, folder: Path) -> bool:
    assert process.poll() is None, (folder / "prometheus.log").read_text()
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=10):
            return True
    except OSError:
        return False
