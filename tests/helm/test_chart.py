"""The Helm chart: linted, rendered, checked with the API's schemas and read by the real binary."""

import json
import os
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

import kubernetes_validate
from chart import CHART, ROOT, all_of_kind, helm, of_kind, pod_of, render, template

ENGINES = ROOT / "config/helm/engines"
VERSIONS = ["1.30", "1.37"]
# Keys that the chart sets by itself: no values.
OWN = {"sidecar": {"socket", "drain_timeout"}, "metrics": {"listen"}}

BAY = {"name": "kv", "members": ["pci:0000:3b:00.0"]}
STORE = {"kind": "store", "blockMean": "1MiB"}
FILE = {
    "volumes": [{"name": "kv", "members": ["/srv/kv/a"], "create": STORE | {"size": "1GiB"}}],
    "files": "/srv/kv",
}
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
        "nodeSelector": {"drives": "mixed"},
        "metrics": {
            "podMonitor": {"enabled": True, "labels": {"team": "kv"}},
            "rules": {"enabled": True, "labels": {"team": "kv"}},
            "dashboard": {"enabled": True},
            "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]},
        },
        "seLinuxOptions": {"type": "spc_t"},
        "appArmor": {"type": "Localhost", "localhostProfile": "kvrail"},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "5%"}},
        "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "hostPID": True,
    },
    "groups": PRIVILEGED
    | {
        "updateStrategy": {"type": "OnDelete"},
        "groups": {
            "bays": {"nodeSelector": {"drives": "bays"}, "volumes": [BAY | {"create": STORE}]},
            "mixed": {
                "nodeSelector": {"drives": "mixed"},
                "nodes": {"c": [{"name": "kv", "members": ["serial:S2"], "create": STORE}]},
                "hugepages": {"amount": "4Gi"},
                "config": {"limits": {"sessions": 8}},
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                                {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
                            ]
                        }
                    }
                },
            },
        },
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
}
# Values, and words of the error that they end with.
BAD = [
    ({}, ["nothing to serve", "set volumes"]),
    (PRIVILEGED | {"target": TARGET}, ["nothing to serve", "set volumes"]),
    (FILE | {"groups": {"a": FILE}}, ["groups is set beside volumes", "in each group"]),
    (
        {"groups": {"a": FILE, "b": FILE | {"nodeSelector": {"x": "z"}}}},
        ["groups.a and groups.b may select the same node", "nodeSelector"],
    ),
    ({"groups": {"a": {}}}, ["set groups.a.volumes"]),
    ({"groups": {"nodes": FILE}}, ["groups.nodes", "choose another"]),
    ({"groups": {"A": FILE}}, ["groups", "A"]),
    ({"groups": {"a": {"metrics": {}}}}, ["groups.a", "metrics"]),
    (PRIVILEGED | {"nodes": {"a": [BAY]}}, ["set nodeSelector to a label"]),
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
    (FILE | {"config": {"memory_tier": {"write_late": ["a*b"]}}}, ["memory_tier.write_late.0"]),
    (FILE | {"config": {"metrics": {"listen": "off"}}}, ["config", "metrics"]),
    (FILE | {"memlok": "raise"}, ["memlok"]),
    (FILE | {"memlock": "root"}, ["memlock", "raise", "node"]),
    (FILE | {"drainSeconds": "30s"}, ["drainSeconds", "integer"]),
    (FILE | {"user": 0}, ["user", "1"]),
    ({"volumes": [{"name": "kv"}]}, ["volumes.0", "members"]),
    (PRIVILEGED | {"volumes": [BAY | {"create": {}}]}, ["volumes.0.create", "kind"]),
    (
        PRIVILEGED | {"volumes": [BAY | {"create": STORE | {"blockMean": "1M"}}]},
        ["volumes.0.create.blockMean"],
    ),
    (
        PRIVILEGED | {"volumes": [BAY | {"create": STORE | {"stripe": "1MiB"}}]},
        ["volumes: create.stripe", "a store volume has none"],
    ),
    (
        PRIVILEGED | {"volumes": [BAY | {"create": {"kind": "raw", "segment": "1MiB"}}]},
        ["volumes: create.segment", "a raw volume has none"],
    ),
    (
        FILE | {"volumes": [{"name": "kv", "members": ["/srv/kv/a"], "create": STORE}]},
        ["/srv/kv/a", "set create.size"],
    ),
    (
        {"volumes": [{"name": "kv", "members": ["null:1GiB"], "create": STORE}]},
        ["null:1GiB", "leave create out"],
    ),
    (FILE | {"maintenance": True}, ["maintenance"]),
    (FILE | {"updateStrategy": {"type": "Recreate"}}, ["updateStrategy.type", "OnDelete"]),
    (
        FILE | {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}},
        ["updateStrategy.rollingUpdate", "maxSurge"],
    ),
    (
        FILE
        | {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0}}},
        ["updateStrategy.rollingUpdate.maxUnavailable"],
    ),
    (FILE | {"tolerations": [{"efect": "NoSchedule"}]}, ["tolerations.0", "efect"]),
    (FILE | {"nodeSelector": {"gpu": True}}, ["nodeSelector.gpu", "string"]),
    (FILE | {"seLinuxOptions": {"typ": "spc_t"}}, ["seLinuxOptions", "typ"]),
    (FILE | {"appArmor": {"type": "unconfined"}}, ["appArmor.type", "Unconfined"]),
    (FILE | {"extraEnv": [{"name": "NODE_NAME"}]}, ["extraEnv", "NODE_NAME", "leave it out"]),
    (FILE | {"extraVolumes": [{"name": "socket"}]}, ["extraVolumes", "socket", "another name"]),
    (
        FILE | {"extraVolumeMounts": [{"name": "more", "mountPath": "/more"}]},
        ["extraVolumeMounts", "more", "extraVolumes"],
    ),
    (FILE | {"metrics": {"networkPolicy": {"enabled": True}}}, ["metrics.networkPolicy.from"]),
    (
        PRIVILEGED
        | {
            "volumes": [BAY],
            "target": TARGET,
            "metrics": {"networkPolicy": {"enabled": True, "from": [{"podSelector": {}}]}},
        },
        ["metrics.networkPolicy", "the node's network"],
    ),
]


