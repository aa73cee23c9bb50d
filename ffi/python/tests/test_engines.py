"""`kvrail engines`: what is installed, what to paste, whether blocks are copied."""

import importlib.metadata
import importlib.util
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
from kvrail._binary import binary
from kvrail.engines import ENGINES, require


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    package = str(Path(kvrail.__file__).parents[1])
    environment = os.environ | {"KVRAIL_CONFIG": "/dev/null", "PYTHONPATH": package}
    command = [str(binary()), "engines", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def told(*arguments: str) -> dict[str, Any]:
    done = run("--python", sys.executable, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=["accept", "refuse"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(tmp_path, unsealed=request.param)
    host.start()
    yield host
    host.kill()


def test_all_engines_are_told_of_with_versions_and_configuration(tmp_path):
    answer = told("--socket", str(tmp_path / "nowhere"), "--store", "mine")
    assert answer["python"] == sys.executable
    assert {it["name"] for it in answer["engines"]} == set(ENGINES)
    for it in answer["engines"]:
        assert it["oldest_tested"] and it["newest_tested"] and it["verdict"]
        assert str(tmp_path / "nowhere") in it["configuration"]
        assert "mine" in it["configuration"]
        assert it["copies"]["avoided"] is None and "no sidecar" in it["copies"]["why"]


def test_copies_are_as_the_sidecar_says(host):
    for it in told("--socket", str(host.socket))["engines"]:
        refused = "unsealed" in it["copies"]["why"]
        assert it["copies"]["avoided"] is not refused
        assert refused == (host.unsealed == "refuse")


@pytest.mark.parametrize("option", ["never", "within_size"])
def test_pages_are_those_that_dev_shm_has(option):
    mount = ["mount", "-t", "tmpfs", "-o", f"huge={option},size=16m", "tmpfs", "/dev/shm"]
    own = ["unshare", "-m", "--", "sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh"]
    if subprocess.run([*own, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("nobody may mount here, or this kernel has no large pages")
    look = [sys.executable, str(Path(kvrail.__file__).with_name("engines.py")), "--format", "json"]
    done = subprocess.run([*own, *look], capture_output=True, text=True, check=True)
    pages = {it["name"]: it["pages"] for it in json.loads(done.stdout)["engines"]}
    assert pages["vllm"] == pages["lmcache"]
    assert pages["vllm"]["huge"] is (option == "within_size")
    assert ("remount,huge=within_size" in pages["vllm"]["why"]) is (option == "never")


def test_configurations_are_json_that_shells_take(tmp_path):
    for it in told("--socket", "/run/s")["engines"]:
        quoted = it["configuration"].split("'")
        assert len(quoted) == 3 and json.loads(quoted[1])


def test_a_python_that_is_not_there_is_named():
    done = run("--python", "/nonexistent/python")
    assert done.returncode == 2 and "/nonexistent/python" in done.stderr
    assert "remedy" in done.stderr


def test_a_try_without_the_engine_fails_by_its_step(tmp_path):
    missing = [name for name in ENGINES if not _is_installed(name)]
    for name in missing:
        done = run("try", name, "--python", sys.executable, "--format", "json")
        assert done.returncode == 1
        steps = json.loads(done.stdout)["steps"]
        assert not steps[-1]["ok"] and "No module named" in steps[-1]["error"]


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


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
