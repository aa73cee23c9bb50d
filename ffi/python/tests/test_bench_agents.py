"""`bench/model/agents.py` without an engine, a GPU or AIPerf, which stand-ins are here for."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(__file__).parents[3] / "bench" / "model"

SERVER = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = sys.argv[2:]
transfer = words[words.index("--kv-transfer-config") + 1] if "--kv-transfer-config" in words else ""
if os.environ["DIES"] and os.environ["DIES"] in transfer:
    sys.exit(1)
with open(os.environ["PIDS"], "a") as pids:
    print(os.getpid(), file=pids)
if not transfer and os.environ["STEP"] == "hangs":
    time.sleep(60)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not asked:
            os._exit(1)
        with open(os.environ["SEEN"], "a") as seen:
            print(json.dumps([transfer, len(asked["prompt"]), max(asked["prompt"])]), file=seen)
        self.do_GET()

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""

AIPERF = """
import contextlib, json, os, sys, time, urllib.request
from pathlib import Path

words, step = sys.argv[1:], os.environ["STEP"]
assert words[0] == "profile" and Path(words[words.index("--input-file") + 1]).is_file()
assert os.environ["HF_HUB_OFFLINE"] == "1"
folder = Path(words[words.index("--artifact-dir") + 1])
folder.mkdir()
if step == "server":
    with contextlib.suppress(OSError):
        urllib.request.urlopen(words[words.index("--url") + 1], b"{}")
if step == "sidecar":
    os.kill(int((folder.parent.parent / folder.name / "pid").read_text()), 9)
if step == "waits":
    with open(os.environ["PIDS"], "a") as pids:
        print(os.getpid(), os.fork(), file=pids, flush=True)
    time.sleep(60)
(folder / "profile_export_aiperf.json").write_text("{}")

def row(at, **more):
    value = lambda it: {"value": it}
    about = {"request_start_ns": at * 10**9, "request_end_ns": at * 10**9 + 10**8}
    about |= {"conversation_id": "a", "turn_index": 1 if step == "again" else at}
    metrics = {"time_to_first_token": value(50 * at), "usage_prompt_tokens": value(1000)}
    metrics |= {"usage_completion_tokens": value(10)}
    if at == 2:
        metrics["usage_prompt_cache_read_tokens"] = value(600)
    if more:
        metrics = {}
    return json.dumps({"metadata": about, "metrics": metrics} | more)

rows = [row(1), row(2), row(3, error={"code": 500})]
rows = {"fails": rows, "none": rows[2:]}.get(step, rows[:2])
if step != "silent":
    print("Phase profiling (profiling) complete | completed=2, cancelled=1, errors=0 | elapsed=1s")
(folder / "profile_export.jsonl").write_text("\\n".join(rows))
"""

KVRAIL = """#!/bin/sh
case "$1 $2" in
"--version ") echo kvrail 0 ;;
"serve "*) while :; do sleep 0.1; done ;;
esac
"""

DRIVER = """
import os, sys
from pathlib import Path
model, home, *words = sys.argv[1:]
sys.path.insert(0, model)
import agents, places, run
home = Path(home)
agents.HOME = run.HOME = home / "home"
places.SHARED, agents.SERVER, agents.STARTS_S = home / "shm", home / "server.py", 20
agents.model_folder = lambda at, *_: (at.mkdir(parents=True), at)[1]
if os.environ["STEP"] == "hangs":
    agents.STARTS_S = 3
if os.environ["STEP"] == "full":
    agents.GIB = 1 << 60
sys.exit(agents.main(words))
"""


SESSIONS = [
    {"session_id": "a", "input_length": 500, "output_length": 20},
    {"session_id": "b", "input_length": 400, "output_length": 20},
    {"session_id": "a", "input_length": 100, "output_length": 20},
]


def begun(home: Path, arms: str, step: str = "", dies: str = "") -> "subprocess.Popen[str]":
    """A run in which something happens."""
    (home / "shm").mkdir()
    for name, text in (("aiperf.py", AIPERF), ("server.py", SERVER), ("driver.py", DRIVER)):
        (home / name).write_text(text)
    for name, text in (("kvrail", KVRAIL), ("nvidia-smi", "#!/bin/sh\necho One\n")):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    (home / "sessions").write_text("\n".join(map(json.dumps, SESSIONS)))
    words = [sys.executable, home / "driver.py", MODEL, home]
    words += [home / "results", "disk", "--dir", home, "--sessions", home / "sessions"]
    env = {"PATH": f"{home}:{os.environ['PATH']}", "PYTHONPATH": str(home), "STEP": step}
    env |= {"SEEN": str(home / "seen"), "PIDS": str(home / "pids"), "DIES": dies}
    return subprocess.Popen(
        [*words, "--arms", arms, "--cpu-gib", "1"],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def played(home: Path, arms: str, **more: str) -> tuple[int, str, dict[str, Any]]:
    """A run's exit code, what it prints, and what each arm saw."""
    with begun(home, arms, **more) as run:
        text = run.communicate(timeout=100)[0]
    saw = {it.name: json.loads(it.read_text()) for it in (home / "results").glob("*.json")}
    return run.returncode, text, saw


