"""Runs of `bench/model` without an engine or a GPU: options, turns, phases, places and reports."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "bench" / "model"
GIB = 1 << 30

ARM = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from turns import take_part

def begin(phase, lengths):
    for turn in range(lengths[0] if name == "a" else 2):
        with open(seen, "a") as file:
            file.write(f"{phase} {name}{turn}\\n")
        if name == "b" and phase == "fails":
            raise ValueError("as it should")
        if name == "b" and phase == "dies":
            os._exit(1)
        if name == "b" and phase == "leaves":
            os.fork() or time.sleep(60)
            os._exit(1)
        if name == "b" and phase == "hangs":
            time.sleep(60)
        yield

name, seen = sys.argv[2:4]
take_part(begin, os.fdopen(int(sys.argv[4]), "w"))
"""


Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports files of `bench/model`, whose names others may have, too."""
    monkeypatch.syspath_prepend(str(MODEL))
    names = {path.stem for path in MODEL.glob("*.py")}
    kept = {name: sys.modules.pop(name) for name in names & sys.modules.keys()}
    yield importlib.import_module
    for name in names & sys.modules.keys():
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.fixture
def turns(load: Load) -> Any:
    return load("turns")


@pytest.fixture
def arms(turns: Any, tmp_path: Path) -> Any:
    script = tmp_path / "arm.py"
    script.write_text(ARM)
    words = [sys.executable, str(script), str(MODEL)]
    seen = str(tmp_path / "seen")
    made = [turns.Arm(name, [*words, name, seen], tmp_path / f"{name}.log") for name in "abc"]
    assert all(arm.is_ready(time.monotonic() + 30) for arm in made)
    yield made
    for arm in made:
        arm.end()


def took(
    turns: Any, arms: Any, tmp_path: Path, phase: str, seconds: float = 30, fail: str = ""
) -> list[str]:
    """The turns of a phase in the order in which they were taken."""
    (tmp_path / "seen").unlink(missing_ok=True)
    until = time.monotonic() + seconds
    assert turns.take_turns(arms, f"begin {phase} 3", until) == list(fail)
    return [line.split()[1] for line in (tmp_path / "seen").read_text().splitlines()]


def test_arms_go_on_one_after_the_other(turns, arms, tmp_path):
    assert took(turns, arms, tmp_path, "works") == ["a0", "b0", "c0", "a1", "b1", "c1", "a2"]


def test_what_is_between_turns_comes_before_each_of_them(turns, arms):
    rounds: list[int] = []
    turns.take_turns(arms, "begin works 3", time.monotonic() + 30, lambda: rounds.append(1))
    assert len(rounds) == 4  # the last one finds that nothing is left


def test_a_phase_that_fails_ends_for_its_arm_alone(turns, arms, tmp_path):
    order = ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert took(turns, arms, tmp_path, "fails", fail="b") == order
    assert "as it should" in (tmp_path / "b.log").read_text()
    assert "b1" in took(turns, arms, tmp_path, "works")


def test_an_arm_that_dies_is_left_out(turns, arms, tmp_path):
    order = ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert took(turns, arms, tmp_path, "dies", fail="b") == order
    assert [arm.alive for arm in arms] == [True, False, True]
    assert took(turns, arms, tmp_path, "works") == ["a0", "c0", "a1", "c1", "a2"]


def test_an_arm_whose_process_lives_on_is_left_out_at_once(turns, arms, tmp_path):
    began = time.monotonic()
    order = ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert took(turns, arms, tmp_path, "leaves", fail="b") == order
    assert time.monotonic() - began < 20


def test_an_arm_that_is_late_is_ended_and_no_other_begins(turns, arms, tmp_path):
    began = time.monotonic()
    assert took(turns, arms, tmp_path, "hangs", seconds=2) == ["a0", "b0"]
    assert time.monotonic() - began < 20
    assert [arm.alive for arm in arms] == [True, False, True]


def test_an_arm_that_hangs_leaves_the_others_their_time(turns, arms, tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", 1.0)
    order = ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert took(turns, arms, tmp_path, "hangs", fail="b") == order
    assert [arm.alive for arm in arms] == [True, False, True]


# What can work.

HOST_GIB = 125
RESTART = "--share --arms recompute,direct,latency,fs"
RESTART += " --phases stored@32768:direct+fs,restart,again@32768 --cpu-gib 9"
REFUSED = [
    ("--phases ttft,flip,ttft", "ttft is there twice"),
    ("--arms direct,direct", "direct is there twice"),
    ("--phases tfft", "there is no phase tfft"),
    ("--arms direct,wide", "there is no arm wide"),
    ("--arms direct --phases ttft:fs", "ttft: --arms has no fs"),
    ("--phases ttft@1000", "1000 tokens are no multiple of a chunk's 256"),
    ("--arms simple", "with --served alone"),
    ("--arms direct,sglang", "need a run of their own"),
    ("--arms sglang,sglang_kvrail --phases interfere@8192", "no phase interfere"),
    ("--arms direct --phases mixed@8192", "needs a --trace"),
    ("--arms direct --phases mixed@8192 --trace /none", "--trace: there is no file /none"),
    ("--arms direct --phases mixed@8192 --trace /none --pace 0", "have to be above 0"),
    (f"--arms direct --phases mixed@8192 --trace {__file__}", "is no trace in Mooncake's form"),
    ("--arms direct --phases mixed@8192 --trace /dev/null", "there is no file /dev/null"),
    ("--share --arms direct,latency --phases mixed@8192", "would find what the first one puts"),
    ("--arms direct --phases mixed@8192 --trace SLOW", "the last request of SLOW comes after 250"),
    (f"{RESTART} --store-gib 20", "store of direct has room for 10.6 GiB, and its arms put 28.3"),
    (f"{RESTART} --store-gib 40 --drive-gib 30", "first drive has room for 29.1 GiB"),
    (f"{RESTART} --store-gib 40 --drive-gib 40 --cpu-gib 60", "host has 125 GiB of memory"),
]


@pytest.fixture
def asked(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Options of a line of arguments."""
    monkeypatch.setattr(load("room"), "host_bytes", lambda: HOST_GIB * GIB)
    return lambda line: load("plan").arguments("", [str(tmp_path), *line.split()])


