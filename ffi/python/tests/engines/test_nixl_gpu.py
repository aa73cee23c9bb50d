"""N1 for memory of a GPU: a GPU's where there is one, else that of a stand-in for NVIDIA's driver,
whose copies can be held and can fail."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nixl_agent
import numpy as np
import pytest
from nixl_agent import PLUGINS, SIZE, WHEEL, attempt, copied, keys_of, objects

HALF, RAW = 16 << 20, "16MiB"


def gpu_copied() -> int:
    it = ctypes.CDLL(str(PLUGINS / "libplugin_KVRAIL.so")).kvrail_nixl_gpu_copied_bytes
    it.restype = ctypes.c_uint64
    return it()


class Gpu:
    """Memory of a GPU, and what the stand-in for its driver can do."""

    def __init__(self, folder: Path) -> None:
        number = ctypes.c_int()
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
            self.is_real = self._driver.cuInit(0) == 0
        except OSError:
            self.is_real = False
        if not self.is_real:
            source, made = Path(__file__).with_name("standin_cuda.c"), folder / "libcuda.so.1"
            options = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{made.name}"]
            subprocess.run([os.environ.get("CC", "cc"), *options, source, "-o", made], check=True)
            # The plug-in loads that name, and gets the one that is loaded.
            self._driver = ctypes.CDLL(str(made))
        self._call("cuDeviceGet", ctypes.byref(number), 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self._call("cuCtxPushCurrent_v2", context)
        self.address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(2 * HALF))

    def _call(self, name: str, *arguments: Any) -> None:
        assert getattr(self._driver, name)(*arguments) == 0, name

    def __getitem__(self, place: slice) -> "np.ndarray[Any, Any]":
        out = np.empty(place.stop - place.start, np.uint8)
        at, nbytes = self.address.value + place.start, ctypes.c_size_t(out.nbytes)
        host = out.ctypes.data_as(ctypes.c_void_p)
        self._call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(at), nbytes)
        return out

    def __setitem__(self, place: slice, value: Any) -> None:
        given = np.empty(place.stop - place.start, np.uint8)
        given[:] = value
        at, nbytes = self.address.value + place.start, ctypes.c_size_t(given.nbytes)
        self._call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(at), given.ctypes.data_as(ctypes.c_void_p), nbytes
        )

    def standin(self, name: str) -> ctypes.c_size_t:
        if self.is_real:
            pytest.skip("only the stand-in does that on demand")
        kind = ctypes.c_size_t if name == "most_bytes" else ctypes.c_int
        return kind.in_dll(self._driver, f"standin_{name}")


class Agent(nixl_agent.Agent):
    """Written bytes are in the first half of a GPU's memory, read ones in the second."""

    def __init__(self, gpu: Gpu, backend: str, parameters: dict[str, str]) -> None:
        super().__init__(backend, parameters)
        self.gpu, self.half, self.base = gpu, HALF, gpu.address.value
        gpu[0:HALF] = np.random.default_rng(7).integers(0, 256, HALF, dtype=np.uint8)
        self.memory = [(self.base, 2 * HALF, 0, "")]
        self.nixl.register_memory(self.memory, "VRAM")

    def begin(self, work: str, at: list[int], there: list[tuple[Any, ...]], kind: str) -> Any:
        registered = self.nixl.register_memory(there, kind)
        local = [(self.base + it, size, 0) for it, (_, size, *_) in zip(at, there, strict=True)]
        handle = self.nixl.initialize_xfer(
            work, self.nixl.get_xfer_descs(local, "VRAM"), registered.trim(), self.name
        )
        return handle, registered, attempt(lambda: self.nixl.transfer(handle))

    def read(self, keys: list[str], size: int = SIZE) -> str:
        self.gpu[HALF : 2 * HALF] = 0
        return self.move("READ", [HALF + i * size for i in range(len(keys))], objects(keys, size))

    def same(self, total: int) -> bool:
        return bool((self.gpu[0:total] == self.gpu[HALF : HALF + total]).all())


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu(tmp_path_factory.mktemp("cuda"))


