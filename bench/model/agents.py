"""Agents' sessions by AIPerf against vLLM's server: agents.py RESULTS PLACE.

The sessions are a file of `aiperf synthesize agentic-code`: first prompts of 40,000 tokens and
more, which begin alike, then turns with pauses. Each arm has a server of its own. All start at once
over one copy of the weights, and each gets the same sessions for the same seconds, from an empty
store or folder on, while the others wait. PLACE and options that have a meaning here are those of
run.py; RESULTS gets one JSON for each arm, which report.py makes into a table. Ends with 1 where an
arm or a request failed, or an arm had more than others: sessions again.
"""

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from arms import COMPUTES, DIRECT, FORGETS, KVRAIL, store_of
from asked import Place, prompt
from places import make_room
from plan import parser_of_all, there, twice
from processes import Used, begin, end_all, used_by_sidecar
from room import GIB, SHAPES, host_bytes, memory_bytes, store_bytes, token_bytes
from run import HOME, STARTS_S, Run
from vocabulary import IDS, model_folder

SERVER, NAME = Path(__file__).with_name("server.py"), "kvrail/agents"
WARMS_UP = (600, 16_384)
"""Tokens of each server's first prompts."""

ENDS_S = 45.0
"""Longer than its seconds AIPerf may take to begin, and to write what it saw."""

BESIDE = 8192
"""More tokens than those of the longest session that a prompt may have: its turns have ends."""


class Server:
    """vLLM's server of an arm, with all processes that it has started."""

    def __init__(self, port: int, words: list[str], log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._process = begin(words, log)

    def wait(self, until: float) -> None:
        """Until it answers; `until` in seconds of the monotonic clock."""
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.2)

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
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the server has ended with {code}; its log has why")
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
        "max-model-len": options.tokens_max,
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

    @staticmethod
    def _aiperf(words: list[str], seconds: float, log: Path) -> None:
        home = {"HF_HOME": str(HOME / "agents"), "HF_HUB_OFFLINE": "1"}
        process = begin([sys.executable, "-m", "aiperf", *words], log, **home)
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
        for arm, port in zip(self.options.arms, free_ports(len(self.options.arms)), strict=True):
            words = [sys.executable, str(SERVER), str(HOME / "weights"), *self._words(arm, port)]
            self.servers[arm] = Server(port, words, self.out(arm, ".log"))
        until = time.monotonic() + STARTS_S
        for arm, server in list(self.servers.items()):
            try:
                server.wait(until)
                for tokens in WARMS_UP * 2:
                    server.complete(prompt(tokens, tokens, IDS), 8)
                self.say(f"{arm} is ready")
            except (OSError, HTTPException) as error:
                self.failed.append(f"start of {arm}: {error}; its log has the reason")
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
        self._aiperf(words, options.play + ENDS_S, self.out(arm, ".aiperf.log"))
        used = server.used().since(before[0]), self._sidecar(arm).since(before[1])
        shutil.copy(seen / "profile_export_aiperf.json", self.out(arm, ".aiperf.json"))
        log = self.out(arm, ".aiperf.log").read_text()
        requests = of_requests(seen / "profile_export.jsonl") | {"cut": number_cut(log)}
        self.failed += [f"agents of {arm}: {why}" for why in self._misleads(arm, requests)]
        self.out(arm).write_text(json.dumps(self._about(arm) | {
            "agents": requests | {
                "engine_cpu_s": used[0].cpu_s,
                "sidecar_cpu_s": used[1].cpu_s,
                "read_bytes": sum(it.read_bytes for it in used),
                "written_bytes": sum(it.written_bytes for it in used),
            },
        }, indent=1))  # fmt: skip
        self.say(f"agents: {arm}")

    def _misleads(self, arm: str, requests: dict[str, Any]) -> Iterator[str]:
        """Why what was seen of an arm is not beside what was seen of others."""
        if requests["failed"]:
            yield f"{requests['failed']} requests failed"
        if requests["cut"] is None:
            yield "AIPerf's log has no number of requests that the end of the time cut"
        if requests["again"]:
            yield "sessions came again, and were found: --sessions needs more, or --play less"
        if arm == "fs" and shutil.disk_usage(self.folders[0]).free < GIB:
            yield "its drive has less than 1 GiB free: --drive-gib, or --dir"

    def _sidecar(self, arm: str) -> Used:
        side = self.sides.get(arm)
        return used_by_sidecar(side.pid_file) if side else Used()

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
    whole = [row for row in rows if not row.get("error")]
    if not whole:
        raise ValueError(f"no request of {len(rows)} was answered")
    starts = [row["metadata"]["request_start_ns"] for row in whole]
    ends = [row["metadata"]["request_end_ns"] for row in whole]
    turns = {(row["metadata"]["conversation_id"], row["metadata"]["turn_index"]) for row in rows}

    def values(name: str) -> list[float]:
        return [row["metrics"][name]["value"] for row in whole]

    return {
        "wall_s": (max(ends) - min(starts)) / 1e9,
        "failed": len(rows) - len(whole),
        "again": len(rows) - len(turns),
        "tokens": sum(values("usage_prompt_tokens")),
        "ttft_s": [each / 1000 for each in values("time_to_first_token")],
        # A server may leave out what is none.
        "cached_tokens": sum(
            row["metrics"].get("usage_prompt_cache_read_tokens", {"value": 0})["value"]
            for row in whole
        ),
        "made_tokens": sum(values("usage_completion_tokens")),
    }