def sidecar_of(documents):
    (container,) = pod_of(documents)["containers"]
    return container


def valid(documents, version):
    for document in documents:
        # The operator's own kind: the API has it only where the operator is.
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(document, version, strict=True)


def faults(pod):
    """What the API server refuses in a pod beyond its schema."""
    names = [volume["name"] for volume in pod["volumes"]]
    found = [f"two volumes {name}" for name in names if names.count(name) > 1]
    for container in pod["initContainers"] + pod["containers"]:
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        found += [f"two mounts at {path}" for path in paths if paths.count(path) > 1]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        found += [f"no volume {name}" for name in mounts - set(names)]
        variables = [variable["name"] for variable in container["env"]]
        found += [f"two variables {name}" for name in variables if variables.count(name) > 1]
        limits = container["resources"].get("limits", {})
        requests = container["resources"].get("requests", {})
        # Reserved pages come with a request of memory or of CPU.
        if any(name.startswith("hugepages-") for name in limits) and not requests:
            found.append("hugepages alone")
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container[key]["httpGet"]["port"] for key in container if "Probe" in key]
        found += [f"no port {port}" for port in set(probes) - ports]
    return found


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_pods_are_such_as_the_api_server_admits(values, tmp_path):
    documents = render(values, tmp_path)
    selectors = []
    for daemons in all_of_kind("DaemonSet", documents):
        template = daemons["spec"]["template"]
        assert faults(template["spec"]) == [], daemons["metadata"]["name"]
        selector = daemons["spec"]["selector"]["matchLabels"]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert all(len(value) <= 63 for value in template["metadata"]["labels"].values())
        # Each finds its own pods and no other's.
        assert selector not in selectors
        selectors.append(selector)
    identities = [(it["kind"], it["metadata"]["name"]) for it in documents]
    assert len(identities) == len(set(identities)), identities


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


