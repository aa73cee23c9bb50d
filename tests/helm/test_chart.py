"""The Helm chart: linted, rendered, checked with the API's schemas and read by the real binary."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "config/helm/kvrail"
ENGINES = ROOT / "config/helm/engines"
VERSIONS = ["1.30", "1.37"]
# Keys that the chart sets by itself: no values.
OWN = {"sidecar": {"socket", "drain_timeout"}, "metrics": {"listen"}}

BAY = {"name": "kv", "members": ["pci:0000:3b:00.0"]}
FILE = {"volumes": [{"name": "kv", "members": ["/srv/kv/a"]}], "files": "/srv/kv"}
PLUGIN = {"devices": {"access": "plugin", "resources": {"example.com/nvme": 2}, "groups": [6]}}
PRIVILEGED = {"devices": {"access": "privileged"}}
TENANT = {"namespaces": "team \"a\" *", "uids": [1000], "rights": "write"}
TARGET = {
    "subsystem": [
        {
            "nqn": "nqn.2026-01.org.example:kv0",
            "allow_any_host": True,
            "namespace": [{"nsid": 1, "device": "pci:0000:3b:00.0/1"}],
        }
    ],
    "port": [
        {
            "id": 1,
            "transport": "tcp",
            "address": "192.0.2.1",
            "subsystems": ["nqn.2026-01.org.example:kv0"],
        }
    ],
}
GOOD = {
    "files": FILE,
    "node": FILE | {"memlock": "node", "seccomp": {"install": False}},
    "plugin": PLUGIN
    | {
        "nodes": {
            "a.example": [BAY | {"device": {"mode": "iopoll", "queue_depth": 64}}],
            "b.example": [{"name": "kv", "members": ["/dev/disk/by-id/nvme-X", "serial:S1/1"]}],
        },
        "metrics": {"podMonitor": {"enabled": True, "labels": {"team": "kv"}}},
    },
    "privileged": PRIVILEGED
    | {
        "volumes": [BAY | {"write_budget": "1dwpd", "tenant": [TENANT]}],
        "hugepages": {"amount": "8Gi"},
        "config": {
            "memory": {"pages": "2MiB"},
            "metrics": {"hosts": ["gpu7.example.org"]},
            "limits": {"sessions": 8, "lane_depth": 512},
            "gpu": {"devices": ["all"]},
        },
        "gpu": {"runtimeClassName": "nvidia"},
    },
    "target": PRIVILEGED | {"volumes": [BAY], "target": TARGET},
    "maintenance": FILE | {"maintenance": True},
}
# Values, and words of the error that they end with.
BAD = [
    ({}, ["nothing to serve", "set volumes"]),
    (PRIVILEGED | {"target": TARGET}, ["nothing to serve", "set volumes"]),
    (FILE | {"nodes": {"a": [BAY]}}, ["volumes and nodes are both set"]),
    ({"volumes": [BAY]}, ["pci:0000:3b:00.0", "set devices.access"]),
    (
        PRIVILEGED | {"volumes": [{"name": "kv", "members": ["/dev/nvme0n1"]}]},
        ["/dev/nvme0n1", "kernel name", "/dev/disk/by-id"],
    ),
    (FILE | {"files": "/srv/k"}, ["/srv/kv/a", "outside of files", "/srv/k"]),
    ({"volumes": [BAY], "devices": {"access": "plugin"}}, ["devices.resources"]),
    (FILE | {"devices": {"resources": {"example.com/a": 1}}}, ["devices.access", "plugin"]),
    (FILE | {"target": TARGET}, ["target needs devices.access", "privileged"]),
    (FILE | {"config": {"memory": {"pages": "2MiB"}}}, ["config.memory.pages", "hugepages.amount"]),
    (FILE | {"hugepages": {"size": "1Gi", "amount": "4Gi"}}, ["config.memory.pages", "1GiB"]),
    (FILE | {"resources": {"limits": {"cpu": "2"}}}, ["resources.limits.cpu", "quota"]),
    (FILE | {"config": {"gpu": {"devices": ["all"]}}}, ["gpu.runtimeClassName"]),
    (FILE | {"config": {"limits": {"session": 8}}}, ["config.limits", "session"]),
    (FILE | {"config": {"metrics": {"listen": "off"}}}, ["config", "metrics"]),
    (FILE | {"memlok": "raise"}, ["memlok"]),
    (FILE | {"memlock": "root"}, ["memlock", "raise", "node"]),
    (FILE | {"drainSeconds": "30s"}, ["drainSeconds", "integer"]),
    (FILE | {"user": 0}, ["user", "1"]),
    ({"volumes": [{"name": "kv"}]}, ["volumes.0", "members"]),
]


def helm(*arguments, values, folder):
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    command = [os.environ["HELM"], *arguments, str(CHART), "--values", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def template(values, folder, version="1.30"):
    arguments = ["template", "cache", "--kube-version", version, "--namespace", "kv"]
    return helm(*arguments, values=values, folder=folder)


def render(values, folder, version="1.30"):
    done = template(values, folder, version)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(kind, documents):
    return next(document for document in documents if document["kind"] == kind)


def pod_of(documents):
    return of_kind("DaemonSet", documents)["spec"]["template"]["spec"]


def sidecar_of(documents):
    (container,) = pod_of(documents)["containers"]
    return container


def valid(documents, version):
    for document in documents:
        # The operator's own kind: the API has it only where the operator is.
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(document, version, strict=True)


def config(path):
    """The configuration that the binary reads from a file; fails if the binary refuses it."""
    command = [os.environ["KVRAIL"], "config", "show", "--format", "json", "--config", str(path)]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("KVRAIL")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=bare)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_lint_finds_nothing(values, tmp_path):
    done = helm("lint", "--strict", values=values, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_the_api_accepts_the_rendered_documents(values, version, tmp_path):
    valid(render(values, tmp_path, version), version)


def test_a_field_that_the_api_lacks_is_found(tmp_path):
    documents = render(FILE, tmp_path)
    sidecar_of(documents)["securityContext"]["runAsUsr"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        valid(documents, VERSIONS[0])


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_the_binary_reads_the_configuration(values, tmp_path):
    data = of_kind("ConfigMap", render(values, tmp_path))["data"]
    files = {name: text for name, text in data.items() if name.endswith(".toml")}
    assert set(files) == {f"{node}.toml" for node in values.get("nodes", {"kvrail": 0})}
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        config(path)
        read = tomllib.loads(text)
        assert read["sidecar"]["socket"] == "/run/kvrail/kvrail.sock"
        volumes = values.get("nodes", {}).get(name.removesuffix(".toml"), values.get("volumes", []))
        assert read.get("volume", []) == volumes
        for section, keys in values.get("config", {}).items():
            assert read[section].items() >= keys.items()


@pytest.mark.parametrize(("values", "words"), BAD, ids=[" ".join(words) for _, words in BAD])
def test_bad_values_end_with_the_reason(values, words, tmp_path):
    done = template(values, tmp_path)
    assert done.returncode != 0, done.stdout
    assert [word for word in words if word not in done.stderr] == [], done.stderr


def test_the_schema_has_the_keys_of_the_configuration():
    default = tomllib.loads((ROOT / "config/default.toml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    target = set(schema["target"]["properties"]) - {"host", "subsystem", "port"}
    assert target == set(default.pop("target"))
    known = {section: set(keys) - OWN.get(section, set()) for section, keys in default.items()}
    offered = schema["config"]["properties"]
    assert {section: set(it["properties"]) for section, it in offered.items()} == {
        section: keys for section, keys in known.items() if keys
    }


def test_the_chart_has_the_version_of_the_workspace():
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"]} == {manifest["workspace"]["package"]["version"]}


def test_only_named_devices_make_it_privileged(tmp_path):
    for name, values in GOOD.items():
        context = sidecar_of(render(values, tmp_path))["securityContext"]
        privileged = values.get("devices", {}).get("access") == "privileged"
        assert context.get("privileged", False) == privileged, name
        assert context["readOnlyRootFilesystem"]
        if not privileged:
            assert context["capabilities"]["drop"] == ["ALL"]
            assert context["seccompProfile"]["type"] == "Localhost"


def test_memlock_is_raised_and_root_left_before_kvrail_runs(tmp_path):
    """Runs the command of the container, with its capabilities."""
    raised = subprocess.run(["prlimit", "--memlock=unlimited:unlimited", "true"], timeout=60)
    if os.geteuid() != 0 or raised.returncode != 0:
        pytest.skip("raising memlock needs root with CAP_SYS_RESOURCE")
    container = sidecar_of(render(FILE, tmp_path))
    added = container["securityContext"]["capabilities"]["add"]
    keep = ",".join(f"+{name.lower()}" for name in added)
    shell = ["setpriv", f"--bounding-set=-all,{keep}", "--inh-caps=-all", "--no-new-privs"]
    *command, kvrail = container["command"]
    assert kvrail == "/usr/bin/kvrail"
    command = [*shell, *command, "cat", "/proc/self/status", "/proc/self/limits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["Uid:", *["64000"] * 4] in lines, done.stderr
    for kind in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]:
        assert [kind, "0" * 16] in lines
    assert ["Max", "locked", "memory", "unlimited", "unlimited", "bytes"] in lines


def test_drain_ends_before_the_kill(tmp_path):
    documents = render(FILE | {"drainSeconds": 90}, tmp_path)
    text = of_kind("ConfigMap", documents)["data"]["kvrail.toml"]
    assert tomllib.loads(text)["sidecar"]["drain_timeout"] == "90s"
    assert pod_of(documents)["terminationGracePeriodSeconds"] == 105


def test_the_operator_scrapes_under_the_job_that_alerts_are_for(tmp_path):
    rules = (ROOT / "config/prometheus/kvrail-alerts.yaml").read_text()
    documents = render(GOOD["plugin"], tmp_path)
    label = of_kind("PodMonitor", documents)["spec"].get("jobLabel")
    job = of_kind("DaemonSet", documents)["spec"]["template"]["metadata"]["labels"].get(label)
    assert f'up{{job="{job}"}}' in rules


def test_no_variable_of_a_service_reaches_the_sidecar(tmp_path):
    assert pod_of(render(FILE, tmp_path))["enableServiceLinks"] is False


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("engine", ["vllm", "lmcache"])
def test_engines_share_the_socket(engine, version, tmp_path):
    documents = list(yaml.safe_load_all((ENGINES / f"{engine}.yaml").read_text()))
    valid(documents, version)
    values = yaml.safe_load((ENGINES / "kvrail-values.yaml").read_text())
    sidecar = pod_of(render(values, tmp_path))
    (pod,) = [document["spec"]["template"]["spec"] for document in documents]
    folders = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert folders <= {volume.get("hostPath", {}).get("path") for volume in sidecar["volumes"]}
    arguments = pod["containers"][0]["args"]
    document = next(json.loads(text) for text in arguments if text.startswith("{"))
    extra = document.get("kv_connector_extra_config", {})
    tier = document.get("adapter_params") or extra["secondary_tiers"][0]
    assert tier["store"] == values["volumes"][0]["name"]
    assert Path(tier["socket"]).parent == Path(folders.pop())
