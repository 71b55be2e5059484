"""Prometheus and Grafana in docs/REFERENCE.md, and in deploy/: programs that read what these show take it."""

import re
from pathlib import Path

import pytest
import yaml

from scripts import grafana_dashboard
from seglog_broker.config import load_config
from tests.pages import reference
from tests.process.deploy.prometheus import promtool
from tests.process.deploy.test_alerts import RULES, rules
from tests.process.deploy.test_deploy_files import DEPLOY, compose
from tests.support import REPOSITORY

PAGE = reference("Prometheus and Grafana")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.soak
@pytest.mark.parametrize("shown", blocks("yaml"))
def test_prometheus_takes_each_configuration_that_is_shown(shown: str, tmp_path: Path) -> None:
    for path in re.findall(r"_file: (\S+)", shown):
        (tmp_path / Path(path).name).write_text("")
        shown = shown.replace(path, str(tmp_path / Path(path).name))
    file = tmp_path / "prometheus.yaml"
    file.write_text(shown)
    said = promtool("check", "config", file)
    assert said.returncode == 0, said.stdout + said.stderr
    assert [each["job_name"] for each in yaml.safe_load(shown)["scrape_configs"]] == ["seglog"]


@pytest.mark.soak
def test_prometheus_takes_the_configuration_of_compose() -> None:
    said = promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yaml")
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(list(rules()))} rules found" in said.stdout


def test_the_broker_takes_the_configuration_that_is_shown() -> None:
    (shown,) = blocks("toml")
    config, warnings = load_config(shown, "", {}, [])
    assert warnings == []
    assert config.seglog_http_listen == "SSL://0.0.0.0:9193"


def test_prometheus_asks_the_broker_where_it_listens() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in compose()
    assert f"SEGLOG_HTTP_LISTEN=0.0.0.0:{port} " in (REPOSITORY / "Dockerfile").read_text()
    assert job["job_name"] == "seglog"


def test_what_the_containers_of_monitoring_read_is_there() -> None:
    for name in ("prometheus", "grafana"):
        assert compose()[name]["profiles"] == ["monitoring"]
        for mount in compose()[name]["volumes"]:
            source = mount.split(":")[0]
            assert not source.startswith("./") or (DEPLOY / source).is_file()
    provider = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"][0]
    dashboard = f"{provider['options']['path']}/seglog.json"
    assert f"./grafana/seglog.json:{dashboard}:ro" in compose()["grafana"]["volumes"]
    assert compose()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard
    source = yaml.safe_load((DEPLOY / "grafana" / "datasources.yaml").read_text())["datasources"][0]
    assert source["type"] == grafana_dashboard.dashboard()["templating"]["list"][0]["query"]


def test_the_alerts_that_the_page_names_are_there() -> None:
    named = {*re.findall(r"`(Seglog\w+)`", PAGE)}
    assert named
    assert named <= {rule["alert"] for rule in rules()}
    assert RULES.relative_to(REPOSITORY).as_posix() in PAGE
