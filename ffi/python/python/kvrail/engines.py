"""Which engines a Python has, and how kvrail is put under them: `kvrail engines` runs this file.

The search needs nothing but Python; `try` needs the kvrail package in the engine's environment.
"""

import argparse
import importlib.metadata
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, NamedTuple

SOCKET = "/run/kvrail/kvrail.sock"
TRY = "try it with `kvrail engines try`"
SHM, MEMFD = "/dev/shm", "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
HUGE_BYTES = 2 << 20

HOST_BYTES = 64 << 30
"""Host memory of an engine, in the lines to paste."""

OWN_BYTES = 16 << 20
"""Bytes of an adapter's queues under the same limit, at most."""

log = logging.getLogger("kvrail")


@dataclass(frozen=True)
class Engine:
    """An engine that kvrail has a module for."""

    distribution: str
    module: str
    oldest: str
    """The oldest release that is tested; older ones are refused."""
    newest: str
    """The newest release that is tested."""
    memory: str
    """The setting that makes the engine's memory a file that the sidecar can map."""
    pages: str
    """The kind of that file, which decides its page size: SHM or MEMFD."""


ENGINES = {
    "vllm": Engine(
        "vllm",
        "kvrail.vllm",
        "0.30.0",
        "0.33.0",
        "vLLM's primary tier always is a file below /dev/shm",
        SHM,
    ),
    "lmcache": Engine(
        "lmcache",
        "kvrail.lmcache",
        "0.5.6",
        "0.5.6",
        "LMCache's L1 is a file below /dev/shm with --no-l1-use-lazy --shm-name NAME",
        SHM,
    ),
    "sglang": Engine(
        "sglang",
        "kvrail.sglang",
        "0.5.23",
        "0.5.23",
        'SGLang\'s host pools are memory files with "allocator": "shm"',
        MEMFD,
    ),
}


@dataclass(frozen=True)
class Copies:
    """Whether blocks go between the engine's memory and the drives without a copy."""

    avoided: bool | None
    """None while no sidecar answers."""
    why: str


@dataclass(frozen=True)
class Pages:
    """Whether the engine's memory would have pages of 2 MiB: drives take far fewer pieces then."""

    huge: bool
    why: str


@dataclass(frozen=True)
class Found:
    """State of an engine in this Python."""

    name: str
    version: str | None
    oldest_tested: str
    newest_tested: str
    verdict: str
    configuration: str
    copies: Copies
    pages: Pages


@dataclass
class Tried:
    """Result of a try."""

    engine: str
    version: str
    ok: bool = True
    steps: list[dict[str, Any]] = field(default_factory=list)


def look(socket: str, store: str) -> dict[str, Any]:
    """This Python, and the engines in it."""
    copies = _copies(socket)
    found = [_found(name, engine, socket, store, copies) for name, engine in ENGINES.items()]
    return {
        "python": sys.executable,
        "kvrail": _version("kvrail"),
        "engines": [asdict(it) for it in found],
    }


def _found(name: str, engine: Engine, socket: str, store: str, copies: Copies) -> Found:
    version = _version(engine.distribution)
    verdict = "not installed" if version is None else _verdict(version, engine)
    if copies.avoided:
        copies = Copies(True, f"{engine.memory}; tried with {HOST_BYTES >> 30} GiB")
    configuration = CONFIGURATIONS[name](socket, store)
    about = (engine.oldest, engine.newest, verdict, configuration, copies, _pages(engine.pages))
    return Found(name, version, *about)


def _verdict(version: str, engine: Engine) -> str:
    if (order := _order(version)) is None:
        return f"of a version that is no number, so it may be untested: {TRY}"
    oldest, newest = _order(engine.oldest), _order(engine.newest)
    assert oldest is not None and newest is not None, "the table has versions"
    if order < oldest:
        return f"too old: kvrail needs {engine.oldest} or later"
    if order > newest:
        return f"newer than {engine.newest}, the newest that was tested: {TRY}"
    if order.is_before:
        return f"a pre-release, and only releases up to {engine.newest} were tested: {TRY}"
    return "tested"


def require(name: str) -> None:
    """Refuses an engine that is too old, and warns of one that is newer than the tested releases.
    Its module calls this before it imports the engine, whose names differ between releases."""
    engine = ENGINES[name]
    version = _version(engine.distribution)
    verdict = "tested" if version is None else _verdict(version, engine)
    if verdict.startswith("too old"):
        raise ImportError(f"{engine.module}: {engine.distribution} {version} is {verdict}")
    if verdict != "tested":
        log.warning("%s: %s %s is %s", engine.module, engine.distribution, version, verdict)


