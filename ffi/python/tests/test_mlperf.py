"""The back end for MLPerf Storage's KV-cache benchmark over a sidecar, without the benchmark."""

import gc
import itertools
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import kvrail
import numpy
import pytest
from host import until

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "engines"))

import mlperf_kv
from mlperf_objects import NotWrittenError, Objects, Ranges

PART = 1 << 20


class Base:
    """The two types of the benchmark that a back end needs."""

    @dataclass
    class IOTiming:
        total: float
        device: float
        host: float


@pytest.fixture(scope="module")
def sidecar():
    with kvrail.serve(store="256MiB", segment="8MiB", block_mean="256KiB", members=2) as sidecar:
        yield sidecar


@pytest.fixture
def objects(client, request):
    return Objects(client, namespace=request.node.name, arena_bytes=16 * PART, part_bytes=PART)


def numbers(*shape: int, seed: int = 0) -> numpy.ndarray:
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float16)


def same(one: numpy.ndarray, other: numpy.ndarray) -> bool:
    shaped = (one.shape, one.dtype) == (other.shape, other.dtype)
    return shaped and one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "shape", [(0,), (1,), (2, 2, 77, 3), (PART // 2,), (PART // 2 + 1,), (4, 2, 300, 1009)]
)
def test_an_object_comes_back_whatever_its_parts_are(objects, shape):
    array = numbers(*shape)
    wrote = objects.write("user_0001_req_3", array)
    back, took = objects.read("user_0001_req_3")
    assert same(back, array)
    for timing in (wrote, took):
        assert timing.total >= timing.device >= 0 and timing.host >= 0


def test_the_four_methods_of_the_benchmark(objects):
    back_end = mlperf_kv.kvrail_back_end(Base, objects)("anywhere")
    first, second = numbers(5 * PART // 2, seed=1), numbers(3 * PART // 2, seed=2)
    timing = back_end.write("a", first)
    assert isinstance(timing, Base.IOTiming)
    assert timing.total == pytest.approx(timing.device + timing.host)
    back_end.write("b", second)
    data, timing = back_end.read("a")
    assert isinstance(timing, Base.IOTiming) and same(data, first)
    back_end.delete("a")
    back_end.delete("a")
    with pytest.raises(KeyError, match="there is no object 'a'"):
        back_end.read("a")
    assert same(back_end.read("b")[0], second)
    back_end.clear()
    with pytest.raises(KeyError):
        back_end.read("b")


def test_what_is_deleted_or_replaced_leaves_no_parts(objects, client, request):
    space = client.store("kv").namespace(request.node.name, {"part_bytes": PART})
    objects.write("a", numbers(2 * PART, seed=1))
    assert space.usage()["blocks"] == 4
    later = numbers(3 * PART // 4, seed=2)
    objects.write("a", later)
    assert space.usage()["blocks"] == 2, "the first write's parts are dropped"
    assert same(objects.read("a")[0], later)
    objects.delete("a")
    assert space.usage()["blocks"] == 0


def test_an_object_without_one_part_is_not_there_and_the_others_go(objects, client, request):
    space = client.store("kv").namespace(request.node.name, {"part_bytes": PART})
    objects.write("a", numbers(2 * PART))
    objects.write("b", other := numbers(PART, seed=1))
    whole = objects._entries["a"].keys
    assert list(space.drop(whole[2:3])) == ["OK"]
    with pytest.raises(KeyError, match="object 'a' is not whole: 1 of 4 parts are MISS"):
        objects.read("a")
    assert not any(space.lookup(whole)), "no part stays of what cannot be read"
    with pytest.raises(KeyError, match="there is no object 'a'"):
        objects.read("a")
    assert same(objects.read("b")[0], other)


def test_a_part_of_another_length_is_no_part(objects, client, request):
    space = client.store("kv").namespace(request.node.name, {"part_bytes": PART})
    objects.write("a", numbers(PART))
    whole = objects._entries["a"].keys
    assert space.put_many(whole[1:2], [bytes(PART // 2)], replace=True).all_ok
    with pytest.raises(KeyError, match="not whole"):
        objects.read("a")


def test_of_a_declined_object_nothing_stays():
    """A store that was full once, and has no budget for more writes."""
    with kvrail.serve(store="16MiB", segment="1MiB") as sidecar, sidecar.attach() as client:
        config = sidecar.socket.parent / "kvrail.toml"
        config.write_text(config.read_text() + 'write_budget = "0.001dwpd"\n')
        os.kill(sidecar.pid, signal.SIGHUP)
        until("the budget is in force", lambda: "write_budget" in sidecar.log())
        objects = Objects(client, namespace="full", arena_bytes=4 << 20, part_bytes=64 << 10)
        space = client.store("kv").namespace("full", {"part_bytes": 64 << 10})
        deadline = time.monotonic() + 60
        for at in itertools.count():
            assert time.monotonic() < deadline
            held = space.usage()["blocks"]
            try:
                objects.write(f"{at}", numbers(128 << 10, seed=at))
            except NotWrittenError as error:
                why = str(error)
                if "'budget': 4" in why:
                    break
        assert f"object '{at}': 4 of 4 parts are DECLINED" in why
        assert space.usage()["blocks"] <= held
        with pytest.raises(KeyError, match="there is no object"):
            objects.read(f"{at}")


def test_an_array_stays_as_it_is_for_as_long_as_it_is_used(objects):
    """The arena has room for eight objects; a ninth has to wait for one that nobody uses."""
    arrays = [numbers(PART, seed=at) for at in range(8)]
    for at, array in enumerate(arrays):
        objects.write(f"{at}", array)
    kept = [objects.read(f"{at}")[0][1:] for at in range(8)]
    objects._patience = 0.1
    with pytest.raises(MemoryError, match="arrays that are still in use fill it"):
        objects.read("0")
    with pytest.raises(MemoryError, match="an object of 33554432 bytes in an arena of 16777216"):
        objects.write("large", numbers(16 * PART))
    assert all(same(one, other[1:]) for one, other in zip(kept, arrays, strict=True))
    objects._patience = 60.0
    timer = threading.Timer(0.2, kept.pop)
    timer.start()
    assert same(objects.read("3")[0], arrays[3]), "it came when an array went"
    timer.join()


def test_threads_share_the_arena_and_get_their_own_objects(objects):
    def traffic(thread: int) -> None:
        for turn in range(12):
            array = numbers(PART // 4 + 997 * (thread + turn), seed=100 * thread + turn)
            objects.write(f"{thread}", array)
            assert same(objects.read(f"{thread}")[0], array)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(traffic, range(8)))
    gc.collect()
    objects._patience = 1.0
    first, behind = objects._ranges.take(16 * PART, 1.0)
    assert (first, behind) == (0, 16 * PART), "every range came back, and they joined"


def test_a_new_process_never_reads_parts_of_an_old_one(objects, client, request):
    objects.write("a", numbers(PART))
    again = Objects(client, namespace=request.node.name, arena_bytes=4 * PART, part_bytes=PART)
    with pytest.raises(KeyError):
        again.read("a")
    again.write("a", other := numbers(PART, seed=1))
    assert same(again.read("a")[0], other)


def test_calls_after_a_kill_of_the_sidecar_end_with_its_error():
    with kvrail.serve(store="64MiB", segment="8MiB") as sidecar, sidecar.attach() as client:
        objects = Objects(client, arena_bytes=8 * PART, part_bytes=PART)
        tally = mlperf_kv.Tally()
        back_end = mlperf_kv.counted(mlperf_kv.kvrail_back_end(Base, objects), tally)()
        back_end.write("a", numbers(PART))
        sidecar.kill()
        for call in (lambda: back_end.read("a"), lambda: back_end.write("b", numbers(PART))):
            with pytest.raises(kvrail.SessionEndedError, match="attach again|sidecar went away"):
                call()
        lost = mlperf_kv.ends_of(tally)
        assert lost["failures"] == 2, "the benchmark would count them as bytes"
        assert all("SessionEndedError" in why for why in lost["failed"])
        assert (lost["read_bytes"], lost["write_bytes"]) == (0, 2 * PART)
        tally.end()
        with pytest.raises(kvrail.SessionEndedError):
            back_end.read("a")
        assert mlperf_kv.ends_of(tally) == lost, "the workload has ended"


def test_parts_that_no_block_may_have_are_refused(client):
    with pytest.raises(ValueError, match="a block of the store at most"):
        Objects(client, part_bytes=64 << 20)
    with pytest.raises(ValueError, match="multiples of"):
        Objects(client, part_bytes=PART + 1)


def test_ranges_join_whatever_comes_back_first():
    ranges = Ranges(10 * 4096 + 5, 4096)
    taken = [ranges.take(4096, 0) for _ in range(10)]
    with pytest.raises(MemoryError):
        ranges.take(1, 0)
    for at in (3, 1, 2, 9):
        ranges.give_back(taken[at])
    assert ranges.take(3 * 4096, 0) == (4096, 4 * 4096)
    assert ranges.take(1, 0) == taken[9]


def test_figures_are_those_of_the_benchmark_and_failures_are_seen():
    summary = {
        "avg_throughput_tokens_per_sec": 70.5,
        "total_requests": 9,
        "cache_stats": {"tier_storage_read_bandwidth_gbps": 1.5, "storage_read_p95_ms": 40.0},
    }
    found = mlperf_kv.figures(summary)
    assert (found["read_gib_s"], found["read_p95_ms"], found["tokens_s"]) == (1.5, 40.0, 70.5)
    assert found["write_p95_ms"] is None, "a turn without writes has none"
    latencies = ((3.0, None), (1.0, 5.0), (2.0, 7.0))
    turns = [{"arm": "files", "failed": {}, "cpu_seconds": cpu, "read_p95_ms": p95}
             for cpu, p95 in latencies]
    assert mlperf_kv.medians(turns) == {"arm": "files", "cpu_seconds": 2.0, "read_p95_ms": 6.0}
    never = [it | {"read_p95_ms": None} for it in turns]
    assert mlperf_kv.medians(never)["read_p95_ms"] is None


PAGE = (Path(__file__).parents[3] / "docs" / "comparisons.md").read_text()


def fences(title: str) -> str:
    """A command of the page, as one line."""
    found = re.search(rf"^```sh title={title}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no {title}"
    return found[1].replace("\\\n", " ")


@pytest.mark.parametrize(
    ("title", "model"), [("mlperf", "tiny-1b"), ("mlperf-whole", "llama3.1-8b")]
)
def test_the_commands_of_the_page_run_the_benchmark_as_described(
    title, model, tmp_path, monkeypatch
):
    (tmp_path / "storage" / "kv_cache_benchmark" / "kv_cache").mkdir(parents=True)
    (tmp_path / "storage" / "kv_cache_benchmark" / "kv_cache" / "backends.py").touch()
    (line,) = [it for it in fences(title).splitlines() if "mlperf_kv.py" in it]
    program, _, rest = line.partition("mlperf_kv.py")
    assert Path(__file__).parents[3].joinpath(program.split()[-1] + "mlperf_kv.py").exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mlperf_kv.py", *shlex.split(rest.partition(">")[0])])
    given = mlperf_kv.options()
    passed = mlperf_kv.passed_on(given)
    assert (given.rounds, given.format) == (3, "json")
    assert passed[passed.index("--model") + 1] == model
    assert passed[passed.index("--generation-mode") + 1] == "none"


def test_options_behind_the_dashes_prevail_and_unknown_arms_are_refused(tmp_path, monkeypatch):
    (tmp_path / "kv_cache_benchmark" / "kv_cache").mkdir(parents=True)
    checkout = tmp_path / "kv_cache_benchmark" / "kv_cache" / "backends.py"
    words = ["mlperf_kv.py", str(tmp_path), "--option", "3", "--", "--num-users", "5"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        mlperf_kv.options()
    checkout.touch()
    passed = mlperf_kv.passed_on(mlperf_kv.options())
    assert passed[-2:] == ["--num-users", "5"] and passed.index("--num-users") < len(passed) - 2
    assert "llama3.1-70b-instruct" in passed
    monkeypatch.setattr(sys, "argv", ["mlperf_kv.py", str(tmp_path), "--arms", "files,other"])
    with pytest.raises(SystemExit):
        mlperf_kv.options()


def test_the_tier_of_the_page_is_the_one_that_vllms_page_documents():
    line = fences("agentx-server")
    given = json.loads(re.search(r"--kv-transfer-config '(.*?)'", line, re.DOTALL)[1])
    extra = given["kv_connector_extra_config"]
    (tier,) = extra["secondary_tiers"]
    page = (Path(__file__).parents[3] / "docs" / "engines" / "vllm.md").read_text()
    assert tier["type"] == "kvrail" and extra["spec_name"] == "TieringOffloadingSpec"
    assert all(f"| `{key}` |" in page for key in tier if key != "type")
    whole = re.search(r"vllm serve MODEL --kv-transfer-config '(.*?)'", page, re.DOTALL)[1]
    known = json.loads(whole)
    assert extra.keys() <= known.pop("kv_connector_extra_config").keys()
    assert all(given[key] == value for key, value in known.items())
