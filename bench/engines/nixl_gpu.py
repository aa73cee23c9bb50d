"""N2 for memory of a GPU: nixl_transfers.py's script with VRAM instead of DRAM.

nixl_gpu.py PLUGINS [ROUNDS]: `gds` and `gds_mt` are NIXL's plug-ins of cuFile on a file, `uring +
copy` is its POSIX into pinned memory with a copy of all of it from or to the GPU, as one without
cuFile does it; `kvrail` and `kvrail keyed` as there. Every byte is compared. An arm that NIXL does
not let begin is left out, and said. JSON goes to standard output, a table to standard error.
"""

import ctypes
import mmap
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import DISK, Verdicts, folder, write
from nixl_transfers import (
    HALF,
    SHAPES,
    Arm,
    agent_of,
    in_file,
    in_store,
    in_volume,
    install,
    measure,
    show,
)

import kvrail
from kvrail import _cuda


class Gpu:
    """Memory of the first GPU, as an array is used."""

    def __init__(self) -> None:
        self.driver, context = _cuda.load(), ctypes.c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self.driver.call("cuCtxPushCurrent_v2", context)
        address, nbytes = ctypes.c_uint64(), ctypes.c_size_t(2 * HALF)
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        self.base = address.value

    def copy(self, way: str, place: int, host: int, nbytes: int) -> None:
        on_gpu, on_host = ctypes.c_uint64(self.base + place), ctypes.c_void_p(host)
        ends = (on_gpu, on_host) if way == "HtoD" else (on_host, on_gpu)
        self.driver.call(f"cuMemcpy{way}_v2", *ends, ctypes.c_size_t(nbytes))

    def __getitem__(self, place: slice) -> Any:
        start = place.start or 0
        out = np.empty(place.stop - start, np.uint8)
        self.copy("DtoH", start, out.ctypes.data, out.nbytes)
        return out

    def __setitem__(self, place: slice, value: Any) -> None:
        start = place.start or 0
        given = np.empty(place.stop - start, np.uint8)
        given[:] = value
        self.copy("HtoD", start, given.ctypes.data, given.nbytes)


@dataclass
class Through(Arm):
    """By way of host memory, with one copy for each request."""

    gpu: Any = None
    moved: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def descriptors(self, base: int, size: int, many: int) -> Any:
        it = super().descriptors(base, size, many)
        self.moved[id(it)] = (base - self.base, base, size * many)
        return it

    def move(self, work: str, here: Any, there: Any) -> None:
        if work == "WRITE":
            self.gpu.copy("DtoH", *self.moved[id(here)])
        super().move(work, here, there)
        if work == "READ":
            self.gpu.copy("HtoD", *self.moved[id(here)])


def pinned(gpu: Gpu) -> Any:
    memory = np.frombuffer(mmap.mmap(-1, 2 * HALF), np.uint8)
    memory[:] = 1
    base, nbytes = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
    gpu.driver.call("cuMemHostRegister_v2", base, nbytes, ctypes.c_uint(1))
    return memory


def arms_of(gpu: Gpu, host: Any, place: str, raw: Any, keyed: Any) -> list[Arm]:
    made, base = [], gpu.base
    for name, backend in (("gds", "GDS"), ("gds_mt", "GDS_MT")):
        try:
            agent = agent_of(name, backend, {}, base, "VRAM")
            arm = Arm(name, agent, "FILE", in_file(f"{place}/{name}"), base, None, "VRAM")
            registered = agent.register_memory(arm.places(0, 1 << 20, 1), "FILE")
            arm.move("WRITE", arm.descriptors(base, 1 << 20, 1), registered.trim())
            agent.deregister_memory(registered)
        except (Exception, SystemExit) as error:
            print(f"     {name} is left out: {error}", file=sys.stderr)
            continue
        made.append(arm)
    host_base = host.ctypes.data
    uring = agent_of("uring + copy", "POSIX", {"use_uring": "true"}, host_base)
    file = in_file(f"{place}/uring")
    made.append(Through("uring + copy", uring, "FILE", file, host_base, None, "DRAM", gpu))
    volume = {"socket": str(raw.socket), "volume": "kv"}
    ours = agent_of("kvrail", "KVRAIL", volume, base, "VRAM")
    made.append(Arm("kvrail", ours, "BLK", in_volume, base, raw.pid, "VRAM"))
    ours = agent_of("kvrail keyed", "KVRAIL", {"socket": str(keyed.socket)}, base, "VRAM")
    made.append(Arm("kvrail keyed", ours, "OBJ", in_store, base, keyed.pid, "VRAM"))
    return made


def main() -> int:
    plugins, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    install(plugins)
    gpu, sizes = Gpu(), {}
    host = pinned(gpu)
    with (
        folder() as place,
        kvrail.serve("128MiB", directory=DISK, settings={"device.direct": "required"}) as raw,
        kvrail.serve(
            store="4GiB",
            directory=DISK,
            settings={"device.direct": "required"},
            block_mean="16KiB",
            segment="64MiB",
        ) as keyed,
    ):
        arms = arms_of(gpu, host, place, raw, keyed)
        for size, many in SHAPES:
            name = f"{many} x {size >> 10} KiB"
            sizes[name] = measure(gpu, arms, size, many, rounds)
            show(name, sizes[name], size, many)
        for arm in arms:
            del arm.agent
    return write({"rounds": rounds, "sizes": sizes}, Verdicts())


if __name__ == "__main__":
    sys.exit(main())
