"""`kvrail engines`: installed engines, lines to paste, whether blocks are copied."""

import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvrail
import pytest
from host import Host
from kvrail import engines
from kvrail._binary import binary
from kvrail.engines import ENGINES, require


def run(
    *arguments: str, folder: Path | None = None, packages: str = ""
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(kvrail.__file__).parents[1]), *packages.split()])
    environment = os.environ | {"KVRAIL_CONFIG": "/dev/null", "PYTHONPATH": paths}
    command = [str(binary()), "engines", *arguments]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def report(*arguments: str) -> dict[str, Any]:
    done = run("--python", sys.executable, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=["accept", "refuse"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(tmp_path, unsealed=request.param)
    host.start()
    yield host
    host.kill()


def test_all_engines_are_reported_with_versions_and_configuration(tmp_path):
    answer = report("--socket", str(tmp_path / "nowhere"), "--store", "mine")
    assert answer["python"] == sys.executable
    assert {it["name"] for it in answer["engines"]} == set(ENGINES)
    for it in answer["engines"]:
        assert it["oldest_tested"] and it["newest_tested"] and it["verdict"]
        assert str(tmp_path / "nowhere") in it["configuration"]
        assert "mine" in it["configuration"]
        assert it["copies"]["avoided"] is None and "no sidecar" in it["copies"]["why"]


def test_copies_agree_with_the_sidecar(host):
    for it in report("--socket", str(host.socket))["engines"]:
        refused = "unsealed" in it["copies"]["why"]
        assert it["copies"]["avoided"] is not refused
        assert refused == (host.unsealed == "refuse")


@pytest.mark.parametrize("limit", ["64GiB", None], ids=["exactly", "default"])
def test_the_memory_of_the_printed_line_is_what_is_tried(tmp_path, limit):
    """The adapter's own queues count, too: a limit of just the engine's memory is too small."""
    host = Host(tmp_path, arena_bytes=limit)
    host.start()
    for it in report("--socket", str(host.socket))["engines"]:
        assert it["copies"]["avoided"] is (limit is None), it
        words = "tried with 64 GiB" if limit is None else "limits.arena_bytes_per_session"
        assert words in it["copies"]["why"]
        printed = {"vllm": f'"cpu_bytes_to_use": {64 << 30}', "lmcache": "--l1-size-gb 64 "}
        assert printed.get(it["name"], "") in it["configuration"]
    host.kill()


@pytest.mark.parametrize("option", ["never", "within_size"])
def test_pages_are_those_that_dev_shm_has(option):
    mount = ["mount", "-t", "tmpfs", "-o", f"huge={option},size=16m", "tmpfs", "/dev/shm"]
    own = ["unshare", "-m", "--", "sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are forbidden here, or this kernel has no large pages")
    look = [sys.executable, str(Path(kvrail.__file__).with_name("engines.py")), "--format", "json"]
    done = subprocess.run([*own, *look], capture_output=True, text=True, check=True)
    pages = {it["name"]: it["pages"] for it in json.loads(done.stdout)["engines"]}
    assert pages["vllm"] == pages["lmcache"]
    assert pages["vllm"]["huge"] is (option == "within_size")
    assert ("remount,huge=within_size" in pages["vllm"]["why"]) is (option == "never")


def test_configurations_are_json_that_shells_take(tmp_path):
    for it in report("--socket", "/run/s")["engines"]:
        quoted = it["configuration"].split("'")
        assert len(quoted) == 3 and json.loads(quoted[1])


def test_a_python_that_is_not_there_is_named():
    done = run("--python", "/nonexistent/python")
    assert done.returncode == 2 and "/nonexistent/python" in done.stderr
    assert "remedy" in done.stderr


def test_a_try_without_the_engine_ends_at_once_and_names_it(tmp_path):
    missing = [name for name in ENGINES if not _is_installed(name)]
    for name in missing:
        done = run("try", name, "--python", sys.executable, "--format", "json")
        assert done.returncode == 1
        [step] = json.loads(done.stdout)["steps"]
        assert not step["ok"]
        assert f"{name} is not installed in {sys.executable}" in step["error"]
        _is_a_table(run("try", name, "--python", sys.executable), "is not installed in")


def test_a_try_without_kvrail_names_the_missing_package():
    engines = Path(kvrail.__file__).with_name("engines.py")
    alone = [sys.executable, "-I", "-S", str(engines), "--try", "vllm"]
    done = subprocess.run(alone, capture_output=True, text=True, check=False)
    _is_a_table(done, "kvrail is not installed in")


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_try_without_a_sidecar_names_its_socket(name, tmp_path, with_engine):
    socket = tmp_path / "nowhere"
    _is_a_table(with_engine(name, "--socket", str(socket)), str(socket))


def test_a_try_without_the_store_names_it(host, with_engine):
    done = with_engine("vllm", "--socket", str(host.socket), "--store", "elsewhere")
    _is_a_table(done, "elsewhere")


def test_a_folder_of_that_name_is_no_package(tmp_path):
    (tmp_path / "kvrail").mkdir()
    done = run("--python", sys.executable, "--socket", str(tmp_path / "s"), folder=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.fixture
def with_engine(tmp_path, monkeypatch):
    """Tries an engine with nothing but its metadata."""

    def attempt(name: str, *more: str) -> subprocess.CompletedProcess[str]:
        distribution = ENGINES[name].distribution
        about = tmp_path / "packages" / f"{distribution}-99.0.dist-info"
        about.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 99.0\n"
        (about / "METADATA").write_text(text)
        more_paths = str(tmp_path / "packages")
        return run("try", name, "--python", sys.executable, *more, packages=more_paths)

    return attempt


def _is_a_table(done: subprocess.CompletedProcess[str], words: str) -> None:
    """The steps are shown, the last one failed with the reason, and no traceback is printed."""
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.strip().startswith("FAILED") and words in last, done.stdout


@pytest.mark.parametrize("name", list(ENGINES))
def test_an_engine_that_is_too_old_is_refused_by_name(name, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.0.9")
    sys.modules.pop(f"kvrail.{name}", None)
    with pytest.raises(ImportError, match=f"0.0.9 is too old.*{ENGINES[name].oldest} or later"):
        importlib.import_module(f"kvrail.{name}")


def test_a_newer_one_is_warned_of_and_a_tested_one_is_not(monkeypatch, caplog):
    for version, words in (("99.1", ["99.1", "newer than 0.33.0"]), ("0.31.0", [])):
        caplog.clear()
        monkeypatch.setattr(importlib.metadata, "version", lambda _, it=version: it)
        require("vllm")
        assert [all(it in caplog.text for it in words), bool(caplog.records)] == [True, bool(words)]


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("lmcache", "0.5.7rc2", "newer than 0.5.6"),
        ("lmcache", "0.5.6rc1", "too old: kvrail needs 0.5.6"),
        ("lmcache", "0.5.6.post1", "newer than 0.5.6"),
        ("lmcache", "0.5.6+cu128", "tested"),
        ("lmcache", "0.5.10", "newer than 0.5.6"),
        ("sglang", "0.5.24rc0", "newer than 0.5.23"),
        ("vllm", "0.30.0rc1", "too old: kvrail needs 0.30.0"),
        ("vllm", "0.30.1rc1", "a pre-release"),
        ("vllm", "0.33.1rc1", "newer than 0.33.0"),
        ("vllm", "0.33.1rc1.dev42+g0123abc.cu129", "newer than 0.33.0"),
        ("vllm", "0.33", "tested"),
        ("vllm", "nightly", "no number"),
    ],
)
def test_versions_are_read_as_pep_440_says(name, version, words):
    verdict = engines._verdict(version, ENGINES[name])
    assert verdict.removeprefix("of a version that is ").startswith(words)


def test_versions_are_ordered_as_packaging_orders_them():
    packaging = pytest.importorskip("packaging.version")
    texts = """1.0.dev1 1.0a1.dev2 1.0a1 1.0alpha2 1.0b1 1.0rc1 1.0rc1.post1 1.0 1.0.0
        1.0.post1.dev1 1.0.post1 1.0-2 1.0.rev5 1.0.1 0.33.1rc1.dev12 0.33.0 1!0.1 v2.0
        2.0c3 2.0.preview4 0.5.7rc2 0.5.6 1.10 1.9""".split()
    for one, other in itertools.product(texts, texts):
        ours, theirs = engines._order(one), engines._order(other)
        right = packaging.Version(one), packaging.Version(other)
        assert (ours < theirs, ours == theirs) == (right[0] < right[1], right[0] == right[1])
        assert ours.is_before == right[0].is_prerelease


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
