"""The files in `deploy/` agree with one another and with Headrace: ports, paths, users, settings, exit codes and memory."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import headrace
from headrace import cli
from headrace.cli.flags import FAILED
from headrace.cli.manual import VARIABLES
from headrace.config import load
from headrace.dashboard.server import serve
from headrace.demo.private_server import PrivateServer
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.machine.bare_machine import RELEASE
from testkit.machine.dockerfile import Dockerfile, parse_dockerfile
from testkit.servers.servers import execute

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/headrace"
COMPOSE = DEPLOY / "compose"
CONFIGURATION = "/etc/headrace/headrace.toml"
EDITED = "/var/lib/headrace/headrace.toml"
STATE = "/var/lib/headrace/state"


@pytest.fixture(scope="module")
def image() -> Dockerfile:
    return parse_dockerfile((DEPLOY / "docker/Dockerfile").read_text())


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())


@pytest.fixture(scope="module")
def values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.fixture(scope="module")
def unit() -> dict[str, list[str]]:
    """The settings of the systemd unit, each with all of its values."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd/headrace.service").read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def chart_file(values: Any) -> str:
    """`headrace.toml` as the chart's ConfigMap has it with the values of `values.yaml`."""
    template = (CHART / "templates/configmap.yaml").read_text()
    head = template[template.index("    [headrace]\n") : template.index("    {{- .Values.pipes | nindent 4 }}")]
    head = re.sub(r"\{\{ \.Values\.process\.(\w+) \| toJson \}\}", lambda found: json.dumps(values["process"][found[1]]), head)
    head = re.sub(r"\{\{ concat \$names \.Values\.process\.hosts \| toJson \}\}", '["headrace"]', head)
    assert "{{" not in head
    return "\n".join(line.removeprefix("    ") for line in head.splitlines()) + "\n" + str(values["pipes"])


def test_the_address_in_the_links_of_alerts_is_a_value(values: Any, tmp_path: Path) -> None:
    """Without it, links begin with http://127.0.0.1:8088, which no one else can open."""
    written = tmp_path / "headrace.toml"
    for address in ("", "https://headrace.internal"):
        process = {**values["process"], "address": address}
        written.write_text(chart_file({**values, "process": process}).replace("password_file", "#"))
        assert load(written, ()).process.address == address
    assert yaml.safe_load((ROOT / "tests/deploy/values.yaml").read_text())["process"]["address"] == "https://headrace.internal"


def test_the_rules_of_prometheus_select_the_job_of_the_chart() -> None:
    """The operator names the job of a PodMonitor NAMESPACE/NAME unless a relabeling, which it applies last, sets another one."""
    template = (CHART / "templates/podmonitor.yaml").read_text()
    spec = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", template[template.index("  podMetricsEndpoints:") : template.rindex("{{- end }}")]))
    (endpoint,) = spec["podMetricsEndpoints"]
    (relabeling,) = endpoint["relabelings"]
    rules = (Path(headrace.__file__).parent / "dashboard/prometheus-rules.yml").read_text()
    assert relabeling["targetLabel"] == "job"
    assert {relabeling["replacement"]} == set(re.findall(r'job="([^"]*)"', rules))


def deployed_files(values: Any) -> dict[str, str]:
    paths = {name: (DEPLOY / name / "headrace.toml").read_text() for name in ("compose", "systemd")}
    return {**paths, "helm": chart_file(values)}