@pytest.mark.parametrize(("line", "why"), REFUSED)
def test_a_run_that_cannot_work_does_not_begin(asked, capsys, monkeypatch, tmp_path, line, why):
    rows = [{"timestamp": at, "output_length": 1, "hash_ids": [1]} for at in (2_000_000, 0)]
    (tmp_path / "SLOW").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        asked(f"memory {line}")
    assert why in capsys.readouterr().err


def test_a_store_and_drives_with_room_are_enough(asked):
    options = asked(f"memory {RESTART} --store-gib 46 --drive-gib 40")
    assert [phase.name for phase in options.phases] == ["stored", "restart", "again"]


def test_phases_may_come_behind_each_restart(asked):
    phases = asked("memory --arms direct --phases ttft@2048,restart,again@256,restart").phases
    assert [phase.lengths for phase in phases] == [[2048], [], [256], []]


def test_a_run_needs_a_name_of_its_own(asked, capsys, tmp_path):
    (tmp_path / "memory-machine.json").write_text("{}")
    with pytest.raises(SystemExit):
        asked("memory --arms recompute")
    assert "give a --tag" in capsys.readouterr().err
    assert asked("memory --arms recompute --tag b-").tag == "b-"


def test_the_store_of_hot_blocks_has_the_asked_size(asked, load):
    room, options = load("room"), asked("memory --arms hot --store-gib 30 --phases ttft@256")
    assert room.store_bytes("hot", options) == 30 * GIB
    options.tier_gib = 40
    assert room.store_bytes("hot", options) == 40 * GIB
    assert room.store_bytes("direct", options) == 30 * GIB


def test_a_store_keeps_what_real_ones_kept(asked, load):
    fits, options = load("room").store_fits, asked("disk --arms recompute --phases ttft@256")
    block = 32 << 20
    # A member of 10 GiB had 253 blocks when it began to evict, one of 4 GiB 86.
    assert 246 <= fits(10 * GIB, options) / block <= 253
    assert 79 <= fits(4 * GIB, options) / block <= 86
    options.place = "memory"  # four such members, each with more than its part by chance
    assert 200 <= fits(40 * GIB, options) / block / 4 <= 246


