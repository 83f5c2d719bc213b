"""The files under docs/deploy are examples that people copy: they must parse, name real things and keep their promises."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs/deploy"


@pytest.fixture(scope="module")
def documents():
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {document["kind"]: document for document in found if not document["metadata"]["name"].endswith("-owner")}


@pytest.fixture(scope="module")
def pod(documents):
    return documents["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def sidecar(pod):
    return next(one for one in pod["initContainers"] if one["name"] == "outboxd")


def test_the_sidecar_is_locked_down(pod, sidecar):
    assert pod["securityContext"]["runAsNonRoot"] and sidecar["securityContext"]["runAsUser"] > 0
    assert sidecar["securityContext"]["readOnlyRootFilesystem"] and not sidecar["securityContext"]["allowPrivilegeEscalation"]
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert sidecar["restartPolicy"] == "Always" and sidecar["resources"]["limits"]["memory"]


def test_probes_and_grace(pod, sidecar):
    assert sidecar["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "outboxd"}
    assert "outboxd" in {port["name"] for port in sidecar["ports"]}
    reference = (ROOT / "docs/REFERENCE.md").read_text()
    shutdown = int(re.search(r"`OUTBOX_SHUTDOWN_TIMEOUT` \| `(\d+)s`", reference)[1])
    assert pod["terminationGracePeriodSeconds"] >= shutdown + 10


def test_secrets_come_from_files(documents, sidecar):
    env = {one["name"]: one["value"] for one in sidecar["env"]}
    mount = sidecar["volumeMounts"][0]["mountPath"]
    files = {name: value for name, value in env.items() if name.endswith("_FILE")}
    assert {value for value in files.values()} == {f"{mount}/{key}" for key in documents["Secret"]["stringData"]}
    assert not any(re.search("PASSWORD|TOKEN|DATABASE_URL", name) for name in env.keys() - files.keys())


def test_the_relay_is_not_the_owner(pod, sidecar):
    """Who may create tables is seen by the migration alone."""
    [migration] = [one for one in pod["initContainers"] if one.get("args") == ["migrate", "up"]]
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"]}
    mounted = [{secrets[mount["name"]] for mount in one["volumeMounts"]} for one in (migration, sidecar)]
    assert mounted == [{"shop-outboxd-owner"}, {"shop-outboxd"}]
    [url] = migration["env"]
    assert url == {"name": "OUTBOX_DATABASE_URL_FILE", "value": migration["volumeMounts"][0]["mountPath"] + "/database_url"}


def test_the_program_takes_these_settings(sidecar, documents, tmp_path):
    """With the secrets at another place."""
    outboxd = ROOT / os.environ.get("OUTBOXD_BUILD", "build") / "src/app/outboxd"
    env = {one["name"]: one["value"] for one in sidecar["env"]}
    for name, value in env.items():
        if name.endswith("_FILE"):
            path = tmp_path / pathlib.Path(value).name
            path.write_text(documents["Secret"]["stringData"][path.name])
            env[name] = str(path)
    done = subprocess.run([outboxd, "config", "--json"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["OUTBOX_HTTP_LISTEN"] == "0.0.0.0:9464" and "change-me" not in done.stdout


@pytest.fixture(scope="module")
def image():
    """The instructions of the Containerfile, as (word, rest), without comments and with lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def test_containerfile(image):
    words = [word for word, _ in image]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert set(words) <= known and words.count("FROM") == 2
    assert all(re.match(r"\S+:\S+", rest) and ":latest" not in rest for word, rest in image if word == "FROM")
    user = [rest for word, rest in image if word == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    for word, rest in image:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists" in rest
        if word in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
    assert all((ROOT / path).exists() for path in ("sql/roles.sql", "meson.build"))


def test_the_image_has_the_libraries_it_needs(image):
    """Every shared library of the program that is not the system's own comes from a package of the second stage."""
    if not pathlib.Path("/etc/debian_version").exists() or not pathlib.Path("/etc/debian_version").read_text().startswith("12"):
        pytest.skip("the packages are those of Debian 12")
    outboxd = ROOT / os.environ.get("OUTBOXD_BUILD", "build") / "src/app/outboxd"
    needed = re.findall(r"NEEDED\)\s+Shared library: \[([^\]]+)", subprocess.run(
        ["readelf", "-d", outboxd], capture_output=True, text=True, check=True).stdout)
    packages = [rest for word, rest in image if word == "RUN" and "apt-get install" in rest][-1]
    for library in needed:
        owner = subprocess.run(["dpkg", "-S", f"*/{library}"], capture_output=True, text=True).stdout.split(":")[0]
        assert owner in ("libc6", "", "libgcc-s1") or owner in packages, f"{library} is in {owner}"


def test_health_check_speaks_http(image):
    """The very command, against a server that is well, one that is not, and none."""
    import http.server
    import threading

    command = json.loads(next(rest for word, rest in image if word == "HEALTHCHECK").split("CMD", 1)[1])

    class Handler(http.server.BaseHTTPRequestHandler):
        code = 200

        def do_GET(self):
            assert self.path == "/healthz"
            self.send_response(self.code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command[-1] = command[-1].replace("9464", str(server.server_port))
    try:
        assert subprocess.run(command).returncode == 0
        Handler.code = 500
        assert subprocess.run(command).returncode != 0
    finally:
        server.shutdown()
        server.server_close()
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0
