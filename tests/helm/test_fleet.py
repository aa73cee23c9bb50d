"""A fleet of a thousand nodes: the sidecars that restart for each change, counted in the rendered
objects as the controllers see them, and compared with the table of docs/kubernetes.md."""

import copy
import json

import pytest
import yaml

from chart import ROOT, all_of_kind, of_kind, render

STORE = {"kind": "store", "blockMean": "1MiB"}
DRIVES = 8
ALIKE, APART = 600, 400


def part(node, drives=DRIVES):
    members = [f"serial:S{node}D{drive:02}" for drive in range(drives)]
    return [{"name": "kv", "members": members, "create": STORE}]


def fleet():
    """Values, and the nodes with their labels: 600 alike, 400 with a part each."""
    bays = [f"pci:0000:{bus:02x}:00.0" for bus in range(0x81, 0x81 + DRIVES)]
    labels = {f"alike-{i:03}": {"drives": "alike"} for i in range(ALIKE)}
    labels |= {f"apart-{i:03}": {"drives": "apart"} for i in range(APART)}
    parts = {node: part(node) for node, own in labels.items() if own["drives"] == "apart"}
    values = {
        "devices": {"access": "privileged"},
        "groups": {
            "alike": {
                "nodeSelector": {"drives": "alike"},
                "volumes": [{"name": "kv", "members": bays, "create": STORE}],
            },
            "apart": {"nodeSelector": {"drives": "apart"}, "nodes": parts},
        },
    }
    return values, labels


def matches(term, labels):
    """Whether a term of a node affinity chooses a node; as far as the chart uses them."""
    there = {
        "Exists": lambda it: it["key"] in labels,
        "DoesNotExist": lambda it: it["key"] not in labels,
    }
    return all(there[it["operator"]](it) for it in term["matchExpressions"])


def chosen(template, labels):
    pod = template["spec"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    selected = pod.get("nodeSelector", {}).items() <= labels.items()
    return selected and any(matches(term, labels) for term in terms)


def sidecars(documents, nodes):
    """What each node runs: its DaemonSet, the template, and the node's part."""
    maps = {it["metadata"]["name"]: it["data"] for it in all_of_kind("ConfigMap", documents)}
    daemons = []
    for it in all_of_kind("DaemonSet", documents):
        template = it["spec"]["template"]
        if template["spec"]["containers"][0]["args"] == ["serve"]:
            text = json.dumps(template, sort_keys=True)
            daemons.append((it["metadata"]["name"], template, text))
    running = {}
    for node, labels in nodes.items():
        own = [(name, text) for name, template, text in daemons if chosen(template, labels)]
        assert len(own) <= 1, f"{node} has several sidecars"
        for name, text in own:
            running[node] = (name, text, maps[f"{name}-nodes"].get(f"{node}.toml"))
    return running


def restarts(before, after):
    return sum(after.get(node) != sidecar for node, sidecar in before.items())


def change_serial(values, labels):
    values["groups"]["apart"]["nodes"]["apart-007"][0]["members"][3] = "serial:SNEW"


def give_part(values, labels):
    values["groups"]["alike"]["nodes"] = {"alike-007": part("alike-007")}


def add_node(values, labels):
    labels["apart-new"] = {"drives": "apart"}
    values["groups"]["apart"]["nodes"]["apart-new"] = part("apart-new")


def change_create(values, labels):
    values["groups"]["alike"]["volumes"][0]["create"] = STORE | {"blockMean": "2MiB"}
    for volumes in values["groups"]["apart"]["nodes"].values():
        volumes[0]["create"] = STORE | {"blockMean": "2MiB"}


def maintain(values, labels):
    labels["alike-007"]["kvrail/maintenance"] = "true"


def add_alerts(values, labels):
    peers = [{"podSelector": {}}]
    on = {"enabled": True}
    values["metrics"] = {
        "podMonitor": on,
        "rules": on,
        "dashboard": on,
        "networkPolicy": on | {"from": peers},
    }


def change_pace(values, labels):
    values["updateStrategy"] = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "5%"},
    }


