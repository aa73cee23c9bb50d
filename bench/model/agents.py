"""Agents' sessions by AIPerf against vLLM's server: agents.py RESULTS PLACE.

The sessions are a file of `aiperf synthesize agentic-code`: first prompts of 40,000 tokens and
more, which begin alike, then turns with pauses. Each arm has a server of its own. All start at once
over one copy of the weights, and each gets the same sessions for the same seconds, from an empty
store or folder on, while the others wait. PLACE and most options are those of run.py; RESULTS gets
one JSON for each arm, which report.py makes into a table.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from arms import COMPUTES, DIRECT, FORGETS
from asked import Place, prompt
from places import make_room
from plan import machine_file, parser_of_run
from processes import Used, end_all
from room import SHAPES
from run import HOME, STARTS_S, Run
from vocabulary import IDS, model_folder

SERVER, NAME, PORT = Path(__file__).with_name("server.py"), "kvrail/agents", 8100
WARMS_UP = (600, 16_384)
"""Tokens of each server's first prompts."""

ENDS_S = 45.0
"""Longer than its seconds AIPerf may take to begin, and to write what it saw."""


class Server:
    """vLLM's server of an arm, with all processes that it has started."""

    def __init__(self, port: int, words: list[str], log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        with open(log, "ab") as lines:
            self._process = subprocess.Popen(
                words, stdout=lines, stderr=lines, start_new_session=True
            )

    def answers(self, until: float) -> bool:
        """Whether it does, before a time of the monotonic clock."""
        while time.monotonic() < until and self._process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return True
            except OSError:
                time.sleep(0.2)
        return False

    def complete(self, ids: list[int], tokens: int) -> None:
        """One request, whose answer is of no interest."""
        asked = {"model": NAME, "prompt": ids, "max_tokens": tokens, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/v1/completions",
            json.dumps(asked | {"ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).read()

    def used(self) -> Used:
        """By all of its processes so far."""
        return Used.by(self._process.pid)

    def end(self) -> None:
        end_all(self._process)


def server_words(
    options: argparse.Namespace, model: Path, port: int, place: Place
) -> list[str]:
    """The arguments of vLLM's server."""
    named = {
        "model": model,
        "served-model-name": NAME,
        "host": "127.0.0.1",
        "port": port,
        "load-format": "dummy",
        "dtype": "bfloat16",
        "max-model-len": options.context + 8192,
        "max-num-batched-tokens": 8192,
        "max-num-seqs": 32,
        "kv-cache-memory-bytes": options.gpu_gib << 30,
        "gpu-memory-utilization": 0.1,
        "kv-cache-dtype": options.kv_cache_dtype,
        "seed": 0,
        "generation-config": "vllm",
        "compilation-config": json.dumps({"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}),
    }
    if transfer := place.transfer():
        named["kv-transfer-config"] = json.dumps(transfer)
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return [*words, "--enable-prompt-tokens-details"]


class Agents(Run):
    """Servers, and one generator of requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.machine["command"] = " ".join(["agents.py", *sys.argv[1:]])
        self.servers: dict[str, Server] = {}
        self.model = model_folder(HOME / "agents", SHAPES / options.shape, NAME)

    def _aiperf(self, words: list[str], seconds: float) -> None:
        home = {"HF_HOME": str(HOME / "agents"), "HF_HUB_OFFLINE": "1"}
        with open(HOME / "agents" / "aiperf.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "aiperf", *words],
                env=os.environ | home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            if code := process.wait(seconds):
                raise subprocess.CalledProcessError(code, ["aiperf", *words])
        finally:
            end_all(process)

    def start(self) -> None:
        """All servers at once; their first prompts are over behind this."""
        shutil.rmtree(HOME / "weights", ignore_errors=True)
        tiers = sum(arm in ("cpu", *FORGETS) for arm in self.options.arms)
        make_room(tiers * (self.options.cpu_gib << 30))
        for port, arm in enumerate(self.options.arms, PORT):
            words = [sys.executable, str(SERVER), str(HOME / "weights"), *self._words(arm, port)]
            self.servers[arm] = Server(port, words, self.out(arm, ".log"))
        until = time.monotonic() + STARTS_S
        for arm, server in list(self.servers.items()):
            if server.answers(until):
                for tokens in WARMS_UP * 2:
                    server.complete(prompt(tokens, tokens, IDS), 8)
                self.say(f"{arm} is ready")
            else:
                self.failed.append(f"start of {arm}; its log has the reason")
                self.servers.pop(arm).end()

    def _words(self, arm: str, port: int) -> list[str]:
        options, side = self.options, self.sides.get(arm)
        socket, files = str(side.socket) if side else "", str(self.files(arm))
        place = Place(arm, socket, files, options.chunk_tokens, options.cpu_gib << 30)
        return server_words(options, self.model, port, place)

    def measure(self) -> None:
        self.start()
        for arm in list(self.servers):
            try:
                self._play(arm)
            except Exception:
                traceback.print_exc()
                self.failed.append(f"agents of {arm}")
            self.servers.pop(arm).end()
            if arm in self.sides:
                self.sides.pop(arm).remove(self.out(arm, ".sidecar.log"))
            elif arm not in COMPUTES:
                shutil.rmtree(self.files(arm))
            self.keep()

    def _play(self, arm: str) -> None:
        """The sessions of one arm, from an empty store or folder on."""
        options, server = self.options, self.servers[arm]
        seen = HOME / "agents" / arm
        shutil.rmtree(seen, ignore_errors=True)
        words = ["profile", "--input-file", str(options.sessions)]
        words += ["--custom-dataset-type", "mooncake_trace", "--no-fixed-schedule"]
        words += ["--concurrency", str(options.at_once), "--streaming", "--use-server-token-count"]
        words += ["--inter-turn-delay-cap-seconds", str(options.pause)]
        words += ["--benchmark-duration", str(options.play), "--benchmark-grace-period", "5"]
        words += ["--model", NAME, "--tokenizer", NAME, "--url", server.url]
        words += ["--endpoint-type", "chat", "--extra-inputs", "ignore_eos:true"]
        words += ["--random-seed", "42", "--ui", "none", "--artifact-dir", str(seen)]
        before = server.used(), self._sidecar(arm)
        self._aiperf(words, options.play + ENDS_S)
        used = server.used().since(before[0]), self._sidecar(arm).since(before[1])
        self.out(arm).write_text(json.dumps(self._about(arm) | {
            "agents": of_requests(seen / "profile_export.jsonl") | {
                "engine_cpu_s": used[0].cpu_s,
                "sidecar_cpu_s": used[1].cpu_s,
                "read_bytes": sum(it.read_bytes for it in used),
                "written_bytes": sum(it.written_bytes for it in used),
            },
        }, indent=1))  # fmt: skip
        shutil.copy(seen / "profile_export_aiperf.json", self.out(arm, ".aiperf.json"))
        self.say(f"agents: {arm}")

    def _sidecar(self, arm: str) -> Used:
        side = self.sides.get(arm)
        return Used.by(int(side.pid_file.read_text())) if side else Used()

    def _about(self, arm: str) -> dict[str, Any]:
        words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return {
            "arm": arm,
            "shape": self.options.shape,
            "chunk_tokens": self.options.chunk_tokens,
            "gpu": gpus.splitlines()[0],
            "kv_cache_dtype": self.options.kv_cache_dtype,
            "served": True,
            "batch_invariant": os.environ.get("VLLM_BATCH_INVARIANT", "0"),
        }

    def end(self) -> None:
        for server in self.servers.values():
            server.end()
        self.servers = {}


def of_requests(export: Path) -> dict[str, Any]:
    """What AIPerf saw of each request, as a phase of arm.py has it."""
    rows = [json.loads(line) for line in export.read_text().splitlines()]
    whole = [row for row in rows if not row.get("error") and not row["metadata"]["was_cancelled"]]
    if not whole:
        raise ValueError(f"no request of {len(rows)} was answered")
    starts = [row["metadata"]["request_start_ns"] for row in whole]
    ends = [row["metadata"]["request_end_ns"] for row in whole]

    def values(name: str) -> list[float]:
        return [row["metrics"].get(name, {"value": 0})["value"] for row in whole]

    return {
        "wall_s": (max(ends) - min(starts)) / 1e9,
        "failed": sum(bool(row.get("error")) for row in rows),
        "tokens": sum(values("usage_prompt_tokens")),
        "ttft_s": [each / 1000 for each in values("time_to_first_token")],
        "cached_tokens": sum(values("usage_prompt_cache_read_tokens")),
        "made_tokens": sum(values("usage_completion_tokens")),
    }


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = parser_of_run(str(__doc__))
    parser.add_argument("--sessions", type=Path, required=True, help="a file of AIPerf's")
    parser.add_argument("--at-once", type=int, default=12, help="sessions")
    parser.add_argument("--context", type=int, default=100_000, help="tokens of the longest prompt")
    parser.add_argument("--pause", type=float, default=10.0, help="most seconds between turns")
    parser.add_argument("--play", type=int, default=75, help="seconds of each arm")
    options = parser.parse_args(words)
    options.began = time.monotonic()
    options.arms = options.arms.split(",")
    known = ("recompute", "cpu", *FORGETS, *DIRECT)
    for arm in options.arms:
        if arm not in known:
            parser.error(f"{arm} has no server here; there are {', '.join(known)}")
    if not options.sessions.is_file():
        parser.error(f"--sessions: there is no file {options.sessions}")
    if machine_file(options).exists():
        parser.error(f"{options.results} has such a run: give a --tag, or another folder")
    return options


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    return Agents(options).whole()


if __name__ == "__main__":
    sys.exit(main())