@pytest.mark.parametrize("name", ["compose", "helm", "systemd"])
def test_headrace_accepts_the_file(
    name: str, values: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`config check` accepts it when the files with passwords exist, and the process listens and stores its state where it should."""
    secrets = {"compose": "/run/secrets", "helm": "/run/secrets/headrace", "systemd": "${CREDENTIALS_DIRECTORY}"}[name]
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    text = deployed_files(values)[name]
    files = re.findall(rf'^password_file = "{re.escape(secrets)}/([\w-]+)"$', text, re.MULTILINE)
    assert len(files) == 2, "every password of the example is in a file"
    assert "password =" not in text
    for file in files:
        (tmp_path / file).write_text(f"the password in {file}\n")
    written = tmp_path / "headrace.toml"
    written.write_text(text.replace(f"{secrets}/", f"{tmp_path}/"))
    assert cli.main(["config", "check", str(written)]) == 0, capsys.readouterr()
    process = load(written, ()).process
    assert process.state == Path(STATE)
    assert process.listen == ("127.0.0.1:8088" if name == "systemd" else "0.0.0.0:8088")


def test_ports_paths_and_users_agree(image: Dockerfile, compose: Any, values: Any, unit: dict[str, list[str]]) -> None:
    service = compose["services"]["headrace"]
    stateful = (CHART / "templates/statefulset.yaml").read_text()
    assert image.volume == image.directory == "/var/lib/headrace"
    assert f"headrace:{image.volume}" in service["volumes"]
    assert f"mountPath: {image.volume}\n" in stateful
    assert [f"/var/lib/{unit['StateDirectory'][0]}"] == unit["WorkingDirectory"] == [image.volume]

    assert image.port == values["service"]["port"] == 8088
    assert service["ports"] == ["127.0.0.1:8088:8088"]
    assert re.findall(r"containerPort: (\d+)", stateful) == ["8088"]
    assert "//127.0.0.1:8088/health" in image.health_command[-1]

    assert image.user == "10001:10001"
    pod = values["podSecurityContext"]
    assert (pod["runAsUser"], pod["runAsGroup"], pod["fsGroup"], pod["runAsNonRoot"]) == (10001, 10001, 10001, True)
    assert "DynamicUser" in unit

    assert image.command == ("run", CONFIGURATION)
    assert f"./headrace.toml:{CONFIGURATION}:ro" in service["volumes"]
    assert f"args: [run, {CONFIGURATION}]\n" in stateful
    assert unit["ExecStart"][0].endswith(f"headrace --log-format json run {CONFIGURATION}")

    cache = image.environment["XDG_CACHE_HOME"]
    assert f"mountPath: {cache}\n" in stateful
    assert f"cp, --recursive, {cache}/., /cache/]" in stateful
    assert f"XDG_CACHE_HOME={cache}" in unit["Environment"][0]


def test_memory_limits_agree(compose: Any, values: Any, unit: dict[str, list[str]]) -> None:
    assert (compose["services"]["headrace"]["mem_limit"], values["resources"]["limits"]["memory"], unit["MemoryMax"]) == (
        "3g",
        "3Gi",
        ["3G"],
    )


def test_the_image_holds_what_headrace_needs(image: Dockerfile) -> None:
    """The base is the Debian of `make test-image`, Java and the constraints are those of the set-up, and kernels suit any CPU."""
    commands = [step for step in image.steps if step.keyword == "RUN"]
    assert image.base == f"debian:{RELEASE}-slim"
    assert "openjdk-17-jre-headless" in commands[0].text
    assert "openjdk-17-jre-headless" in (ROOT / "scripts/install-system-packages").read_text()
    assert "PIP_CONSTRAINT=/usr/src/headrace/constraints.txt" in commands[1].text
    made = [line for line in (ROOT / "Makefile").read_text().splitlines() if "-m headrace." in line and line.startswith("\t")]
    modules = [word for line in made for word in line.split() if word.startswith("headrace.")]
    assert re.findall(r"-m (headrace[.\w]+)", commands[-1].text) == modules
    assert commands[-1].user == image.user, "the kernels' folder must belong to the user who loads them"
    assert commands[-1].environment["NUMBA_CPU_NAME"] == image.environment["NUMBA_CPU_NAME"] == "x86-64-v2"
    # Otherwise numba adds the features of the CPU that builds the image.
    assert image.environment["NUMBA_CPU_FEATURES"] == ""


def test_copied_files_are_in_the_context(image: Dockerfile) -> None:
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    copied = [word for step in image.steps if step.keyword == "COPY" for word in step.text.split()[:-1]]
    assert ignored[0] == "*"
    assert sorted(copied) == sorted(line[1:] for line in ignored if line.startswith("!"))
    assert all((ROOT / name).exists() for name in copied)


def test_the_health_check_of_the_image(image: Dockerfile) -> None:
    """It succeeds while a process answers, and fails when none does."""
    with serve(FakeControl(), "127.0.0.1:0", TOKEN) as server:
        words = [word.replace(":8088/", f":{server.address.port}/") for word in image.health_command]
        assert subprocess.run(words, check=False, capture_output=True).returncode == 0
    assert subprocess.run(words, check=False, capture_output=True).returncode != 0


def test_compose_starts_in_order_with_secrets(compose: Any) -> None:
    services = compose["services"]
    assert services["headrace"]["depends_on"] == {name: {"condition": "service_healthy"} for name in ("mysql", "clickhouse")}
    assert all("test" in services[name]["healthcheck"] for name in ("mysql", "clickhouse"))
    text = (COMPOSE / "compose.yaml").read_text()
    offered = re.findall(r"^(\w+)=$", (COMPOSE / ".env.example").read_text(), re.MULTILINE)
    named = {secret["environment"] for secret in compose["secrets"].values()} | set(re.findall(r"\$\{(\w+)", text))
    assert set(offered) == named
    used = {name for service in services.values() for name in service.get("secrets", ())}
    assert used == set(compose["secrets"])
    assert set(re.findall(r"/run/secrets/(\w+)", (COMPOSE / "headrace.toml").read_text())) == set(services["headrace"]["secrets"])
    binds = [volume.split(":")[0] for service in services.values() for volume in service["volumes"] if volume.startswith(".")]
    assert binds
    assert all((COMPOSE / bind).is_file() for bind in binds)
    assert {volume.split(":")[0] for service in services.values() for volume in service["volumes"]} - set(binds) == set(compose["volumes"])
    build = services["headrace"]["build"]
    assert (COMPOSE / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


def compose_settings(compose: Any) -> dict[str, str]:
    """The settings of compose.yaml's MySQL, by their names in a configuration file."""
    pairs = [word.removeprefix("--").partition("=") for word in compose["services"]["mysql"]["command"]]
    return {name.replace("-", "_"): value for name, _, value in pairs}


@pytest.mark.parametrize("flavour", ["mysql"])
def test_check_accepts_the_source_of_compose(
    compose: Any, fresh_server: Callable[..., PrivateServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """A real MySQL with the options and the account of compose.yaml: nothing about its log is to be improved."""
    server = fresh_server(**compose_settings(compose))
    script = (COMPOSE / "source-account.sh").read_text()
    (sql,) = re.findall(r"<<SQL\n(.*?)^SQL$", script, re.DOTALL | re.MULTILINE)
    sql = sql.replace("$(cat /run/secrets/source_password)", "pass-word")
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)", *filter(str.strip, sql.split(";\n")))
    assert cli.main(["check", server.url("shop", "headrace", "pass-word"), "--json"]) == 0
    findings = {found["name"]: found for found in json.loads(capsys.readouterr().out)["findings"]}
    checked = {"binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_checksum", "gtid_mode", "server_id", "retention"}
    assert checked <= set(findings)
    assert [found for name, found in findings.items() if name in checked and found["level"] != "ok"] == []


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}")
    else:
        yield path


def test_the_chart_uses_every_value_and_no_other(values: Any) -> None:
    text = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    known = set(leaves(values))
    unknown = {path for path in used if not any(leaf == path or leaf.startswith(f"{path}.") for leaf in known)}
    unused = {leaf for leaf in known if not any(leaf == path or leaf.startswith(f"{path}.") for path in used)}
    assert (unknown, unused) == (set(), set())


def test_the_chart_is_complete(values: Any) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == headrace.__version__
    stateful = (CHART / "templates/statefulset.yaml").read_text()
    assert "replicas: 1\n" in stateful
    assert dict(re.findall(r"(\w+)Probe:\n +httpGet:\n +path: (/\w+)", stateful)) == {
        "startup": "/health",
        "liveness": "/health",
        "readiness": "/ready",
    }
    security = values["securityContext"]
    assert security == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert stateful.count("toYaml .Values.securityContext") == len(re.findall(r"^ +image: ", stateful, re.MULTILINE)) == 2


def test_named_variables_exist() -> None:
    """Every variable HEADRACE_… that a file names is one that the manual lists."""
    named = {name for path in DEPLOY.rglob("*") if path.is_file() for name in re.findall(r"HEADRACE_[A-Z_]+", path.read_text())}
    assert named <= set(VARIABLES)


def test_the_unit_does_not_restart_after_a_definite_error(unit: dict[str, list[str]]) -> None:
    assert unit["Restart"] == ["on-failure"]
    assert unit["RestartPreventExitStatus"] == [str(FAILED)]
    assert unit["SuccessExitStatus"] == ["130 143"]
    named = [value.partition(":")[0] for value in unit["LoadCredential"]]
    text = (DEPLOY / "systemd/headrace.toml").read_text()
    assert re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/([\w-]+)", text) == named


def test_the_dashboard_may_write_the_file_of_the_overlays(image: Dockerfile, compose: Any, unit: dict[str, list[str]]) -> None:
    """The overlays run the same commands with a file in the volume or the state directory, which belong to the process's user."""
    overlay = yaml.safe_load((COMPOSE / "edit.yaml").read_text())
    assert overlay == {"services": {"headrace": {"command": ["run", EDITED]}}}
    assert "command" not in compose["services"]["headrace"], "the image has it"
    assert image.volume == f"/var/lib/{unit['StateDirectory'][0]}" == str(Path(EDITED).parent)
    commands = re.findall(r"^(Exec\w+)=(.*)$", (DEPLOY / "systemd/edit.conf").read_text(), re.MULTILINE)
    edited = {name: unit[name][0].replace(CONFIGURATION, EDITED) for name in ("ExecStart", "ExecReload")}
    # systemd runs a further command as well, unless an empty one discards those of the unit.
    assert commands == [(name, value) for name, command in edited.items() for value in ("", command)]


def test_the_guide_puts_the_edited_file_where_the_process_reads_it() -> None:
    guide = (ROOT / "docs/guides/deployment.md").read_text()
    section = guide[guide.index("## Edit pipes in the dashboard\n") : guide.index("## Image\n")]
    assert section.count(f"--entrypoint cp headrace {CONFIGURATION} {EDITED}\n") == 2
    assert f" headrace run {EDITED}\n" in section
    assert f"install -D -m 644 {CONFIGURATION} {EDITED}\n" in section
    assert "install -D -m 644 deploy/systemd/edit.conf /etc/systemd/system/headrace.service.d/edit.conf\n" in section
    assert "COMPOSE_FILE=compose.yaml:edit.yaml >>.env\n" in section


@pytest.fixture
def unit_here(tmp_path: Path) -> Path:
    """The unit with programs that exist on this machine: systemd checks that it could execute them."""
    text = (DEPLOY / "systemd/headrace.service").read_text()
    written = tmp_path / "headrace.service"
    written.write_text(re.sub(r"/opt/headrace/bin/\w+", "/bin/true", text))
    return written


def test_systemd_accepts_the_unit(unit_here: Path) -> None:
    verified = subprocess.run(["systemd-analyze", "verify", str(unit_here)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr, verified.stdout) == (0, "", "")
    unit_here.write_text(unit_here.read_text().replace("ProtectSystem=strict", "ProtectSystem=strikt"))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit_here)], capture_output=True, text=True, check=False)
    assert "strikt" in verified.stderr


