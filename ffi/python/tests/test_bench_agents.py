"""`bench/model/agents.py` without an engine, a GPU or AIPerf, which stand-ins are here for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = Path(__file__).parents[3] / "bench" / "model"

SERVER = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = sys.argv[2:]
transfer = words[words.index("--kv-transfer-config") + 1] if "--kv-transfer-config" in words else ""
if os.environ["DIES"] and os.environ["DIES"] in transfer:
    sys.exit(1)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(os.environ["SEEN"], "a") as seen:
            print(json.dumps([transfer, len(asked["prompt"]), max(asked["prompt"])]), file=seen)
        self.do_GET()

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""

AIPERF = """
import json, os, sys
from pathlib import Path

words = sys.argv[1:]
assert words[0] == "profile" and Path(words[words.index("--input-file") + 1]).read_text() == "some"
assert os.environ["HF_HUB_OFFLINE"] == "1"
folder = Path(words[words.index("--artifact-dir") + 1])
folder.mkdir()
(folder / "profile_export_aiperf.json").write_text("{}")

def row(at, **more):
    value = lambda it: {"value": it}
    about = {"request_start_ns": at * 10**9, "request_end_ns": at * 10**9 + 10**8}
    metrics = {"time_to_first_token": value(50 * at), "usage_prompt_tokens": value(1000)}
    metrics |= {"usage_completion_tokens": value(10)}
    if at == 2:
        metrics["usage_prompt_cache_read_tokens"] = value(600)
    return json.dumps({"metadata": about | {"was_cancelled": at == 4}, "metrics": metrics} | more)

rows = [row(1), row(2), row(3, error={"code": 500}), row(4)][int(os.environ["FAILS"]) * 2 :]
(folder / "profile_export.jsonl").write_text("\\n".join(rows))
"""

KVRAIL = """#!/bin/sh
case "$1 $2" in
"--version ") echo kvrail 0 ;;
"serve "*) while :; do sleep 0.1; done ;;
esac
"""

DRIVER = """
import sys
from pathlib import Path
model, home, *words = sys.argv[1:]
sys.path.insert(0, model)
import agents, places, run
home = Path(home)
agents.HOME = run.HOME = home / "home"
places.SHARED, agents.SERVER, agents.STARTS_S = home / "shm", home / "server.py", 20
agents.model_folder = lambda at, *_: (at.mkdir(parents=True), at)[1]
agents.PORT = int(words.pop(0))
sys.exit(agents.main(words))
"""


def played(home: Path, arms: str, **more: str) -> tuple[int, str, dict[str, Any]]:
    """A run's exit code, what it prints, and what each arm saw."""
    (home / "shm").mkdir()
    for name, text in (("aiperf.py", AIPERF), ("server.py", SERVER), ("driver.py", DRIVER)):
        (home / name).write_text(text)
    for name, text in (("kvrail", KVRAIL), ("nvidia-smi", "#!/bin/sh\necho One\n")):
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    (home / "sessions").write_text("some")
    words = [sys.executable, home / "driver.py", MODEL, home, str(20_000 + os.getpid() % 10_000)]
    words += [home / "results", "disk", "--dir", home, "--sessions", home / "sessions"]
    env = {"PATH": f"{home}:{os.environ['PATH']}", "PYTHONPATH": str(home), "FAILS": "0"}
    env |= {"SEEN": str(home / "seen"), "DIES": ""} | more
    done = subprocess.run(
        [*words, "--arms", arms, "--cpu-gib", "1"],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    saw = {it.name: json.loads(it.read_text()) for it in (home / "results").glob("*.json")}
    return done.returncode, done.stdout, saw


def test_each_arm_plays_the_sessions_and_leaves_nothing_else(tmp_path):
    code, text, saw = played(tmp_path, "recompute,fs,tier,latency")
    assert code == 0, text
    for arm in ("recompute", "fs", "tier", "latency"):
        seen = saw[f"disk-{arm}.json"]["agents"]
        assert seen["ttft_s"] == [0.05, 0.1] and seen["failed"] == 1
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
    assert "| kvrail tier | 2 in 1.1 s (1.82) | 1,818; 18 | 0.05 s; 0.10 s | 30% |" in tables


def test_a_server_that_does_not_start_leaves_the_others_their_turn(tmp_path):
    code, text, saw = played(tmp_path, "recompute,fs", DIES="OffloadingConnector")
    assert code == 1 and "start of fs" in text
    assert "agents" in saw["disk-recompute.json"] and "disk-fs.json" not in saw


def test_sessions_without_one_answer_fail_the_run(tmp_path):
    code, text, saw = played(tmp_path, "recompute", FAILS="1")
    assert code == 1 and "agents of recompute" in text and saw.keys() == {"disk-machine.json"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--sessions", "/none"], "there is no file /none"),
        (["--sessions", __file__, "--arms", "sglang"], "sglang has no server here"),
    ],
)
def test_what_cannot_be_played_is_refused_at_the_start(tmp_path, words, why):
    line = [sys.executable, MODEL / "agents.py", tmp_path, "disk", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and why in done.stderr
