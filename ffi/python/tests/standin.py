"""A GPU's memory for machines without one: memory files, and tensors that lie in them."""

import ctypes
import fcntl
import mmap
import os

import numpy
from kvrail import gpu

SETTINGS = {
    "gpu.devices": '["stand-in:0"]',
    "gpu.staging_bytes": "4MiB",
    "gpu.staging_slot_bytes": "256KiB",
}
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Allocation:
    """Memory that stands in for an allocation on a GPU."""

    def __init__(self, nbytes: int) -> None:
        self.fd = os.memfd_create("stand-in", os.MFD_ALLOW_SEALING)
        os.posix_fallocate(self.fd, 0, nbytes)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        self.map = mmap.mmap(self.fd, nbytes)
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def descriptor(self) -> gpu.Memory:
        return gpu.Memory(self.nbytes, file=self.fd, address=self.address)

    def legacy(self, offset: int = 0) -> gpu.Memory:
        handle = f"{os.getpid()}/{self.fd}".encode().ljust(64, b"\0")
        nbytes, address = self.nbytes - offset, self.address + offset
        return gpu.Memory(nbytes, handle=handle, offset=offset, address=address)


class Tensor:
    """A tensor on a GPU by its attributes; its bytes are NumPy's."""

    def __init__(self, array: numpy.ndarray) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict:
        return {**self.array.__array_interface__, "version": 3}


class Cache:
    """K and V of some layers, each a tensor [blocks, tokens, heads, size], in one allocation each
    layer: descriptors, or legacy handles at an offset inside of their allocations."""

    SHAPE = (16, 4, 64)

    def __init__(self, layers: int, blocks: int, legacy: bool = False) -> None:
        self.blocks = blocks
        each = blocks * int(numpy.prod(self.SHAPE)) * 2
        self.allocations = [Allocation(4096 + 2 * each) for _ in range(layers)]
        self.tensors = []
        for allocation in self.allocations:
            for start in (4096, 4096 + each):
                flat = numpy.frombuffer(allocation.map, numpy.float16, each // 2, start)
                self.tensors.append(Tensor(flat.reshape(blocks, *self.SHAPE)))
        its = self.allocations
        self.memories = [it.legacy(4096) if legacy else it.descriptor() for it in its]

    def layout(self, uuid: str) -> gpu.Layout:
        return gpu.paged(self.tensors, memories=self.memories, gpu=uuid)

    def fill(self, seed: int) -> None:
        random = numpy.random.default_rng(seed)
        for tensor in self.tensors:
            tensor.array.view(numpy.uint16)[:] = random.integers(0, 1 << 16, tensor.array.shape)

    def clear(self) -> None:
        for tensor in self.tensors:
            tensor.array[:] = 0

    def block(self, index: int) -> bytes:
        return b"".join(tensor.array[index].tobytes() for tensor in self.tensors)
