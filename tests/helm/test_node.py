"""The steps of a pod on its node: the script of the chart, run as in a pod with the real binary."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from chart import ROOT, all_of_kind, render

MEGABYTES = 32 << 20
STORE = {"kind": "store", "size": "32MiB", "fill": "nothing"}
# Longer than a busy machine takes for what it waits for.
PATIENCE = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.1)


class Node:
    """The folders that the pod of one node sees."""

    def __init__(self, folder, name):
        self.name, self.folder = name, folder / name
        self.port = free_port()
        for part in ["own", "group", "nodes", "node/socket", "run", "files", "bin"]:
            (self.folder / part).mkdir(parents=True)
        (self.folder / "bin/kvrail").symlink_to(os.environ["KVRAIL"])

    def file(self, name):
        return self.folder / "files" / name

    def volume(self, name, file, **create):
        return {"name": name, "members": [str(self.file(file))], "create": STORE | create}

    def values(self, volumes, nodes=None, **more):
        return {
            "volumes": volumes,
            "nodes": nodes or {},
            "files": str(self.folder / "files"),
            "socket": {"folder": str(self.folder / "run")},
            "metrics": {"address": "127.0.0.1", "port": self.port},
            "nodeSelector": {"any": "label"},
            **more,
        }

    def apply(self, values):
        """What the kubelet mounts: the files of a ConfigMap behind a link that changes at once."""
        maps = all_of_kind("ConfigMap", render(values, self.folder))
        for part, data in zip(["group", "nodes"], maps, strict=True):
            place = self.folder / part
            version = Path(tempfile.mkdtemp(prefix="..", dir=place))
            for file, text in data["data"].items():
                (version / file).write_text(text)
            (place / "..new").symlink_to(version.name)
            (place / "..new").rename(place / "..data")
            for link in place.glob("[!.]*"):
                link.unlink()
            for file in data["data"]:
                (place / file).symlink_to(f"..data/{file}")

    def environment(self):
        bare = {name: text for name, text in os.environ.items() if not name.startswith("KVRAIL")}
        return bare | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "NODE_NAME": self.name,
            "OWNER": f"{os.getuid()}:{os.getgid()}",
            "SECCOMP_PROFILE": "kvrail/io-uring.json",
            "KVRAIL_CONFIG": str(self.folder / "own/kvrail.toml"),
            "OWN_FOLDER": str(self.folder / "own"),
            "GROUP_FOLDER": str(self.folder / "group"),
            "NODES_FOLDER": str(self.folder / "nodes"),
            "NODE_FOLDER": str(self.folder / "node"),
        }

    def command(self, step):
        script = "group" if step == "configure" else "own"
        return ["bash", str(self.folder / script / "node.sh"), step]

    def step(self, step):
        return subprocess.run(
            self.command(step),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def configured(self):
        done = self.step("configure")
        assert done.returncode == 0, done.stderr
        return self

    def start(self, step, wrapper=()):
        log = (self.folder / "log").open("w")
        return subprocess.Popen(
            [*wrapper, *self.command(step)], env=self.environment(), stdout=log, stderr=log
        )

    def log(self):
        return (self.folder / "log").read_text()

    def serves(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def volumes(self):
        command = ["kvrail", "status", "--format", "json"]
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE
        )
        return [volume["name"] for volume in json.loads(done.stdout)["volumes"]]


@pytest.fixture
def folder():
    """Short, for a socket's path, and on a file system of the build: /tmp may be memory."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
    with tempfile.TemporaryDirectory(prefix="n", dir=target) as path:
        yield Path(path)


@pytest.fixture
def started():
    """Processes that end with the test."""
    processes = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def bytes_of(node):
    return {path.name: path.read_bytes() for path in node.file("").iterdir()}


def test_a_node_prepares_itself_once(folder):
    node = Node(folder, "a")
    node.apply(node.values([node.volume("kv", "kv"), node.volume("more", "more")]))
    first = node.configured().step("create")
    assert first.returncode == 0, first.stderr
    assert "made store kv" in first.stdout and "made store more" in first.stdout
    before = bytes_of(node)
    again = node.step("create")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("nothing was made") == 2
    assert bytes_of(node) == before


def test_nothing_foreign_is_touched_and_the_other_volume_is_made(folder):
    node = Node(folder, "a")
    node.file("photo").write_bytes(b"a photo" * 4096)
    node.apply(node.values([node.volume("kv", "photo"), node.volume("more", "more")]))
    refused = node.configured().step("create")
    assert refused.returncode == 3, refused.stderr
    # The state of the pod shows the last lines.
    assert str(node.file("photo")) in refused.stderr and "remedy: " in refused.stderr
    assert node.file("photo").read_bytes() == b"a photo" * 4096
    assert "made store more" in refused.stdout


def test_a_volume_without_create_is_left_to_its_operator(folder):
    node = Node(folder, "a")
    by_hand = {"name": "kv", "members": [str(node.file("kv"))]}
    node.apply(node.values([by_hand, node.volume("more", "more")]))
    assert node.configured().step("create").returncode == 0
    assert {path.name for path in node.file("").iterdir()} == {"more"}


def test_a_node_without_volumes_is_told_so(folder):
    node, other = Node(folder, "a"), Node(folder, "b")
    node.apply(node.values([], {"b": [other.volume("kv", "kv")]}, files=str(folder)))
    done = node.configured().step("create")
    assert done.returncode == 3
    assert "node a has no volumes" in done.stderr and "nodes.a" in done.stderr