def test_what_is_put_is_counted_by_store(asked, load):
    room = load("room")
    options = asked("memory --arms direct,latency,fine --share --phases ttft@2048,lost@2048")
    warm, token = 600 + 2048, 131_072
    assert room.token_bytes(options) == token
    assert list(room.over_stores(options).values()) == [["direct", "latency", "fine"]]
    # Once for both, and each for itself; other chunks have it all again.
    both = (2048 + 2 * 2048 + 2 * warm) * token
    alone = (2048 + 2048 + warm) * token
    assert room.put_bytes(["direct", "latency"], options) == both
    assert room.put_bytes(["direct", "latency", "fine"], options) == both + alone


def documented(path: str) -> list[tuple[int, str]]:
    """The runs that a document has as commands: GiB of the host's memory, and the arguments."""
    text, found = (ROOT / path).read_text().replace("\\\n", " "), []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        host = re.search(r"a host with (\d+) GiB", block)
        runs = re.findall(r"model run FOLDER RESULTS (.*)", block)
        found += [(int(host[1]) if host else HOST_GIB, line) for line in runs]
    return found


@pytest.mark.parametrize(("path", "count"), [("README.md", 9), ("bench/model/RUNS.md", 1)])
def test_documented_runs_can_work(asked, load, monkeypatch, tmp_path, path, count):
    runs, trace = documented(path), tmp_path / "trace"
    assert len(runs) == count
    # As many blocks as the measured trace has.
    rows = [
        {"timestamp": 600_000, "output_length": 1, "hash_ids": list(range(at, at + 280))}
        for at in range(0, 2236, 280)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    free = SimpleNamespace(free=50 * GIB)
    monkeypatch.setattr(load("room").shutil, "disk_usage", lambda _: free)
    for host, line in runs:
        monkeypatch.setattr(load("room"), "host_bytes", lambda host=host: host * GIB)
        asked(line.replace("TRACE", str(trace)))


# Whole runs, with an engine that only remembers prompts.

KVRAIL = """#!/bin/sh
case "$1 $2" in
"--version ") echo kvrail 0 ;;
"volume create")
    shift 3
    while [ "$1" != --size ]; do
        truncate -s 66M "$1"
        printf x | dd of="$1" bs=1 seek=$(((64 << 20) + 12345)) conv=notrunc 2>/dev/null
        shift
    done ;;
"serve "*) while :; do sleep 0.1; done ;;
"status "*) [ -z "$MODEL_SIDECAR" ] ;;
esac
"""

DRIVER = """
import os, shutil, sys
from pathlib import Path
from types import SimpleNamespace
model, home, standin, *words = sys.argv[1:]
sys.path.insert(0, model)
import places, processes, run
# Stores and files are small here, whatever room they would need.
shutil.disk_usage = lambda _: SimpleNamespace(free=1 << 50)
home = Path(home)
processes.CACHES, places.SHARED, run.HOME = home / "caches", home / "shm", home / "home"
places.ANSWERS_S = 2.0
places.READ, run.ARM, os.sync, os.O_DIRECT = 1 << 24, standin, lambda: None, 0
sys.exit(run.main(words))
"""


class Started:
    """A run in a process of its own, in a folder of its own."""

    def __init__(self, home: Path, line: str, **more: str) -> None:
        self.home, self.results = home, home / "results"
        (home / "shm").mkdir()
        (home / "bin").mkdir()
        (home / "bin" / "kvrail").write_text(KVRAIL)
        (home / "bin" / "kvrail").chmod(0o755)
        (home / "driver.py").write_text(DRIVER)
        standin = Path(__file__).with_name("model_arm.py")
        words = [sys.executable, home / "driver.py", MODEL, home, standin, self.results, "disk"]
        words += ["--dir", home, "--cpu-gib", "1", "--disk-gib", "1", "--turns", "2", "--tag", "b-"]
        env = os.environ | {"PATH": f"{home / 'bin'}:{os.environ['PATH']}"} | more
        self.process = subprocess.Popen(
            [*words, *line.split()], env=env, stdout=subprocess.PIPE, text=True
        )

    def ends(self) -> tuple[int, str]:
        text = self.process.communicate(timeout=120)[0]
        return self.process.returncode, text

    def saw(self, arm: str) -> Any:
        return json.loads((self.results / f"disk-b-{arm}.json").read_text())

    def children(self) -> list[str]:
        """Processes of arms that still run."""
        pids = (self.results / "children").read_text().split()
        return [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]

    def asked(self) -> list[list[str]]:
        return [line.split() for line in (self.results / "asked").read_text().splitlines()]


ALL = "--share --store-gib 6 --users 1,2 --arms recompute,direct,latency,hot,second,fs --tier-gib 1"
ALL += " --phases ttft@512+1024,shared@512+1024:hot+second,interfere@512,flip@512,kill@512,"
ALL += "lost@512,returning@1024,mixed@512:recompute+fs,stored@512+1024:direct+fs,restart,"
ALL += "again@512+1024"


TRACE = [
    {"timestamp": 0, "output_length": 5, "hash_ids": [9]},
    {"timestamp": 1000, "output_length": 100, "hash_ids": [1, 2]},
    {"timestamp": 1500, "output_length": 1000, "hash_ids": [1, 2, 3, 4, 5]},
    {"timestamp": 2000, "output_length": 1, "hash_ids": [6]},
    {"timestamp": 3000, "output_length": 1, "hash_ids": [7]},
]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Started:
    home = tmp_path_factory.mktemp("whole")
    (home.parent / "trace").write_text("".join(f"{json.dumps(line)}\n" for line in TRACE))
    line = f"{ALL} --trace {home.parent / 'trace'} --trace-from 1 --requests 3"
    started = Started(home, line, VLLM_BATCH_INVARIANT="1")
    code, text = started.ends()
    assert code == 0, text
    return started


def test_all_phases_of_all_arms_are_done(whole_run):
    ours = {"ttft", "interfere", "kill", "lost", "returning", "again"}
    assert ours | {"flip"} <= whole_run.saw("direct").keys()
    assert ours <= whole_run.saw("latency").keys()
    assert {"ttft", "returning", "again"} <= whole_run.saw("recompute").keys()
    assert {"ttft", "interfere", "flip", "again"} <= whole_run.saw("fs").keys()
    assert {"shared"} <= whole_run.saw("hot").keys() & whole_run.saw("second").keys()


def test_requests_of_a_trace_have_its_blocks_cut_to_the_longest_prompt(whole_run):
    seen = whole_run.saw("fs")["mixed"]
    tail = 5
    assert seen["tokens"] == (2 + 4 + 1) * 128 + 3 * tail
    assert seen["last_s"] == 1 / 8
    assert seen["made_tokens"] == 25 + 128 + 1
    assert seen["cached_tokens"] == 2 * 128
    assert len(seen["ttft_s"]) == 3


def test_one_arm_of_a_store_flips(whole_run):
    assert whole_run.saw("direct")["flip"]["flipped"] == 1
    assert not {"flip"} & (whole_run.saw("latency").keys() | whole_run.saw("second").keys())


def test_arms_over_one_store_compute_their_own_prompts(whole_run):
    computed = [0.02] * 2
    for arm in ("direct", "latency", "hot", "second"):
        seen = whole_run.saw(arm)
        assert [row["stored_s"] for row in seen["interfere"]] == computed, arm
        assert seen["lost"]["512"]["cold_s"] == computed[0], arm
        losses = seen["lost"]["512"]["losses"]
        assert [loss["after"]["cached_tokens"] for loss in losses] == [512] * 2


def test_prompts_of_several_lengths_are_all_found_again_and_none_before(whole_run):
    for length in (512, 1024):
        found = [it["cached_tokens"] for it in whole_run.saw("latency")["again"][str(length)]]
        assert found == [length] * 2
        first = [it["cached_tokens"] for it in whole_run.saw("hot")["shared"][str(length)]]
        then = [it["cached_tokens"] for it in whole_run.saw("second")["shared"][str(length)]]
        assert (first, then) == ([0] * 2, [length] * 2)


def test_an_arm_that_chooses_warms_up_when_no_other_does(whole_run):
    warms = ("605", "1029")
    for start in ("1", "2"):
        lines = [line for line in whole_run.asked() if line[1] == start and line[2] in warms][:31]
        begins = [line[0] for line in lines].index("latency")
        others = [line[0] for line in lines[:begins]]
        assert {arm: others.count(arm) for arm in others} == dict.fromkeys(
            ("direct", "hot", "second", "fs"), 5
        ) | {"recompute": 4}
        # Both are computed once, also where a store has the prompts of the start before.
        mine = [line[3] for line in lines[begins : begins + 4]]
        assert mine == ["-", "cache", "-", "cache"]


def test_nothing_but_results_is_left_of_a_run(whole_run):
    assert {path.name for path in whole_run.home.iterdir()} == {
        "bin", "caches", "driver.py", "home", "results", "shm"
    }  # fmt: skip
    assert (whole_run.home / "caches").read_text() == "3"
    assert not whole_run.children()
    for pid_file in (whole_run.home / "home").glob("*/pid"):
        assert not Path(f"/proc/{pid_file.read_text().strip()}/exe").exists()
    assert len(list((whole_run.home / "home").glob("*/pid"))) == 2
    machine = json.loads((whole_run.results / "disk-b-machine.json").read_text())
    assert len(machine["drives_read"]["ttft"]) == 2 * 3 + 1


def test_the_report_has_all_phases(whole_run):
    text, code = reported(whole_run.results)
    assert code == 0
    heads = ["Medians", "1 at once", "requests (a second)", "flipped", "six requests"]
    for head in (*heads, "sidecar killed"):
        assert head in text
    assert text.count("come back, once each") == text.count("the first arm computes") == 1


def reported(results: Path) -> tuple[str, int]:
    words = [sys.executable, str(MODEL / "report.py"), str(results), "b-"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.stdout, done.returncode


FEW = "--share --store-gib 4 --arms recompute,direct,latency --phases ttft@512,again@512"


def test_a_phase_that_fails_fails_the_run_and_no_other_arm(tmp_path):
    started = Started(tmp_path, FEW, MODEL_ARM_FAILS="direct:ttft")
    code, text = started.ends()
    assert code == 1
    assert "direct: failed" in text and "wrong: ttft of direct" in text
    assert "ttft" not in started.saw("direct") and "again" in started.saw("direct")
    assert "ttft" in started.saw("latency")


def test_a_sidecar_that_does_not_answer_leaves_its_log_and_nothing_else(tmp_path):
    started = Started(tmp_path, FEW, MODEL_SIDECAR="silent")
    assert started.ends()[0] == 1
    assert (started.results / "disk-b-direct.sidecar.log").exists()
    pid = int((tmp_path / "home" / "direct" / "pid").read_text())
    assert not Path(f"/proc/{pid}/exe").exists()
    assert not (tmp_path / "kvrail-model-disk").exists()


@pytest.mark.parametrize("invariant", [True, False])
def test_bits_that_differ_fail_a_batch_invariant_run_alone(tmp_path, invariant):
    more = {"VLLM_BATCH_INVARIANT": str(int(invariant)), "MODEL_ARM_WRONG": "latency"}
    started = Started(tmp_path, FEW, **more)
    code, text = started.ends()
    assert code == invariant
    assert ("wrong: latency, ttft: " in text) == invariant
    text, code = reported(started.results)
    assert code == invariant and "0 of 2" in text
    assert ("Not equal: latency, ttft" in text) == invariant


def test_a_run_that_is_ended_leaves_its_results_and_nothing_else(tmp_path):
    started = Started(tmp_path, f"{FEW} --turns 9999")
    until = time.monotonic() + 60
    while not (started.results / "disk-b-direct.json").exists():
        assert time.monotonic() < until and started.process.poll() is None
        time.sleep(0.05)
    started.process.send_signal(signal.SIGTERM)
    assert started.ends()[0] == 143
    assert not (tmp_path / "kvrail-model-disk").exists()
    pid = int((tmp_path / "home" / "direct" / "pid").read_text())
    assert not Path(f"/proc/{pid}/exe").exists()
    text, code = reported(started.results)
    assert code == 0 and "Medians" in text


def test_a_phase_that_the_time_ends_is_named(tmp_path):
    line = "--arms recompute,fs --phases again@512 --turns 9999 --seconds 4"
    code, text = Started(tmp_path, line).ends()
    assert code == 0 and "again: the time is over" in text


def test_arms_of_a_run_that_was_killed_end_with_their_processes(tmp_path):
    line = "--arms recompute,fs --phases again@32768 --turns 9999"  # mostly in some arm's turn
    started = Started(tmp_path, line)
    until = time.monotonic() + 60
    while not (started.results / "disk-b-fs.json").exists():
        assert time.monotonic() < until and started.process.poll() is None
        time.sleep(0.05)
    assert len(started.children()) == 2
    started.process.kill()
    while started.children():
        assert time.monotonic() < until
        time.sleep(0.05)


# Places, and sidecars that are gone.


def test_a_sidecar_that_died_is_no_error_and_others_are_left_alone(load, tmp_path):
    processes, pid_file = load("processes"), tmp_path / "pid"
    processes.end_sidecar(pid_file)
    with subprocess.Popen(["sleep", "60"]) as other:
        pid_file.write_text(str(other.pid))
        processes.end_sidecar(pid_file)
        assert other.poll() is None
        other.kill()
    processes.end_sidecar(pid_file)


def test_a_sidecar_that_does_not_end_is_killed(load, monkeypatch, tmp_path):
    processes, pid_file = load("processes"), tmp_path / "pid"
    monkeypatch.setattr(processes, "ENDS_S", (0.3, 10.0))
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)"
    text += "; time.sleep(60)"
    words = [sys.executable, "-c", text, "kvrail", f"{tmp_path}/kvrail.toml"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as sidecar:
        assert sidecar.stdout.readline()
        pid_file.write_text(str(sidecar.pid))
        processes.end_sidecar(pid_file)  # nobody waits for it: it stays as one that has ended
        assert sidecar.wait(5) == -signal.SIGKILL


def test_pools_of_engines_that_were_killed_are_removed(load, monkeypatch, tmp_path):
    places = load("places")
    monkeypatch.setattr(places, "SHARED", tmp_path)
    for name in ("vllm_offload_1", "lmcache_l1_pool_kvrail-model-7", "lmcache_l1_pool_x"):
        (tmp_path / name).touch()
    places.make_room(0)
    assert [path.name for path in tmp_path.iterdir()] == ["lmcache_l1_pool_x"]


def test_drives_in_memory_are_unmounted_the_upper_ones_first(load, monkeypatch, tmp_path):
    places, done = load("places"), list[tuple[Any, ...]]()
    (tmp_path / "drive-0").mkdir()
    (tmp_path / "drive-0.ext4").touch()
    mounted = {tmp_path, tmp_path / "drive-0"}
    monkeypatch.setattr(places, "MEMORY", tmp_path)
    monkeypatch.setattr(places.os.path, "ismount", lambda path: path in mounted)
    monkeypatch.setattr(places, "run", lambda *words: done.append(words))
    places.unmount_drives()
    assert done == [("umount", "--lazy", tmp_path / "drive-0"), ("umount", "--lazy", tmp_path)]


def test_what_a_process_has_used_that_has_ended_stays_counted(load):
    used = load("processes").Used
    before = used.by(os.getpid())
    text = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", text], check=True)
    assert used.by(os.getpid()).since(before).cpu_s > 0.25


def test_an_arm_without_its_sidecar_has_no_result(load, tmp_path):
    (tmp_path / "pid").write_text("999999999")
    with pytest.raises(RuntimeError, match=f"the sidecar of {tmp_path.name} has ended"):
        load("processes").used_by_sidecar(tmp_path / "pid")


def test_files_of_sglang_come_from_the_drive(load, monkeypatch):
    asked, done = load("asked"), list[int]()
    monkeypatch.setattr(asked, "drop_caches", lambda: done.append(1))
    for arm in ("fs", "sglang_kvrail", "sglang_file"):
        asked.Place(arm, "", "", 256, 0).forget()
    assert done == [1]


def test_what_has_not_settled_is_not_silent(load):
    asked, looks = load("asked"), iter(range(10_000))
    assert not asked.settle(lambda _: time.sleep(0.001), lambda: str(next(looks)), 0.05)
    assert asked.settle(lambda _: None, lambda: "all", 5)


def test_an_archive_is_unpacked_once_and_another_of_its_name_anew(tmp_path):
    kit, home = tmp_path / "kit", tmp_path / "home"
    kit.mkdir()

    def pack(name: str, files: dict[str, str]) -> None:
        for file, text in files.items():
            (tmp_path / file).write_text(text)
        with tarfile.open(kit / f"{name}.txz", "w:xz") as archive:
            for file in files:
                archive.add(tmp_path / file, file)

    def unpack() -> int:
        words = ["bash", str(ROOT / "scripts" / "verbs" / "model.sh"), "unpack", str(kit)]
        env = os.environ | {"MODEL_HOME": str(home)}
        return subprocess.run(words, env=env, check=False).returncode

    pack("a", {"one": "1", "gone": "1"})
    pack("b", {"two": "2"})
    assert unpack() == 0
    (home / "site" / "two").unlink()
    assert unpack() == 0 and not (home / "site" / "two").exists()
    pack("a", {"one": "3"})
    assert unpack() == 0
    assert {it.name: it.read_text() for it in (home / "site").iterdir()} == {"one": "3", "two": "2"}
    (kit / "c.txz").write_bytes(b"no archive")
    assert unpack() != 0 and unpack() != 0


@pytest.mark.parametrize("names", [[], ["kvrail-0-empty.whl"], ["kvrail-1.whl", "kvrail-2.whl"]])
def test_a_kit_without_its_one_wheel_is_refused(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("" if "empty" in name else "wheel")
    words = ["bash", str(ROOT / "scripts" / "verbs" / "model.sh"), "run", str(tmp_path)]
    env = os.environ | {"MODEL_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [*words, "results", "memory"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "one wheel of kvrail" in done.stderr
    assert not (tmp_path / "home").exists()


# Reports.


def seen(tokens: int, hits: list[tuple[int, bool]]) -> dict[str, Any]:
    row = [{"cached_tokens": cached, "bit_exact": exact} for cached, exact in hits]
    answer = {"gpu": {"bit_exact": True}, "tokens": [1], "logprobs": [0.5], "hits": row}
    return {"batch_invariant": "0", "ttft": {str(tokens): answer}}


def test_equal_hits_are_counted_among_those_of_the_whole_prompt(load):
    rows = {"direct": seen(512, [(512, True), (512, False), (256, False), (0, True)])}
    assert "| kvrail direct | 2 of 4 | 1 of 2 | 1 of 1 |" in load("report").exactness(rows)


def test_a_first_answer_that_was_found_is_not_one_that_was_computed(load):
    rows = {"direct": seen(512, [(512, True)]), "latency": seen(512, [(512, True)])}
    rows["latency"]["ttft"]["512"]["first_cached_tokens"] = 512
    text = load("report").exactness(rows)
    assert "| kvrail direct | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |" in text
    assert "| kvrail direct, latency | 1 of 1 | 1 of 1 | 0 of 0 | 1 of 1 |" in text


def test_an_arm_may_lack_a_length_of_a_phase(load):
    def answers(ttft_s: float) -> list[dict[str, Any]]:
        it = {"tokens": [1], "logprobs": [0.5], "cached_tokens": 512, "ttft_s": ttft_s}
        return [it | {"drive_bytes": 0, "read_bytes": 0}]

    rows = {
        "recompute": {"again": {"512": answers(1.0), "1024": []}},
        "fs": {"again": {"512": answers(0.5), "1024": answers(2.0)}},
    }
    text = "".join(load("report").firsts(rows, "again", ""))
    assert "0.500 s (0.50)" in text and "2.000 s (1.00)" in text
