"""The files of deploy/ are valid for the programs that read them, and name only settings and metrics that exist."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from zipfile import ZipFile

import jsonschema
import promql_parser
import pytest
import yaml
from dockerfile_parse import DockerfileParser
from prometheus_client.parser import text_string_to_metric_families

from flakelog.metric_table import ALL, HISTOGRAM
from flakelog.service_manager import watchdog_seconds
from flakelog.settings import read_environment
from tests.compat.clean_environment import pip
from tests.compat.server_process import ServerProcess
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
CONTAINERFILE, COMPOSE, UNIT = DEPLOY / "Containerfile", DEPLOY / "compose.yaml", DEPLOY / "flakelog.service"
SCRAPES, ALERTS = DEPLOY / "prometheus" / "prometheus.yml", DEPLOY / "prometheus" / "alerts.yml"
OF_PROMETHEUS = {"up", "process_open_fds", "process_max_fds"}
ADDED_BY_PROMETHEUS = {"instance", "job"}
EXPOSURE_MAX = 20  # tenths: "OK" begins below 50, and an unhardened unit has 96


def not_settings(environment):
    """Return the FLAKELOG_ variables that are no setting."""
    known = {each.origin for each in read_environment(environment)}
    return {name for name in environment if name.startswith("FLAKELOG_")} - known


# --- the container -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The Containerfile, as a parser reads it."""
    parser = DockerfileParser(str(tmp_path_factory.mktemp("image")))
    parser.content = CONTAINERFILE.read_text()
    return parser


def last(image, instruction):
    return [each["value"] for each in image.structure if each["instruction"] == instruction][-1]