def _vllm(socket: str, store: str) -> str:
    tier: dict[str, str | bool] = {"type": "kvrail", "socket": socket, "store": store}
    tier |= {"locality": "LOCAL", "enable_kv_events": True}
    tiering = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": HOST_BYTES,
        "block_size": 256,
        "self_describing_kv_events": True,
        "secondary_tiers": [tier],
    }
    whole = {
        "kv_connector": "KvrailOffloadingConnector",
        "kv_connector_module_path": "kvrail.vllm_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": tiering,
    }
    return f"vllm serve MODEL --kv-transfer-config '{json.dumps(whole)}'"


def _lmcache(socket: str, store: str) -> str:
    adapter = {"type": "plugin", "module_path": "kvrail.lmcache", "class_name": "L2Adapter"}
    whole = adapter | {"adapter_params": {"socket": socket, "store": store}}
    return (
        f"lmcache server --l1-size-gb {HOST_BYTES >> 30} --eviction-policy LRU "
        "--no-l1-use-lazy --shm-name kv --l1-align-bytes 4096 "
        f"--l2-adapter '{json.dumps(whole)}'"
    )


def _sglang(socket: str, store: str) -> str:
    storage = {"backend_name": "kvrail", "module_path": "kvrail.sglang", "class_name": "Storage"}
    whole = storage | {"interface_v1": 1, "allocator": "shm", "socket": socket, "store": store}
    whole |= {"hicache_storage_pass_prefix_keys": True}
    return (
        "python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache "
        "--hicache-mem-layout page_first --hicache-storage-backend dynamic "
        f"--hicache-storage-backend-extra-config '{json.dumps(whole)}'"
    )


CONFIGURATIONS = {"vllm": _vllm, "lmcache": _lmcache, "sglang": _sglang}


def _copies(socket: str) -> Copies:
    """Sends the sidecar the request of every engine here: to map an unsealed file, as large as the
    engine's memory."""
    try:
        import kvrail
    except ImportError:
        return Copies(None, "this Python has no kvrail package: install its wheel there")
    name = f"/dev/shm/kvrail-engines-{os.getpid()}"
    try:
        with kvrail.Client(socket, name="engines", timeout=5.0) as client, open(name, "x+b") as it:
            os.posix_fallocate(it.fileno(), 0, 2 << 20)
            client.import_arena(it, 2 << 20).close()
            _ask_for_all(client)
            return Copies(True, "")
    except kvrail.NoSidecarError:
        return Copies(None, f"no sidecar answers at {socket}")
    except (kvrail.KvrailError, OSError) as error:
        return Copies(False, str(error))
    finally:
        if os.path.exists(name):
            os.unlink(name)


def _ask_for_all(client: Any) -> None:
    """Raises if an engine's memory is beyond a limit of the sidecar. A file without pages costs
    nothing, and is refused for lack of pages, but not before its size has passed the limits."""
    import kvrail

    fd = os.memfd_create("kvrail-engines")
    try:
        os.ftruncate(fd, HOST_BYTES + OWN_BYTES)
        client.import_arena(fd, HOST_BYTES + OWN_BYTES).close()
    except kvrail.QuotaError:
        raise
    except kvrail.KvrailError:
        pass
    finally:
        os.close(fd)


def _pages(kind: str) -> Pages:
    """Pages of a file of that kind. Memory that CUDA has pinned stays as it is, so
    the host has to be set up before the engine starts."""
    remedy = f"`echo within_size > {MEMFD}`"
    try:
        if kind == SHM:
            remedy = "`mount -o remount,huge=within_size /dev/shm`"
            fd = os.open(SHM, os.O_TMPFILE | os.O_RDWR, 0o600)
        else:
            fd = os.memfd_create("kvrail-engines")
        try:
            os.ftruncate(fd, HUGE_BYTES)
            huge = os.fstat(fd).st_blksize >= HUGE_BYTES
        finally:
            os.close(fd)
    except OSError as error:
        return Pages(False, str(error))
    return Pages(huge, "" if huge else f"{remedy} before the engine starts makes them 2 MiB")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


_VERSION = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)"
    r"(?:[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?(\d*))?"
    r"(?:-(\d+)|[-_.]?(?:post|rev|r)[-_.]?(\d*))?"
    r"(?:[-_.]?(dev)[-_.]?(\d*))?(?:\+[a-z0-9._-]+)?"
)
"""As of PEP 440. `packaging` reads the same, but not every Python has it."""