def parts(values):
    """Name of the objects and values of each group."""
    groups = values.get("groups")
    if groups is None:
        return {"cache-kvrail": values}
    return {f"cache-kvrail-{name}": values | own for name, own in groups.items()}


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_the_binary_reads_the_configuration(values, tmp_path):
    documents = all_of_kind("ConfigMap", render(values, tmp_path))
    maps = {it["metadata"]["name"]: it["data"] for it in documents}
    for name, own in parts(values).items():
        group, nodes = maps[name], maps[f"{name}-nodes"]
        expected = {f"{node}.toml": volumes for node, volumes in own.get("nodes", {}).items()}
        assert set(nodes) == set(expected) | {it.replace(".toml", ".create") for it in expected}
        expected["volumes.toml"] = own.get("volumes", [])
        for file, volumes in expected.items():
            text = group["kvrail.toml"] + (nodes | group)[file]
            path = tmp_path / file
            path.write_text(text)
            config(path)
            read = tomllib.loads(text)
            assert read["sidecar"]["socket"] == "/run/kvrail/kvrail.sock"
            bare = [{key: it[key] for key in it if key != "create"} for it in volumes]
            assert read.get("volume", []) == bare
            for section, keys in own.get("config", {}).items():
                assert read[section].items() >= keys.items()


@pytest.mark.parametrize(("values", "words"), BAD, ids=[" ".join(words) for _, words in BAD])
def test_bad_values_end_with_the_reason(values, words, tmp_path):
    done = template(values, tmp_path)
    assert done.returncode != 0, done.stdout
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    # One error, not a list of all that follows from it.
    wrong = [line for line in done.stderr.splitlines() if line.startswith("- ")]
    assert len(wrong) <= 1, done.stderr


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


def containers(documents):
    """All that get devices, of all pods: those that make volumes, serve, and wait."""
    for daemons in all_of_kind("DaemonSet", documents):
        pod = daemons["spec"]["template"]["spec"]
        yield from (it for it in pod["initContainers"] if it["name"] != "configure")
        yield from pod["containers"]


def test_only_named_devices_make_it_privileged(tmp_path):
    for name, values in GOOD.items():
        for container in containers(render(values, tmp_path)):
            context = container["securityContext"]
            privileged = values.get("devices", {}).get("access") == "privileged"
            assert context.get("privileged", False) == privileged, name
            assert context["readOnlyRootFilesystem"]
            if not privileged:
                assert context["capabilities"]["drop"] == ["ALL"]
                assert context["seccompProfile"]["type"] == "Localhost"


@pytest.mark.parametrize(("version", "field"), [("1.29", False), ("1.30", True)])
def test_apparmor_is_where_the_version_has_it(version, field, tmp_path):
    documents = render(GOOD["plugin"], tmp_path, version)
    template = of_kind("DaemonSet", documents)["spec"]["template"]
    old = "container.apparmor.security.beta.kubernetes.io/kvrail"
    assert template["metadata"]["annotations"].get(old) == (None if field else "localhost/kvrail")
    for container in containers(documents):
        assert ("appArmorProfile" in container["securityContext"]) == field


def test_a_plugins_devices_are_there_for_whoever_makes_volumes(tmp_path):
    for container in containers(render(GOOD["plugin"], tmp_path)):
        assert container["resources"]["limits"]["example.com/nvme"] == 2