def test_systemd_accepts_the_unit_with_the_overlay(unit_here: Path) -> None:
    overlay = unit_here.with_name("headrace.service.d") / "edit.conf"
    overlay.parent.mkdir()
    text = re.sub(r"/opt/headrace/bin/\w+", "/bin/true", (DEPLOY / "systemd/edit.conf").read_text())
    overlay.write_text(text)
    verified = subprocess.run(["systemd-analyze", "verify", str(unit_here)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr, verified.stdout) == (0, "", "")
    overlay.write_text(text.replace("ExecStart=\n", ""))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit_here)], capture_output=True, text=True, check=False)
    assert "more than one ExecStart=" in verified.stderr


def test_systemd_s_measure_of_exposure(unit_here: Path) -> None:
    """At most 2.0 of 10: systemd calls 2 and less `OK`."""
    command = shlex.split("systemd-analyze security --offline=true --threshold=20")
    measured = subprocess.run([*command, str(unit_here)], capture_output=True, text=True, check=False)
    assert measured.returncode == 0, measured.stdout
    unit_here.write_text(unit_here.read_text().replace("SystemCallFilter=", "#").replace("CapabilityBoundingSet=", "#"))
    assert subprocess.run([*command, str(unit_here)], capture_output=True, check=False).returncode != 0