_PHASES = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "pre": 3, "preview": 3}
_DEV, _FINAL = 0, 4


class _Order(NamedTuple):
    """Key of a comparison of versions."""

    epoch: int
    release: tuple[int, ...]
    phase: tuple[int, int]
    post: int
    dev: float

    @property
    def is_before(self) -> bool:
        """Whether it is no release yet."""
        return self.phase[0] != _FINAL or self.dev != inf


def _order(version: str) -> _Order | None:
    """Key of a version: 1.0.dev1 < 1.0a1 < 1.0rc1 < 1.0 < 1.0.post1. None if it is no
    version."""
    if (read := _VERSION.fullmatch(version.strip().lower())) is None:
        return None
    epoch, release, letter, number, dash, post, dev, build = read.groups()
    numbers = [int(it) for it in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    posts = -1 if dash is None and post is None else int(dash or post or 0)
    phase = (_PHASES[letter], int(number or 0)) if letter else (_FINAL, 0)
    if dev and letter is None and posts < 0:
        phase = (_DEV, 0)
    builds = int(build or 0) if dev else inf
    return _Order(int(epoch or 0), tuple(numbers), phase, posts, builds)


def text(told: dict[str, Any]) -> str:
    """The report, for people."""
    package = told["kvrail"] or "not installed here (pip install its wheel)"
    lines = [f"python {told['python']}, kvrail {package}"]
    for it in told["engines"]:
        lines.append(f"\n{it['name']}  {it['version'] or ''}  {it['verdict']}".rstrip())
        if it["version"] is None:
            continue
        avoided, why = it["copies"]["avoided"], it["copies"]["why"]
        word = {True: "avoided", False: "each block is copied once", None: "not known"}[avoided]
        lines.append(f"  tested   {it['oldest_tested']} to {it['newest_tested']}")
        lines.append(f"  copies   {word}: {why}")
        size = "2 MiB" if it["pages"]["huge"] else f"ordinary: {it['pages']['why']}"
        lines.append(f"  pages    {size}")
        lines.append(f"  use      {it['configuration']}")
    return "\n".join(lines)


def attempt(name: str, socket: str | None, store: str) -> Tried:
    """Puts blocks through the engine's own code into a store and back, and compares each byte."""
    tried = Tried(name, _version(ENGINES[name].distribution) or "not installed")

    @contextmanager
    def step(what: str) -> Iterator[dict[str, Any]]:
        told: dict[str, Any] = {"step": what, "ok": True}
        tried.steps.append(told)
        try:
            yield told
        except Exception as error:
            words = " ".join(str(error).split())
            told |= {"ok": False, "error": f"{type(error).__name__}: {words}"}
            tried.ok = False
            raise _Stopped from error

    try:
        with step("the engine and kvrail in this Python") as told:
            told["python"] = sys.executable
            try:
                from kvrail import _try
            except ImportError as why:
                raise ImportError(f"kvrail is not installed in {sys.executable}: {why}") from why
            distribution = ENGINES[name].distribution
            if _version(distribution) is None:
                raise ImportError(f"{distribution} is not installed in {sys.executable}")
        _try.attempt(name, socket, store, step)
    except _Stopped:
        pass
    return tried


class _Stopped(Exception):
    """A step has failed, and the rest makes no sense."""


def text_of_try(tried: Tried) -> str:
    """The result of a try, for people."""
    lines = [f"{tried.engine} {tried.version}"]
    for told in tried.steps:
        more = ", ".join(str(value) for key, value in told.items() if key not in ("step", "ok"))
        lines.append(f"  {'ok' if told['ok'] else 'FAILED':<7} {told['step']}: {more}")
    return "\n".join(lines)


def main() -> int:
    """The command `kvrail engines`: prints the report, or the result of a try."""
    parser = argparse.ArgumentParser(prog="kvrail engines")
    parser.add_argument("--try", dest="name", choices=sorted(ENGINES))
    parser.add_argument("--socket")
    parser.add_argument("--store", default="kv")
    parser.add_argument("--format", choices=("human", "json"), default="human")
    chosen = parser.parse_args()
    if chosen.name is None:
        told = look(chosen.socket or SOCKET, chosen.store)
        print(json.dumps(told, indent=2) if chosen.format == "json" else text(told))
        return 0
    tried = attempt(chosen.name, chosen.socket, chosen.store)
    print(json.dumps(asdict(tried), indent=2) if chosen.format == "json" else text_of_try(tried))
    return 0 if tried.ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader went away (`kvrail engines | head`): nothing is wrong.
        sys.stdout = None