def test_the_image_runs_as_a_user_without_rights(image):
    user = last(image, "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user), "a number, so that Kubernetes can tell that it is not root"
    after = [each["instruction"] for each in image.structure]
    assert "RUN" not in after[after.index("USER") :]


def test_the_image_writes_to_its_volume_only(image):
    command = json.loads(last(image, "ENTRYPOINT"))
    assert command == ["flakelog", "server", "--data-dir", last(image, "VOLUME")]
    assert image.envs["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_image_opens_the_ports_that_its_settings_name(image):
    environment = {name: value for name, value in image.envs.items() if name.startswith("FLAKELOG_")}
    assert not not_settings(environment)
    assert {value.rsplit(":", 1)[1] for value in environment.values()} == set(last(image, "EXPOSE").split())


def test_the_health_check_of_the_image_asks_a_real_server(image, tmp_path):
    """It succeeds while the server is ready, and fails if nothing answers."""
    command = json.loads(last(image, "HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python" and "127.0.0.1:8609" in command[2]
    with ServerProcess(tmp_path / "data") as server:
        program = [sys.executable, "-c", command[2].replace("127.0.0.1:8609", server.http)]
        assert subprocess.run(program, timeout=SECONDS).returncode == 0
        server.stop()
    assert subprocess.run(program, timeout=SECONDS, stderr=subprocess.DEVNULL).returncode == 1


def test_the_health_check_of_the_image_asks_over_https_where_the_settings_say_so(image, tmp_path):
    command = json.loads(last(image, "HEALTHCHECK").partition("CMD ")[2])
    broker = TlsFiles(tmp_path / "tls").broker
    settings = {"flakelog.http.ssl.enable": "true", "ssl.keystore.type": "PEM", "ssl.keystore.location": broker}
    with ServerProcess(tmp_path / "data", settings) as server:
        program = [sys.executable, "-c", command[2].replace("127.0.0.1:8609", server.http)]
        environment = {**os.environ, "FLAKELOG_HTTP_SSL_ENABLE": "true"}
        assert subprocess.run(program, env=environment, timeout=SECONDS).returncode == 0


def test_a_wheel_is_built_from_what_the_image_copies(tmp_path):
    """Docker and Podman both read `.dockerignore`. It lets through exactly what a wheel is built from."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in let_through)
    packages = {path.parent.name for path in ROOT.glob("*/py.typed")}
    assert let_through == packages | {
        "setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "constraints.txt", "README.md", "LICENSE"
    }  # fmt: skip
    (tmp_path / "source").mkdir()
    for name in let_through:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "source" / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, tmp_path / "source")
    (wheel,) = tmp_path.glob("*.whl")
    assert packages <= {name.split("/")[0] for name in ZipFile(wheel).namelist()}


@pytest.mark.soak
def test_a_container_is_built_and_serves():
    builder = next((each for each in ("podman", "docker", "buildah") if works(each)), None)
    if builder is None:
        pytest.skip("no container builder works here: podman, docker or buildah")
    command = [builder, "build", "-f", str(CONTAINERFILE), "-t", "flakelog-test", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and re.search(r"pull|registry|manifest|resolve|lookup", done.stderr):
        pytest.skip(f"the base image cannot be fetched: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    run = [builder, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "flakelog-test"]
    assert "listeners=PLAINTEXT://:9092" in subprocess.run(
        [*run, "--print-config"], capture_output=True, text=True, timeout=SECONDS
    ).stdout


def works(builder):
    """Return True if a builder is installed and can be talked to."""
    return shutil.which(builder) and subprocess.run([builder, "info"], capture_output=True).returncode == 0


def test_the_compose_file_is_valid_by_the_compose_specification():
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(yaml.safe_load(COMPOSE.read_text()), schema)


def test_the_compose_file_gives_the_server_few_rights():
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    server = services["flakelog"]
    assert server["read_only"] and server["cap_drop"] == ["ALL"] and server["tmpfs"] == ["/tmp"]
    assert not not_settings(server["environment"])
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "published here only"
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists()
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).resolve() == CONTAINERFILE


def test_a_server_starts_with_the_settings_of_the_compose_file():
    server = yaml.safe_load(COMPOSE.read_text())["services"]["flakelog"]
    command = [sys.executable, "-m", "flakelog", "server", *server["command"], "--print-config"]
    environment = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for name, value in server["environment"].items()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "advertised.listeners=OUTSIDE://localhost:9092,INSIDE://flakelog:9094" in done.stdout


# --- systemd -----------------------------------------------------------------------------------------------------


@pytest.fixture
def unit(tmp_path):
    """The unit with a program that exists here, because systemd checks that it does."""
    text = UNIT.read_text().replace("/opt/flakelog/bin/flakelog", str(Path(sys.executable).with_name("flakelog")))
    (tmp_path / UNIT.name).write_text(text)
    return tmp_path / UNIT.name


def systemd_analyze(*arguments):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: the unit is not verified")
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True)


def test_systemd_takes_the_unit_without_a_warning(unit):
    done = systemd_analyze("verify", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_rates_the_unit_as_little_exposed(unit):
    done = systemd_analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    assert done.returncode == 0, done.stdout


class ServiceManager:
    """The socket on which systemd is notified. `abstract` is a name that is no file."""

    def __init__(self, directory, abstract):
        self.name = f"@flakelog-test-{directory.name}" if abstract else str(directory / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.name[1:] if abstract else self.name)
        self._socket.settimeout(SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def next(self):
        return self._socket.recv(4096).decode().splitlines()


@pytest.mark.parametrize("abstract", [False, True], ids=["a file", "an abstract name"])
def test_the_server_notifies_systemd_when_it_serves_and_when_it_stops(tmp_path, abstract):
    """sd_notify(3): READY=1 once every port answers, STOPPING=1 at the signal."""
    with ServiceManager(tmp_path, abstract) as manager:
        with ServerProcess(tmp_path / "data", env={"NOTIFY_SOCKET": manager.name}) as server:
            ready, status = manager.next()
            assert ready == "READY=1" and status.startswith(f"STATUS=ready: broker={server.address} ")
            assert server.stop() == 0
            assert manager.next() == ["STOPPING=1"]


def test_the_server_tells_the_watchdog_of_systemd_that_it_lives(tmp_path):
    """sd_watchdog_enabled(3): WATCHDOG=1 twice in each interval; systemd ends a process that says nothing for one."""
    with ServiceManager(tmp_path, False) as manager:
        env = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "200000"}
        with ServerProcess(tmp_path / "data", env=env) as server:
            assert manager.next()[0] == "READY=1"
            assert [manager.next() for _ in range(3)] == [["WATCHDOG=1"]] * 3
            assert server.stop() == 0


@pytest.mark.parametrize(
    "environment, seconds",
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "120000000"}, 60),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "7"}, 60),
        ({"WATCHDOG_USEC": "120000000", "WATCHDOG_PID": "8"}, None),
    ],
)
def test_the_watchdog_is_told_where_systemd_asks_this_process(environment, seconds):
    assert watchdog_seconds(environment, 7) == seconds


def test_a_server_whose_service_manager_is_away_serves_and_says_so(tmp_path):
    with ServerProcess(tmp_path / "data", env={"NOTIFY_SOCKET": str(tmp_path / "away")}) as server:
        server.wait_for_log("systemd was not notified of READY=1")
        assert server.stop() == 0


# --- Prometheus --------------------------------------------------------------------------------------------------

RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def selectors_of(expression):
    """Return the vector selectors of an expression."""
    found = []

    def visit(each):
        if isinstance(each, promql_parser.VectorSelector):
            found.append(each)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def row_of(name):
    """Return the metric that a sample belongs to, None for one of Prometheus' own."""
    if name in OF_PROMETHEUS:
        return None
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    assert name in ALL or ALL[base].kind == HISTOGRAM, f"there is no metric {name}"
    return ALL.get(name) or ALL[base]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_metrics_and_labels_that_exist(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    labels = set(ADDED_BY_PROMETHEUS)
    for selector in selectors_of(rule["expr"]):
        row = row_of(selector.name)
        own = set(row.labels) if row is not None else set()
        labels |= own
        assert {each.name for each in selector.matchers.matchers} <= own | ADDED_BY_PROMETHEUS | {"le"}
    told = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= labels
    assert all(name in ALL for name in re.findall(r"\bflakelog_[a-z_]+[a-z]", told))
    if "for" in rule:
        promql_parser.parse_duration(rule["for"])


def test_alerts_have_names_of_their_own():
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


def test_prometheus_scrapes_the_server_of_the_compose_file_and_reads_the_alerts():
    scrapes = yaml.safe_load(SCRAPES.read_text())
    assert scrapes["rule_files"] == [ALERTS.name]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scrapes["scrape_configs"]}
    server = yaml.safe_load(COMPOSE.read_text())["services"]["flakelog"]
    assert targets["flakelog"] == [f"{server['hostname']}:8609"]
    jobs = {each.value for rule in RULES for one in selectors_of(rule["expr"]) for each in one.matchers.matchers
            if each.name == "job"}  # fmt: skip
    assert jobs <= set(targets)


def test_no_alert_is_about_a_sound_server(tmp_path):
    """Metrics that an alert compares with a constant have, in a server that is well, another value."""
    with ServerProcess(tmp_path / "data") as server:
        from urllib.request import urlopen

        with urlopen(f"http://{server.http}/metrics", timeout=SECONDS) as answer:
            text = answer.read().decode()
    values = {each.name: each.value for family in text_string_to_metric_families(text) for each in family.samples}
    for rule in RULES:
        simple = re.fullmatch(r"(flakelog_\w+) (==|>|<) (\d+)", rule["expr"])
        if simple and simple[1] in values:
            value, limit = values[simple[1]], float(simple[3])
            assert not {"==": value == limit, ">": value > limit, "<": value < limit}[simple[2]], rule["alert"]
