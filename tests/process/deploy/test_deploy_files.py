"""What is in deploy/, each file held against its own tool, and all of them against the Dockerfile and the programs."""

import json
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import compose_spec
import kubernetes_validate
import pytest
import yaml

from seglog.cli.dispatch import parse
from seglog_broker.config import load_config
from tests.interop.kafka_wire import Wire, plain, request
from tests.processes import clean_environment, finished, free_port
from tests.support import REPOSITORY, each_case, missing

DEPLOY = REPOSITORY / "deploy"
TOOLS = Path(sys.executable).parent
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
VOLUME = "/var/lib/seglog"
UID = 10001
CLEAN_STOP_SECONDS = 300
"""What a service manager leaves for a clean stop: longer than the broker takes for its connections and every fsync."""


BASE = DEPLOY / "kustomize" / "base"


def manifests() -> dict[str, Any]:
    """The Kubernetes resources of the base, by kind, before kustomize has set what it is there for."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    read = [yaml.safe_load((BASE / name).read_text()) for name in kustomization["resources"]]
    (generated,) = kustomization["configMapGenerator"]
    data = {name: (BASE / name).read_text() for name in generated["files"]}
    configuration = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": data}
    return {found["kind"]: found for found in [*read, configuration]}


def compose() -> dict[str, Any]:
    """The services of the compose file."""
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return services


def container() -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of the StatefulSet, and the one container in it."""
    pod = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    return pod, only


def unit() -> list[tuple[str, str]]:
    """The settings of the systemd unit, in order; some stand there twice."""
    lines = (line for line in (DEPLOY / "seglogd.service").read_text().splitlines() if not line.startswith("#"))
    return [(name, value) for name, equals, value in (line.partition("=") for line in lines) if equals]


def clients_started() -> list[list[str]]:
    """Every command line of `seglog` in the files."""
    health = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    load = compose()["load"]
    return [*map(json.loads, health), [*load["entrypoint"], *load["command"]]]


# --- Their own tools --------------------------------------------------------------------------------------------------