def test_a_node_in_maintenance_has_no_sidecar(tmp_path):
    for values in GOOD.values():
        for daemons in all_of_kind("DaemonSet", render(values, tmp_path)):
            pod = daemons["spec"]["template"]["spec"]
            required = "requiredDuringSchedulingIgnoredDuringExecution"
            terms = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
            waits = daemons["metadata"]["name"].endswith("-maintenance")
            expected = {
                "key": "kvrail/maintenance",
                "operator": "Exists" if waits else "DoesNotExist",
            }
            # A node that fits one of the terms is chosen.
            assert all(expected in term["matchExpressions"] for term in terms)
            (container,) = pod["containers"]
            assert (container["args"] == ["wait"]) == waits
            assert ("livenessProbe" in container) == (not waits)


def test_a_hung_drive_is_no_reason_to_kill(tmp_path):
    """/healthz fails with one stalled poller, /livez with the last one: see engine/metrics."""
    container = sidecar_of(render(FILE, tmp_path))
    probes = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}
    assert probes == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }


def test_memlock_is_raised_and_root_left_before_kvrail_runs(tmp_path):
    """Runs the command of the container, with its capabilities."""
    raised = subprocess.run(["prlimit", "--memlock=unlimited:unlimited", "true"], timeout=60)
    if os.geteuid() != 0 or raised.returncode != 0:
        pytest.skip("raising memlock needs root with CAP_SYS_RESOURCE")
    container = sidecar_of(render(FILE, tmp_path))
    added = container["securityContext"]["capabilities"]["add"]
    keep = ",".join(f"+{name.lower()}" for name in added)
    shell = ["setpriv", f"--bounding-set=-all,{keep}", "--inh-caps=-all", "--no-new-privs"]
    *command, shell_of_image, script = container["command"]
    assert (shell_of_image, script) == ("/bin/bash", "/etc/kvrail/node.sh")
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
    documents = render(GOOD["plugin"], tmp_path)
    label = of_kind("PodMonitor", documents)["spec"].get("jobLabel")
    job = of_kind("DaemonSet", documents)["spec"]["template"]["metadata"]["labels"].get(label)
    rules = json.dumps(of_kind("PrometheusRule", documents)["spec"])
    assert f'up{{job=\\"{job}\\"}}' in rules


def test_alerts_and_dashboard_are_those_of_the_repository(tmp_path):
    documents = render(GOOD["plugin"], tmp_path)
    alerts = yaml.safe_load((ROOT / "config/prometheus/kvrail-alerts.yaml").read_text())
    assert of_kind("PrometheusRule", documents)["spec"] == alerts
    maps = all_of_kind("ConfigMap", documents)
    (board,) = [it for it in maps if it["metadata"]["name"].endswith("-dashboard")]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    shown = json.loads(board["data"]["kvrail.json"])
    assert shown == json.loads((ROOT / "config/grafana/kvrail.json").read_text())


def test_a_packaged_chart_has_the_files_that_lie_elsewhere(tmp_path):
    """Alerts and dashboard are links in the repository."""
    command = [os.environ["HELM"], "package", str(CHART), "--destination", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for name, place in [
            ("kvrail-alerts.yaml", "config/prometheus/kvrail-alerts.yaml"),
            ("kvrail-dashboard.json", "config/grafana/kvrail.json"),
        ]:
            assert packed.extractfile(f"kvrail/files/{name}").read() == (ROOT / place).read_bytes()


def test_the_network_policy_is_for_the_pods_that_serve(tmp_path):
    documents = render(GOOD["plugin"], tmp_path)
    policy = of_kind("NetworkPolicy", documents)["spec"]
    serves, waits = (
        daemons["spec"]["template"]["metadata"]["labels"]
        for daemons in all_of_kind("DaemonSet", documents)
    )
    chosen = policy["podSelector"]["matchLabels"].items()
    assert chosen <= serves.items() and not chosen <= waits.items()
    ports = {port["name"] for port in sidecar_of(documents)["ports"]}
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} <= ports
    assert policy["egress"] == []


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