@pytest.mark.parametrize("size", [4096, 65536, 12345])
@pytest.mark.parametrize("backend", ["KVRAIL", "OBJ"])
def test_objects_come_back(host, gpu, backend, size):
    ours = {"socket": str(host.socket)}
    theirs = {"bucket": "models", "endpoint_override": str(host.socket)}
    agent = Agent(gpu, backend, ours if backend == "KVRAIL" else theirs)
    keys, before, on_host = keys_of(64), gpu_copied(), copied()
    assert agent.write(keys, size) == "DONE"
    assert agent.read(keys, size) == "DONE" and agent.same(64 * size)
    # Once in each direction, and by the GPU.
    assert gpu_copied() - before == 2 * 64 * size and copied() == on_host
    assert agent.read(["nothing", *keys]) == "NIXL_ERR_NOT_FOUND"
    assert agent.read(keys, 2 * size) == "NIXL_ERR_MISMATCH"


def test_what_a_gpu_wrote_the_host_reads(host, gpu):
    on_gpu = Agent(gpu, "KVRAIL", {"socket": str(host.socket)})
    on_host = nixl_agent.Agent("KVRAIL", {"socket": str(host.socket)})
    keys = keys_of(16)
    assert on_gpu.write(keys) == "DONE"
    assert on_host.read(keys) == "DONE"
    assert (on_host.bytes[on_host.half :] == gpu[0 : 16 * SIZE]).all()


def test_ranges_of_a_volume_come_back(host, gpu):
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket), "volume": "raw"})
    ranges = [(i * 2 * SIZE, SIZE, 0, "") for i in range(16)]
    assert agent.move("WRITE", [i * SIZE for i in range(16)], ranges, "BLK") == "DONE"
    gpu[HALF : 2 * HALF] = 0
    assert agent.move("READ", [HALF + i * SIZE for i in range(16)], ranges, "BLK") == "DONE"
    assert agent.same(16 * SIZE)


def test_parts_of_objects_are_read(host, gpu):
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket)})
    assert agent.write(["one"]) == "DONE"
    gpu[HALF : 2 * HALF] = 0
    assert agent.move("READ", [HALF + 5], [(4099, 8192, 1, "one")]) == "DONE"
    assert (gpu[HALF + 5 : HALF + 5 + 8192] == gpu[4099 : 4099 + 8192]).all()
    assert not gpu[HALF : HALF + 5].any() and not gpu[HALF + 8197 : 2 * HALF].any()


def test_requests_wait_for_little_staging_memory(host, gpu):
    parameters = {"socket": str(host.socket), "staging_bytes": str(2 << 20), "depth": "8"}
    agent = Agent(gpu, "KVRAIL", parameters)
    keys, each = keys_of(64), 256 << 10
    if not gpu.is_real:
        gpu.standin("most_bytes").value = 0
    # Two at once, and only the second is polled: the first must not keep all the memory.
    first = agent.begin("WRITE", [i * each for i in range(32)], objects(keys[:32], each), "OBJ")
    at = [i * each for i in range(32, 64)]
    assert agent.move("WRITE", at, objects(keys[32:], each)) == "DONE"
    assert agent.end(first) == "DONE"
    assert agent.read(keys, each) == "DONE" and agent.same(HALF)
    assert agent.move("WRITE", [0], objects(["large"], 3 << 20)) == "NIXL_ERR_INVALID_PARAM"
    if not gpu.is_real:
        assert 0 < gpu.standin("most_bytes").value <= 2 << 20


def test_a_request_is_not_done_before_its_copies_are(host, gpu):
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket)})
    holds, keys = gpu.standin("holds"), keys_of(16)
    for work, base in (("WRITE", 0), ("READ", HALF)):
        gpu[HALF : 2 * HALF] = 0
        holds.value = 1
        at = [base + i * SIZE for i in range(16)]
        begun = time.monotonic()
        request = agent.begin(work, at, objects(keys, SIZE), "OBJ")
        assert time.monotonic() - begun < 5
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert agent.nixl.check_xfer_state(request[0]) == "PROC"
        assert agent.there(keys) == [work == "READ"] * 16
        assert not gpu[HALF : HALF + SIZE].any()
        holds.value = 0
        assert agent.end(request) == "DONE"
    assert agent.same(16 * SIZE)