@contextmanager
def started(*command: str, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A daemon, killed afterwards; its event ``broker_ready``, before which it warned of nothing."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stderr is not None
            telling = {"config_warning", "broker_ready"}
            ready: dict[str, Any] = next(each for each in map(json.loads, daemon.stderr) if each["event"] in telling)
            assert ready["event"] == "broker_ready"
            yield ready
        finally:
            daemon.kill()


def kustomize(folder: Path) -> dict[str, Any]:
    """The resources that kustomize makes of a folder, by kind."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        missing("kubectl: not on this machine")
    made = subprocess.run([str(kubectl), "kustomize", str(folder)], capture_output=True, text=True, check=True)
    assert made.stderr == ""
    return {found["kind"]: found for found in yaml.safe_load_all(made.stdout)}


def test_the_dockerfile_passes_its_linter() -> None:
    linted = finished([TOOLS / "hadolint", REPOSITORY / "Dockerfile"])
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_compose_file_is_one_by_the_specification() -> None:
    parsed = compose_spec.PyCompose.from_yaml((DEPLOY / "compose.yaml").read_text())
    parsed.validate()
    parsed.to_spec()
    assert sorted(parsed.service_names()) == ["broker", "console", "grafana", "load", "prometheus"]


@each_case("kind", ["ConfigMap", "Deployment", "Service", "NetworkPolicy", "StatefulSet"])
def test_each_kubernetes_resource_is_one_by_the_schemas(kind: str) -> None:
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(manifests()[kind], version, strict=True)
    spoiled = manifests()[kind] | {"spek": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(spoiled, version, strict=True)


def test_the_pod_has_the_configuration_and_the_release_that_the_base_names() -> None:
    kustomized = kustomize(BASE)
    assert set(kustomized) == set(manifests())
    pod = kustomized["StatefulSet"]["spec"]["template"]["spec"]
    release = max(path.name for path in (REPOSITORY / "tests" / "baselines").iterdir())
    assert {each["image"] for each in (*pod["containers"], *pod["initContainers"])} == {f"seglog:{release}"}
    name = kustomized["ConfigMap"]["metadata"]["name"]
    assert name != "seglog"  # it has a digest of the file, so that a change starts the pod again
    assert {"name": "config", "configMap": {"name": name}} in pod["volumes"]


def test_an_overlay_sets_name_image_and_configuration(tmp_path: Path) -> None:
    """As the first lines of the base show it."""
    shutil.copytree(BASE, tmp_path / "base")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    shown = re.findall(r"^#     (\w+: .*)$", (BASE / "kustomization.yaml").read_text(), re.MULTILINE)
    (overlay / "kustomization.yaml").write_text("\n".join(shown))
    (overlay / "seglogd.toml").write_text('"num.partitions" = 9\n')
    found = kustomize(overlay)
    assert {resource["metadata"]["namespace"] for resource in found.values()} == {"logs"}
    assert found["ConfigMap"]["data"] == {"seglogd.toml": '"num.partitions" = 9\n'}
    (only,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert only["image"].startswith("registry.example/seglog:")


def test_the_policy_is_for_the_broker_alone_and_lets_clients_and_scrapers_to_their_own_ports() -> None:
    labels = manifests()["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    policy = manifests()["NetworkPolicy"]["spec"]
    assert (
        policy["podSelector"] == {"matchLabels": labels} == {"matchLabels": manifests()["Service"]["spec"]["selector"]}
    )
    allowed = {
        next(iter(rule["from"][0]["podSelector"]["matchLabels"])): [port["port"] for port in rule["ports"]]
        for rule in policy["ingress"]
    }
    assert allowed == {"seglog-client": [9192, 9092], "seglog-monitoring": [9193]}


def test_the_unit_is_verified_and_little_exposed(tmp_path: Path) -> None:
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        missing("systemd: there is no systemd-analyze on this machine")
    text = (DEPLOY / "seglogd.service").read_text()
    copy = tmp_path / "seglogd.service"  # with a program that is there
    copy.write_text(text.replace("/opt/seglog/bin/seglogd", "/bin/true"))
    verified = finished([str(systemd_analyze), "verify", str(copy)])
    ours = [line for line in verified.stderr.splitlines() if "seglogd.service" in line]
    assert (verified.returncode, ours) == (0, []), verified.stderr
    security = [str(systemd_analyze), "security", "--offline=true", "--threshold=20", "--no-pager", str(copy)]
    told = finished(security)
    if "unrecognized option" in told.stderr:
        missing("systemd: its systemd-analyze is too old for security --offline")
    assert told.returncode == 0, told.stdout


# --- Their words, to our programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", clients_started(), ids=" ".join)
def test_every_seglog_that_is_started_has_options_that_exist(command: list[str]) -> None:
    assert command[0] == "seglog"
    parse(command[1:])


def test_the_example_configurations_are_taken_without_a_word() -> None:
    for text in ((DEPLOY / "seglogd.toml").read_text(), manifests()["ConfigMap"]["data"]["seglogd.toml"]):
        config, warnings = load_config(text, "seglogd.toml", {}, [])
        assert warnings == []
        assert config.topic_defaults.retention_ms == 30 * 86_400_000
        assert config.topic_defaults.retention_bytes > 2 * config.topic_defaults.segment_bytes


def test_wherever_the_configuration_is_put_there_it_is_read() -> None:
    pod, only = container()
    mounts = {mount["name"]: mount["mountPath"] for mount in only["volumeMounts"]}
    assert only["args"] == ["--config", f"{mounts['config']}/seglogd.toml"]
    assert {volume["name"] for volume in pod["volumes"]} | {"data"} == set(mounts)
    broker = compose()["broker"]
    assert f"./seglogd.toml:{broker['command'][1]}:ro" in broker["volumes"]
    starts = {value.partition(" ")[2] for name, value in unit() if name == "ExecStart"}
    assert starts == {"--config /etc/seglog/seglogd.toml"}


# --- Addresses --------------------------------------------------------------------------------------------------------


def environments() -> dict[str, dict[str, str]]:
    """What each file, and each example of docs/CONTAINERS.md, sets for the broker."""
    page = (REPOSITORY / "docs/CONTAINERS.md").read_text()
    examples = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    composed, pod, _ = map(yaml.safe_load, examples)
    variables = [*container()[1]["env"], *pod["env"]]
    inside, outside = (
        {variable["name"]: variable["value"] for variable in some if "value" in variable}
        for some in (variables[: len(container()[1]["env"])], variables[len(container()[1]["env"]) :])
    )
    return {
        "compose": compose()["broker"]["environment"],
        "page": composed["services"]["broker"]["environment"],
        "kubernetes": inside,
        "kubernetes, outside": outside,
    }


ADVERTISED = {
    "compose": [("broker", 29092), ("localhost", 9092)],
    "page": [("broker", 29092), ("localhost", 9092)],
    "kubernetes": [("seglog.apps.svc", 9092)],
    "kubernetes, outside": [("seglog.apps.svc", 9092), ("seglog.example.org", 9094)],
}


@pytest.mark.parametrize("file", ADVERTISED)
def test_clients_of_each_listener_are_told_an_address_that_they_can_reach(file: str, tmp_path: Path) -> None:
    image = dict(re.findall(r"(SEGLOG_\w*LISTEN\w*)=(\S+)", DOCKERFILE))
    settings = image | {name: text.replace("$(POD_NAMESPACE)", "apps") for name, text in environments()[file].items()}
    here = {
        name: re.sub(r"\b(SASL_)?SSL\b", "PLAINTEXT", re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text))
        for name, text in settings.items()
    }
    command = [sys.executable, "-m", "seglog_broker", "--data", str(tmp_path / "data"), "--log-format", "json"]
    with started(*command, environment=clean_environment(**here)) as ready:
        told = []
        for address in ready["kafka"].split(", "):
            with Wire(int(address.rpartition(":")[2])) as wire:
                [broker] = plain(wire.ask(request("Metadata", {"topics": []}), 1))["brokers"]
                told.append((broker["node_id"], broker["host"], broker["port"]))
    assert told == [(1, host, port) for host, port in ADVERTISED[file]]


def test_the_pages_compose_file_is_one_by_the_specification() -> None:
    page = (REPOSITORY / "docs/CONTAINERS.md").read_text()
    composed, _, service = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    parsed = compose_spec.PyCompose.from_yaml(composed)
    parsed.validate()
    assert sorted(parsed.service_names()) == ["app", "broker"]
    kubernetes_validate.validate(yaml.safe_load(service), kubernetes_validate.latest_version(), strict=True)


# --- All of one mind --------------------------------------------------------------------------------------------------


def test_both_stages_stand_on_one_base_by_its_digest() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", bases[0])


def test_an_image_is_compiled_unless_its_build_says_otherwise_and_another_word_is_refused() -> None:
    assert "\nARG SEGLOG_BUILD=compiled\n" in DOCKERFILE
    checks = re.findall(r"^RUN (case .*?esac)$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    ended = finished(["/bin/sh", "-c", *checks], environment={"SEGLOG_BUILD": "fast"})
    assert ended.returncode == 2
    assert ended.stderr == "SEGLOG_BUILD is compiled or sources, not 'fast'\n"


def test_data_is_a_level_below_a_volume_that_outlives_the_container() -> None:
    assert f"VOLUME {VOLUME}\n" in DOCKERFILE
    assert f"SEGLOG_LOG_DIR={VOLUME}/data" in DOCKERFILE
    assert f"data:{VOLUME}" in compose()["broker"]["volumes"]
    assert {"name": "data", "mountPath": VOLUME} in container()[1]["volumeMounts"]
    assert manifests()["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    config, _ = load_config((DEPLOY / "seglogd.toml").read_text(), "", {}, [])
    assert config.log_dir == f"{VOLUME}/data"
    assert dict(unit())["StateDirectory"] == Path(VOLUME).name


def test_nothing_runs_as_root_and_the_number_is_the_same_everywhere() -> None:
    assert f"--uid {UID}" in DOCKERFILE
    assert f"\nUSER {UID}\n" in DOCKERFILE
    pod, only = container()
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (UID, UID)
    assert only["securityContext"]["allowPrivilegeEscalation"] is False
    assert dict(unit())["User"] == "seglog"


def test_there_is_one_broker_which_may_stop_cleanly() -> None:
    """One replica, with time for a clean stop and descriptors enough."""
    config, _ = load_config((DEPLOY / "seglogd.toml").read_text(), "", {}, [])
    needed = config.seglog_connections_max + config.seglog_handles_max
    assert manifests()["StatefulSet"]["spec"]["replicas"] == 1
    assert container()[0]["terminationGracePeriodSeconds"] == CLEAN_STOP_SECONDS
    assert compose()["broker"]["stop_grace_period"] == "5m"
    assert compose()["broker"]["ulimits"]["nofile"] > needed
    settings = dict(unit())
    assert (settings["TimeoutStopSec"], settings["Type"]) == ("5min", "notify")
    assert int(settings["LimitNOFILE"]) > needed


@pytest.mark.parametrize("page", ["Dockerfile", "docs/OPERATIONS.md", "docs/CONTAINERS.md"])
def test_whoever_runs_the_image_for_this_machine_publishes_both_ports(page: str) -> None:
    text = (REPOSITORY / page).read_text().replace("\\\n", " ")
    runs = [line for line in text.splitlines() if "docker run" in line and "--network" not in line]
    assert runs
    for line in runs:
        assert re.findall(r"-p (\S+)", line) == ["127.0.0.1:9192:9192", "127.0.0.1:9092:9092"]
    assert {"9192", "9092"} <= set(re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[0].split())


def test_a_reload_checks_the_configuration_first() -> None:
    check, signal = (shlex.split(value) for name, value in unit() if name == "ExecReload")
    start = shlex.split(dict(unit())["ExecStart"])
    assert check == [*start, "--check-config"]
    assert signal == ["/bin/kill", "-HUP", "$MAINPID"]
    arguments = [str(DEPLOY / "seglogd.toml") if word.startswith("/etc/") else word for word in check[1:]]
    command = [sys.executable, "-m", "seglog_broker", *arguments]
    checked = finished(command)
    assert checked.returncode == 0, checked.stderr
    assert re.search(r"^log[.]retention[.]ms +2592000000 [(]30 days[)] ", checked.stdout, re.MULTILINE)


# --- make -------------------------------------------------------------------------------------------------------------


def made(folder: Path, *target: str) -> str:
    """What make would do for ``target``, which may have variables."""
    return subprocess.run(
        ["make", "--no-print-directory", "-n", *target], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_make_run_installs_what_runs_and_make_test_adds_the_tools(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    assert "--editable '.[broker,console,load]'" in made(tmp_path, "run")
    for target in ("run", "quickstart"):  # compiled where that can be, and else from the sources
        assert re.search(r"wheels.py --here \|\| .*\nPYTHONPATH=.* build/compiled/now/packages", made(tmp_path, target))
    assert "--editable '.[dev]'" in made(tmp_path, "unit-broker")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.installed-run").touch()  # after `make run`
    assert "pip install" not in made(tmp_path, "run")
    assert "--editable '.[dev]'" in made(tmp_path, "unit-broker")
    (tmp_path / ".venv/.installed").touch()  # after `make test`
    assert "pip install" not in made(tmp_path, "run") + made(tmp_path, "unit-broker")


def test_what_runs_needs_no_tool_of_development() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = ("broker", "load", "trio")
    needed = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    tools = {re.split(r"[>=<\[]", line)[0] for line in project["optional-dependencies"]["dev"]} - {"seglog"}
    assert not tools & ({re.split(r"[>=<\[;]", line)[0] for line in needed} - {"seglog"})


# --- Accounts on Kubernetes -------------------------------------------------------------------------------------------


def test_the_pod_makes_its_accounts_and_answers_its_probes_and_prometheus(tmp_path: Path) -> None:
    """With the Secrets that the base's first lines make, every path below a folder that stands for the root."""
    pod, only = container()
    accounts, certs, http, data = (tmp_path / name for name in ("accounts", "certs", "http", "data"))
    accounts.mkdir()
    (accounts / "admin").write_text("admin-0123456789")
    http.mkdir()
    (http / "token").write_text("token-0123456789")
    (http / "token").chmod(0o600)
    places = {"/etc/seglog-accounts": accounts, "/etc/seglog-tls": certs, "/etc/seglog-http": http, VOLUME: data}

    def moved(text: str) -> str:
        for place, here in places.items():
            text = text.replace(place, str(here))
        return text.replace("$(POD_NAMESPACE)", "apps")

    port = free_port()
    variables = {each["name"]: moved(each["value"]) for each in only["env"] if "value" in each}
    variables["SEGLOG_LISTEN"] = variables["SEGLOG_LISTEN"].replace("0.0.0.0:9192", f"127.0.0.1:{port}")
    variables["SEGLOG_LISTENERS"] = variables["SEGLOG_LISTENERS"].replace("0.0.0.0:9092", "127.0.0.1:0")
    variables["SEGLOG_HTTP_LISTEN"] = variables["SEGLOG_HTTP_LISTEN"].replace("9193", "0")
    variables["SEGLOG_SERVER"] = variables["SEGLOG_SERVER"].replace("9192", str(port))
    environment = clean_environment(**variables, SEGLOG_LOG_DIR=str(data / "data"), SEGLOG_LOG_FORMAT="json")
    environment["PATH"] = f"{TOOLS}:{environment['PATH']}"
    subprocess.run(["seglogd", "certificates", "--to", str(certs)], env=environment, check=True, capture_output=True)
    (init,) = pod["initContainers"]
    for _ in range(2):  # each start of the pod
        subprocess.run([*init["command"][:2], moved(init["command"][2])], env=environment, check=True)
    file = tmp_path / "seglogd.toml"
    file.write_text(moved(manifests()["ConfigMap"]["data"]["seglogd.toml"]))
    with started("seglogd", "--config", str(file), environment=environment) as ready:
        served = f"https://localhost:{ready['http'].rpartition(':')[2]}"
        trusted = ssl.create_default_context(cafile=str(certs / "authority.pem"))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = only[probe]["httpGet"]
            assert (asked["scheme"], asked["port"]) == ("HTTPS", "http")
            assert answered(f"{served}{asked['path']}", trusted) == 200
        assert answered(f"{served}/metrics", trusted) == 401
        token = {"Authorization": "Bearer token-0123456789"}
        assert answered(f"{served}/metrics", trusted, **token) == 200
        as_people = finished(["seglog", "ping"], environment=environment)
        assert as_people.returncode == 0, as_people.stderr
        unknown = environment | {"SEGLOG_USER": "nobody"}
        assert subprocess.run(["seglog", "ping"], env=unknown, check=False, capture_output=True).returncode != 0


def answered(url: str, trusted: ssl.SSLContext, **headers: str) -> int:
    """The status of a page."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