def number_cut(log: str) -> int | None:
    """Requests that the end of the time cut, of which AIPerf exports nothing: long ones, mostly."""
    found = re.findall(r" complete \| completed=\d+, cancelled=(\d+)", log)
    return int(found[-1]) if found else None


def free_ports(count: int) -> list[int]:
    """Ports on which nothing else answers."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in held]
    for it in held:
        it.close()
    return ports


def longest_session(path: Path) -> int:
    """Its tokens, those of answers too."""
    tokens = Counter[str]()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        tokens[row["session_id"]] += row["input_length"] + row["output_length"]
    return max(tokens.values())


def faults(options: argparse.Namespace) -> Iterator[str]:
    """Why these sessions cannot be played. Each arm has a store of its own here."""
    own = [arm for arm in ("recompute", "cpu", *FORGETS, *DIRECT) if store_of(arm, False) == arm]
    yield from (f"{word} is there twice" for word in twice(options.arms))
    wrong = [arm for arm in options.arms if arm not in own]
    yield from (f"{arm} has no server here; there are {', '.join(own)}" for arm in wrong)
    if options.at_once < 1 or options.play < 1 or options.pause < 0:
        yield "--at-once and --play have to be above 0, --pause 0 or more"
    try:
        options.tokens_max = longest_session(options.sessions) + BESIDE
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}, {error}"
        yield f"--sessions: {options.sessions} is no file of AIPerf's sessions: {why}"
        return
    if (need := options.tokens_max * token_bytes(options)) > options.gpu_gib * GIB:
        yield f"the longest session needs {need / GIB:.1f} GiB of a cache: --gpu-gib"
    if options.place == "memory" and not wrong:
        # An arm's store or folder goes before the next arm plays.
        need = memory_bytes(options, max(kept(arm, options) for arm in options.arms))
        if need > (have := host_bytes()):
            yield (
                f"the host has {have / GIB:.0f} GiB of memory, the run may need {need / GIB:.0f}: "
                "--store-gib, --drive-gib, --cpu-gib"
            )
    yield from there(options)


def kept(arm: str, options: argparse.Namespace) -> int:
    """The most bytes that an arm has on drives: vLLM's own tier never removes a file."""
    if arm in KVRAIL:
        return store_bytes(arm, options)
    return options.drive_gib * GIB if arm == "fs" else 0


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = parser_of_all(str(__doc__))
    parser.add_argument("--sessions", type=Path, required=True, help="a file of AIPerf's")
    parser.add_argument("--at-once", type=int, default=12, help="sessions")
    parser.add_argument("--pause", type=float, default=10.0, help="most seconds between turns")
    parser.add_argument("--play", type=int, default=75, help="seconds of each arm")
    parser.set_defaults(share=False)
    options = parser.parse_args(words)
    options.began = time.monotonic()
    options.arms = options.arms.split(",")
    if found := list(faults(options)):
        parser.error("; ".join(found))
    return options


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    return Agents(options).whole()


if __name__ == "__main__":
    sys.exit(main())
