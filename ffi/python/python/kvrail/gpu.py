"""Paged KV caches in GPU memory: from tensors to the layout that a region is attached with.

:meth:`kvrail.Client.gpu_region` does all of this for a list of tensors. Use this module to describe
a cache by hand: memory that you exported yourself, fragments that are no tensors.

A block of a cache is scattered: one run of bytes for each layer's K and V, or for a layer of an MLA
model. A :class:`Layout` names each run once, as a :class:`Fragment`: where it begins for block 0,
how far the next block's is, and how long it is. The bytes of a block are its fragments, one after
the other.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kvrail import _cuda
from kvrail.errors import LayoutError, TensorError

__all__ = ["Fragment", "Layout", "Memory", "Pages", "Span", "paged", "pages"]

_UNIT = 16


class HasFileno(Protocol):
    """Something with a descriptor."""

    def fileno(self) -> int: ...


@dataclass(frozen=True)
class Memory:
    """Memory of this process on a GPU, as it was exported: ``file`` or ``handle``."""

    nbytes: int
    """Bytes that fragments may lie in; with ``file`` the exact size of the allocation."""
    file: int | HasFileno | None = None
    """A descriptor of CUDA's virtual memory management; for a stand-in a sealed memfd."""
    handle: bytes = b""
    """The 64 bytes of ``cudaIpcGetMemHandle``."""
    offset: int = 0
    """With ``handle``: first byte of the memory in the allocation."""
    address: int = 0
    """Where it begins in this process, for :func:`paged` to find tensors in it."""


class Fragment(NamedTuple):
    """One run of bytes of every block; all numbers are multiples of 16."""

    memory: int
    """Place in :attr:`Layout.memories`."""
    base: int
    """First byte of block 0's run in that memory."""
    stride: int
    """Bytes from one block's to the next block's."""
    nbytes: int
    """Its bytes, at least 512."""


@dataclass(frozen=True)
class Layout:
    """A paged KV cache on one GPU."""

    gpu: str
    """UUID of the GPU, as ``nvidia-smi -L`` prints it."""
    blocks: int
    """Blocks of the cache."""
    memories: Sequence[Memory]
    """Memories of the fragments; at most 256."""
    fragments: Sequence[Fragment]
    """The fragments of every block, in the order of its bytes; at most 1,024."""
    keep: object = field(default=None, repr=False)
    """The memory's owner: the region keeps it until the sidecar has released it."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return sum(fragment.nbytes for fragment in self.fragments)


@dataclass(frozen=True)
class _View:
    """Where a tensor's elements are; strides in bytes."""

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def end(self) -> int:
        pairs = zip(self.shape, self.strides, strict=True)
        return self.address + sum((n - 1) * stride for n, stride in pairs) + self.itemsize


@dataclass(frozen=True)
class _Runs:
    """The runs of a tensor in every block."""

    blocks: int
    stride: int
    starts: list[int]
    nbytes: int


def paged(
    tensors: Iterable[Any],
    block_dim: int = 0,
    *,
    memories: Sequence[Memory] | None = None,
    gpu: str | None = None,
) -> Layout:
    """The layout of a cache that consists of these tensors.

    A block is what all tensors have at one index of ``block_dim``, one tensor after the other:
    pass K and V of layer 0, K and V of layer 1, ... each of shape ``[blocks, ...]``; for an MLA
    model one tensor a layer. Any dtype, any order of the other dimensions, as long as runs of at
    least 512 bytes lie together. All tensors of a layout have the same number of blocks: groups of
    a hybrid model with block tables of their own are layouts (and regions) of their own.

    Tensors are PyTorch's, or anything with ``__cuda_array_interface__``. Their memory is exported
    by the CUDA driver that this process uses; ``memories`` and ``gpu`` are for programs that have
    exported theirs, with addresses.
    """
    tensors = _listed(tensors)
    views, runs = _measured(tensors, block_dim)
    if memories is None:
        gpu, memories = _export(views)
    elif gpu is None:
        raise LayoutError("memories that you exported need the UUID of their GPU: pass gpu=")
    fragments = []
    for view, its in zip(views, runs, strict=True):
        place, memory = _home(view, memories)
        base = view.address - memory.address
        fragments += [Fragment(place, base + at, its.stride, its.nbytes) for at in its.starts]
    return Layout(gpu, runs[0].blocks, memories, fragments, keep=tensors)