def test_each_arm_plays_the_sessions_and_leaves_nothing_else(tmp_path):
    code, text, saw = played(tmp_path, "recompute,fs,tier,latency")
    assert code == 0, text
    for arm in ("recompute", "fs", "tier", "latency"):
        seen = saw[f"disk-{arm}.json"]["agents"]
        assert seen["ttft_s"] == [0.05, 0.1] and (seen["failed"], seen["cut"]) == (0, 1)
        assert (seen["wall_s"], seen["tokens"], seen["cached_tokens"]) == (1.1, 2000, 600)
    first = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    transfers = list(dict.fromkeys(it[0] for it in first))
    assert [json.loads(it)["kv_connector"] if it else "" for it in transfers] == [
        "", "OffloadingConnector", "OffloadingConnector", "KvrailOffloadingConnector"
    ]  # fmt: skip
    # The vocabulary has 96 letters.
    assert {it[1] for it in first} == {600, 16_384} and max(it[2] for it in first) == 95
    assert not (tmp_path / "kvrail-model-disk").exists()
    report = [sys.executable, MODEL / "report.py", tmp_path / "results", ""]
    tables = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    cells = "2 in 1.1 s (1.82); 1 cut | 1,818; 18 | 0.05 s; 0.10 s | 30% |"
    assert f"| kvrail tier | {cells}" in tables


def test_a_server_that_does_not_start_leaves_the_others_their_turn(tmp_path):
    code, text, saw = played(tmp_path, "recompute,fs", dies="OffloadingConnector")
    assert code == 1 and "start of fs" in text
    assert "agents" in saw["disk-recompute.json"] and "disk-fs.json" not in saw


def test_a_server_that_hangs_leaves_the_others_their_turn(tmp_path):
    code, text, saw = played(tmp_path, "recompute,fs,cpu", step="hangs")
    assert code == 1 and "start of recompute" in text and "start of fs" not in text
    assert {"disk-fs.json", "disk-cpu.json"} <= saw.keys() and "disk-recompute.json" not in saw


@pytest.mark.parametrize(
    ("step", "arm", "why"),
    [
        ("none", "recompute", "no request of 1 was answered"),
        ("server", "recompute", "the server has ended with 1"),
        ("sidecar", "tier", "the sidecar of tier has ended"),
    ],
)
def test_an_arm_that_loses_a_part_has_no_result(tmp_path, step, arm, why):
    code, text, saw = played(tmp_path, arm, step=step)
    assert code == 1 and f"wrong: agents of {arm}" in text and why in text
    assert f"disk-{arm}.json" not in saw
    assert (tmp_path / "results" / f"disk-{arm}.aiperf.log").exists()


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("fails", "wrong: agents of fs: 1 requests failed"),
        ("silent", "wrong: agents of fs: AIPerf's log has no number of requests"),
        ("again", "wrong: agents of fs: sessions came again"),
        ("full", "wrong: agents of fs: its drive has less than 1 GiB free"),
    ],
)
def test_numbers_that_mislead_fail_the_run(tmp_path, step, why):
    code, text, saw = played(tmp_path, "fs", step=step)
    assert code == 1 and why in text and saw["disk-fs.json"]["agents"]["tokens"] == 2000


def test_what_a_run_has_started_ends_where_it_is_killed(tmp_path):
    with begun(tmp_path, "recompute,cpu", step="waits") as run:
        until, pids = time.monotonic() + 60, list[str]()
        while len(pids) < 5:  # two servers, and AIPerf with a process of its own
            assert time.monotonic() < until and run.poll() is None
            time.sleep(0.1)
            file = tmp_path / "pids"
            pids = file.read_text().split() if file.exists() else []
        run.kill()
    while [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]:
        assert time.monotonic() < until
        time.sleep(0.1)


REFUSED = [
    (["--sessions", "/none"], "FileNotFoundError"),
    (["--sessions", "/dev/null"], "is no file of AIPerf's sessions"),
    (["--sessions", __file__], "is no file of AIPerf's sessions: JSONDecodeError"),
    (["--arms", "sglang"], "sglang has no server here"),
    (["--arms", "hot,second"], "second has no server here"),
    (["--arms", "fs,fs"], "fs is there twice"),
    (["--play", "0"], "have to be above 0"),
    (["--at-once", "-1"], "have to be above 0"),
    (["--gpu-gib", "1"], "the longest session needs 1.1 GiB of a cache: --gpu-gib"),
    (["--arms", "fs", "--drive-gib", "99999"], "the run may need 100014: --store-gib"),
    *(([option], f"arguments: {option}") for option in ("--share", "--served", "--seconds")),
]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_what_cannot_be_played_is_refused_at_the_start(tmp_path, words, why):
    sessions = tmp_path / "sessions"
    sessions.write_text("\n".join(map(json.dumps, SESSIONS)))
    line = [sys.executable, MODEL / "agents.py", tmp_path, "memory", "--sessions", sessions, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and why in done.stderr