def test_a_release_waits_for_copies(host, gpu):
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket)})
    holds, keys = gpu.standin("holds"), keys_of(16)
    assert agent.write(keys) == "DONE"
    gpu[HALF : 2 * HALF] = 0
    holds.value = 1
    at = [HALF + i * SIZE for i in range(16)]
    handle, _, state = agent.begin("READ", at, objects(keys, SIZE), "OBJ")
    time.sleep(0.3)
    assert state == agent.nixl.check_xfer_state(handle) == "PROC"
    # Another process: a release may keep Python's lock.
    address = ctypes.addressof(holds)
    memory = f"/proc/{os.getpid()}/mem"
    code = f"sleep 0.7; printf '\\0' | dd of={memory} bs=1 seek={address} conv=notrunc"
    later = subprocess.Popen(["sh", "-c", code], stderr=subprocess.DEVNULL)
    begun = time.monotonic()
    agent.nixl.release_xfer_handle(handle)
    assert time.monotonic() - begun > 0.5
    assert later.wait() == 0
    gpu[HALF : 2 * HALF] = 9
    time.sleep(0.2)
    assert (gpu[HALF : 2 * HALF] == 9).all()


def test_a_sidecar_that_dies_ends_requests_and_is_found_again(host, gpu):
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket)})
    keys, other = keys_of(16), keys_of(16, "other")
    flying = agent.begin_both(host, keys, other)
    host.kill()
    for begun in flying:
        assert agent.end(begun, 10) == "NIXL_ERR_BACKEND"
    host.start()
    assert agent.read(keys) == "DONE" and agent.same(16 * SIZE)
    assert agent.write(other) == "DONE"
    assert agent.read(other) == "DONE" and agent.same(16 * SIZE)


def test_host_memory_is_not_registered_as_a_gpus(host, gpu, capfd):
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket)})
    memory = np.zeros(4096, np.uint8)
    with pytest.raises(Exception, match="NIXL_ERR"):
        agent.nixl.register_memory([(memory.ctypes.data, 4096, 0, "")], "VRAM")
    assert "no memory that CUDA knows on a GPU" in capfd.readouterr().err


def test_no_driver_is_one_clear_error(host):
    code = (
        f"from {WHEEL}._api import nixl_agent, nixl_agent_config\n"
        "agent = nixl_agent('a', nixl_agent_config(backends=[]))\n"
        f"agent.create_backend('KVRAIL', {{'socket': {str(host.socket)!r}}})\n"
        "agent.register_memory([(1 << 40, 4096, 0, '')], 'VRAM')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("kvrail for NIXL:")]
    if "needs NVIDIA's driver" in done.stderr:
        assert len(told) == 1 and "install it" in told[0] and "host memory (DRAM)" in told[0]
    else:  # There is one here.
        assert "no memory that CUDA knows on a GPU" in done.stderr


def test_a_copy_that_fails_is_never_success(host, gpu, capfd):
    """Last: a GPU that failed is given up for the session."""
    agent = Agent(gpu, "KVRAIL", {"socket": str(host.socket), "staging_bytes": str(16 * SIZE)})
    fails, keys = gpu.standin("fails"), keys_of(16)
    assert agent.write(keys) == "DONE"
    fails.value = 1
    try:
        # The first ones take the staging memory along; the last must not wait for it.
        for _ in range(3):
            assert agent.read(keys) == "NIXL_ERR_BACKEND"
        assert agent.write(keys_of(16, "other")) == "NIXL_ERR_BACKEND"
        assert agent.there(keys_of(16, "other")) == [False] * 16
    finally:
        fails.value = 0
    told = capfd.readouterr().err
    assert "CUDA_ERROR_LAUNCH_FAILED" in told and "restart the program" in told
    # Host memory of the same session goes on.
    on_host = nixl_agent.Agent("KVRAIL", {"socket": str(host.socket)})
    assert on_host.read(keys) == "DONE"