def change_group(values, labels):
    values["groups"]["apart"]["config"] = {"limits": {"sessions": 8}}


def change_bay(values, labels):
    values["groups"]["alike"]["volumes"][0]["members"][3] = "pci:0000:99:00.0"


def change_all_parts(values, labels):
    for node in values["groups"]["apart"]["nodes"]:
        values["groups"]["apart"]["nodes"][node] = part(node, DRIVES + 1)


def change_image(values, labels):
    values["image"] = {"tag": "0.0.1"}


def change_port(values, labels):
    values["metrics"] = {"port": 9465}


# By the words of the table.
CHANGES = {
    "a serial number in the part of one node": change_serial,
    "a first part for one node of the 600": give_part,
    "a node more, with its part": add_node,
    "`create` of all volumes": change_create,
    "the label `kvrail/maintenance` on one node": maintain,
    "alerts, dashboard, NetworkPolicy, PodMonitor": add_alerts,
    "`updateStrategy`": change_pace,
    "a limit in `config` of the group of 400": change_group,
    "a drive bay of the group of 600": change_bay,
    "the parts of all 400 nodes": change_all_parts,
    "the image": change_image,
    "the port of the metrics": change_port,
}


def documented():
    """Numbers of the table, by the words of its first column."""
    text = (ROOT / "docs/kubernetes.md").read_text()
    _, table = text.split("| change | sidecars that restart |", 1)
    rows = [line.split("|")[1:3] for line in table.split("\n\n")[0].splitlines()[2:]]
    return {words.strip(): int(number) for words, number in rows}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    values, labels = fleet()
    running = sidecars(render(values, tmp_path_factory.mktemp("before")), labels)
    assert len(running) == ALIKE + APART
    return running


def test_the_table_has_all_changes():
    assert list(documented()) == list(CHANGES)


@pytest.mark.parametrize("words", CHANGES)
def test_a_change_restarts_what_the_table_has(words, before, tmp_path):
    values, labels = fleet()
    CHANGES[words](values, labels)
    after = sidecars(render(values, tmp_path), labels)
    assert restarts(before, after) == documented()[words]


def test_a_thousand_parts_fit(tmp_path):
    nodes = {f"node-{i:04}.cluster.example.org": part(f"6CKNE0T{i:06}") for i in range(1000)}
    values = {
        "devices": {"access": "privileged"},
        "nodeSelector": {"drives": "apart"},
        "nodes": nodes,
    }
    labels = {node: {"drives": "apart"} for node in nodes}
    before = sidecars(render(values, tmp_path), labels)
    changed = copy.deepcopy(values)
    changed["nodes"]["node-0500.cluster.example.org"][0]["members"][0] = "serial:SNEW"
    documents = render(changed, tmp_path)
    assert restarts(before, sidecars(documents, labels)) == 1
    # The API's limit of a ConfigMap, and etcd's of a request.
    for document in documents:
        assert len(json.dumps(document)) < 1 << 20, document["metadata"]["name"]


def test_parts_that_do_not_fit_are_refused(tmp_path):
    nodes = {f"node-{i:04}": part(f"6CKNE0T{i:06}", 24) for i in range(2000)}
    values = {
        "devices": {"access": "privileged"},
        "nodeSelector": {"drives": "apart"},
        "nodes": nodes,
    }
    with pytest.raises(AssertionError, match="1 MiB: divide the nodes into groups"):
        render(values, tmp_path)


def test_documented_values_are_values(tmp_path):
    """The first examples of the page, put together, are a release that renders."""
    text = (ROOT / "docs/kubernetes.md").read_text()
    examples = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    assert len(examples) >= 3
    for example in examples:
        values = yaml.safe_load(example)
        if "volumes" not in values and "groups" not in values and "nodes" not in values:
            values |= {"volumes": [{"name": "kv", "members": ["null:1GiB"]}]}
        assert of_kind("DaemonSet", render(values, tmp_path))