def test_folders_of_the_node_are_prepared(folder):
    node = Node(folder, "a")
    (node.folder / "node/seccomp").mkdir()
    node.apply(node.values([node.volume("kv", "kv")]))
    node.configured()
    profile = json.loads((node.folder / "node/seccomp/kvrail/io-uring.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"


def test_a_changed_part_restarts_the_sidecar_of_its_node_alone(folder, started):
    """Two nodes with one ConfigMap, of which one part changes."""
    nodes = [Node(folder, name) for name in "ab"]

    def apply(file):
        parts = {
            "a": [nodes[0].volume("kv", file)],
            "b": [nodes[1].volume("kv", "kv")],
        }
        for node in nodes:
            more = {"files": str(folder), "nodeChangeSpreadSeconds": 0}
            node.apply(node.values([], parts, **more))

    apply("kv")
    for node in nodes:
        started.append(node.configured().start("serve"))
    for node in nodes:
        eventually(f"{node.name} serves: {node.log()}", node.serves)
    apply("other")
    changed, same = started
    assert changed.wait(PATIENCE) == 0, nodes[0].log()
    assert "a.toml has changed" in nodes[0].log() and "drained and stopped" in nodes[0].log()
    # The kubelet starts the container again, and no init container.
    started.append(nodes[0].start("serve"))
    eventually("the changed node serves again", nodes[0].serves)
    assert nodes[0].file("other").stat().st_size >= MEGABYTES
    assert same.poll() is None and "has changed" not in nodes[1].log()
    assert nodes[0].volumes() == ["kv"]


def test_a_pod_keeps_its_groups_part_until_it_is_replaced(folder, started):
    node = Node(folder, "a")
    volumes = [node.volume("kv", "kv")]
    node.apply(node.values(volumes))
    started.append(node.configured().start("serve"))
    eventually("it serves", node.serves)
    node.apply(node.values([*volumes, node.volume("more", "more")]))
    # Longer than a change of the node's part needs to be seen twice.
    time.sleep(6)
    assert started[0].poll() is None, node.log()
    started[0].terminate()
    assert started[0].wait(PATIENCE) == 0, node.log()
    for configure, expected in [(False, ["kv"]), (True, ["kv", "more"])]:
        if configure:
            node.configured()
        started.append(node.start("serve"))
        eventually("it serves again", node.serves)
        assert node.volumes() == expected
        started[-1].terminate()
        assert started[-1].wait(PATIENCE) == 0, node.log()


# What each step has come to when it is stopped, and the status it then ends with.
STEPS = {
    "create": (lambda node: node.file("kv").exists(), 143),
    "serve": (lambda node: node.serves(), 0),
    "wait": (lambda node: "is in maintenance" in node.log(), 143),
}


@pytest.mark.parametrize("step", STEPS)
def test_process_1_obeys_sigterm(step, folder, started):
    """The kernel drops signals that process 1 of a PID namespace has no handler for."""
    wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*wrapper, "true"]).returncode != 0:
        pytest.skip("a PID namespace needs root and unshare")
    node = Node(folder, "a")
    # A creation that takes longer than the way to its signal.
    size = {"size": "4GiB", "fill": "files"} if step == "create" else {}
    node.apply(node.values([node.volume("kv", "kv", **size)]))
    process = node.configured().start(step, wrapper)
    started.append(process)
    condition, status = STEPS[step]
    eventually(step, lambda: condition(node))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    begin = time.monotonic()
    assert process.wait(PATIENCE) == status, node.log()
    # Kubernetes kills the waiting pod after 15 s.
    assert time.monotonic() - begin < 10, node.log()
    if step == "create":
        assert not node.file("kv").exists(), "what was not finished is gone"


@pytest.fixture
def pod_group():
    """A control group as the kubelet makes one for a pod."""
    uid = str(uuid.uuid4())
    roots = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")]
    root = next((path for path in roots if (path / "cgroup.procs").exists()), roots[0])
    group = root / f"kubepods-{uid[:8]}" / f"pod{uid}"
    try:
        group.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield uid, group
    for path in [group, group.parent]:
        path.rmdir()


def sessions(node):
    command = ["kvrail", "status", "--format", "json"]
    done = subprocess.run(
        command, env=node.environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    return [(it["pid"], it.get("pod")) for it in json.loads(done.stdout)["sessions"]]


@pytest.mark.parametrize("shares", [True, False], ids=["hostPID", "own PIDs"])
def test_clients_are_named_by_pod_where_their_process_is_seen(shares, folder, started, pod_group):
    uid, group = pod_group
    node = Node(folder, "a")
    node.apply(node.values([{"name": "kv", "members": ["null:1GiB"]}]))
    wrapper = [] if shares else ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*wrapper, "true"]).returncode != 0:
        pytest.skip("a PID namespace needs root and unshare")
    started.append(node.configured().start("serve", wrapper))
    eventually("it serves", node.serves)
    # A client that stays attached, in the pod's group.
    client = 'echo $$ >"$0/cgroup.procs"; exec kvrail trace --seconds 60'
    process = subprocess.Popen(
        ["sh", "-c", client, str(group)], env=node.environment(), stdout=subprocess.DEVNULL
    )
    started.append(process)
    expected = [(process.pid, uid)] if shares else [(0, None)]
    try:
        eventually(f"its session: {node.log()}", lambda: sessions(node) == expected)
    finally:
        process.kill()
        process.wait()