class Span(NamedTuple):
    """One run of bytes of every page, in this process; all numbers are multiples of 16."""

    address: int
    """Of page 0's run."""
    stride: int
    """Bytes from one page's to the next page's."""
    nbytes: int
    """Its bytes."""


@dataclass(frozen=True)
class Pages:
    """A paged KV cache on one GPU, as this process sees it. Nothing of it is exported."""

    count: int
    """Pages of the cache."""
    spans: Sequence[Span]
    """The runs of every page, in the order of its bytes."""
    keep: object = field(default=None, repr=False)
    """The memory's owner."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return sum(span.nbytes for span in self.spans)


def pages(tensors: Iterable[Any], block_dim: int = 0) -> Pages:
    """Where a cache that consists of these tensors is; tensors and order as for :func:`paged`."""
    tensors = _listed(tensors)
    views, runs = _measured(tensors, block_dim)
    spans = [
        Span(view.address + start, its.stride, its.nbytes)
        for view, its in zip(views, runs, strict=True)
        for start in its.starts
    ]
    return Pages(runs[0].blocks, spans, keep=tensors)


def _measured(tensors: Iterable[Any], block_dim: int) -> tuple[list[_View], list[_Runs]]:
    views = [_view(f"tensor {index}", tensor) for index, tensor in enumerate(tensors)]
    runs = [_runs(view, block_dim) for view in views]
    for view, its in zip(views, runs, strict=True):
        if its.blocks != runs[0].blocks:
            raise LayoutError(
                f"{view.name} has {its.blocks} blocks, tensor 0 has {runs[0].blocks}: tensors of "
                "one cache have one block table; attach a cache for each group"
            )
    return views, runs


def _listed(tensors: Iterable[Any]) -> list[Any]:
    if hasattr(tensors, "data_ptr") or hasattr(tensors, "__cuda_array_interface__"):
        return [tensors]
    try:
        listed = list(tensors)
    except TypeError:
        kind = type(tensors).__name__
        raise TensorError(f"tensors is a {kind}; pass a sequence of CUDA tensors") from None
    if not listed:
        raise LayoutError("no tensors; pass K and V of every layer")
    return listed


def _view(name: str, tensor: Any) -> _View:
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "element_size"):
        view = _torch_view(name, tensor)
    elif hasattr(tensor, "__cuda_array_interface__"):
        view = _interface_view(name, tensor.__cuda_array_interface__)
    else:
        kind = type(tensor).__name__
        raise TensorError(
            f"{name} is a {kind}; pass CUDA tensors of PyTorch, or what has "
            "__cuda_array_interface__; memory of the host is an arena's"
        )
    if not view.shape or 0 in view.shape:
        raise LayoutError(f"{name} has the shape {list(view.shape)}; it needs blocks with bytes")
    if view.address == 0:
        raise TensorError(f"{name} has no memory; it was freed or never allocated")
    return view


def _torch_view(name: str, tensor: Any) -> _View:
    if not tensor.is_cuda:
        raise TensorError(
            f"{name} is on {tensor.device}; a region is memory of one GPU, memory of the host is "
            "an arena's (Client.create_arena)"
        )
    itemsize = tensor.element_size()
    try:
        strides = tuple(step * itemsize for step in tensor.stride())
        # A storage that was resized away leaves the tensor its shape.
        stored = tensor.untyped_storage().nbytes()
        address = tensor.data_ptr() if stored > 0 else 0
    except RuntimeError as error:  # of a sparse one, a fake one
        raise TensorError(f"{name} is no plain memory ({error}); pass dense tensors") from None
    return _View(name, address, tuple(tensor.shape), strides, itemsize)


def _interface_view(name: str, described: dict[str, Any]) -> _View:
    try:
        address, read_only = described["data"]
        shape = tuple(described["shape"])
        itemsize = int(described["typestr"][2:])
    except (KeyError, TypeError, ValueError) as error:
        raise TensorError(f"{name}: its __cuda_array_interface__ is broken ({error!r})") from None
    if read_only:
        raise TensorError(f"{name} is read-only; the sidecar writes what it reads from a volume")
    strides = described.get("strides")
    if strides is None:
        strides = [itemsize * math.prod(shape[at + 1 :]) for at in range(len(shape))]
    return _View(name, address, shape, tuple(strides), itemsize)


def _runs(view: _View, block_dim: int) -> _Runs:
    dimensions = len(view.shape)
    if not -dimensions <= block_dim < dimensions:
        raise LayoutError(f"{view.name} has {dimensions} dimensions, none is number {block_dim}")
    of_blocks = block_dim % dimensions
    others = [
        (view.shape[at], view.strides[at])
        for at in range(dimensions)
        if at != of_blocks and view.shape[at] > 1
    ]
    if any(stride <= 0 for _, stride in [*others, (0, view.strides[of_blocks] or 1)]):
        raise LayoutError(
            f"{view.name} has the strides {list(view.strides)}: elements share memory or go "
            "backwards; pass a plain tensor (.contiguous())"
        )
    run, outer = view.itemsize, others
    for size, stride in sorted(others, key=lambda pair: pair[1]):
        if stride != run:
            break
        run *= size
        outer = [pair for pair in outer if pair != (size, stride)]
    starts = [0]
    for size, stride in outer:
        starts = [start + at * stride for start in starts for at in range(size)]
    if run < 512 or run % _UNIT:
        raise LayoutError(
            f"{view.name} (shape {list(view.shape)}, strides in bytes {list(view.strides)}) keeps "
            f"runs of {run} bytes of a block together; at least 512 and a multiple of {_UNIT} are "
            "needed: use larger blocks, or an order of dimensions in which a block lies together"
        )
    blocks = view.shape[of_blocks]
    return _Runs(blocks, view.strides[of_blocks] if blocks > 1 else run, starts, run)


def _home(view: _View, memories: Sequence[Memory]) -> tuple[int, Memory]:
    for place, memory in enumerate(memories):
        if memory.address <= view.address and view.end <= memory.address + memory.nbytes:
            return place, memory
    raise LayoutError(f"{view.name} lies in none of the {len(memories)} memories")


def _export(views: Sequence[_View]) -> tuple[str, list[Memory]]:
    """Exports each allocation once; of a legacy one only what the tensors use can be reached."""
    homes: list[_cuda.Allocation] = []
    ranges: list[tuple[int, int]] = []
    for view in views:
        at = next((at for at, home in enumerate(homes) if home.holds(view.address)), None)
        if at is None:
            at = len(homes)
            homes.append(_cuda.export(view.name, view.address))
            ranges.append((view.address, view.end))
        if not homes[at].holds(view.end - 1):
            raise TensorError(
                f"{view.name} goes over the border of its allocation: an allocator with expandable "
                "segments made it; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, or "
                "allocate the cache as one piece"
            )
        ranges[at] = (min(ranges[at][0], view.address), max(ranges[at][1], view.end))
    gpus = sorted({home.gpu for home in homes})
    if len(gpus) > 1:
        raise TensorError(f"tensors on {' and '.join(gpus)}; attach a region for each GPU")
    return gpus[0], [_used(home, *used) for home, used in zip(homes, ranges, strict=True)]


def _used(home: _cuda.Allocation, start: int, end: int) -> Memory:
    if home.file is not None:
        return Memory(home.nbytes, file=home.file, address=home.address)
    offset = (start - home.address) // _UNIT * _UNIT
    first = home.address + offset
    return Memory(end - first, handle=home.handle, offset=offset, address=first)
