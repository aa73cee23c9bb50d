"""CRC-64/NVME as the GPU computes it: sums of polynomials, weighted by what follows them.

A word is a polynomial whose highest power is the lowest bit. A CRC without its first and last
inversion is linear: that of a block is the sum over its 64-bit words, each times x to the number of
bits from its first one to the end. ``kernels/blocks.cu`` sums every 256th unit of 16 bytes by
Horner's rule; these are its tables.
"""

import array
import functools
from collections.abc import Iterable, Iterator

POLYNOMIAL = 0x9A6C9329AC4BC9B5
ONES = (1 << 64) - 1
THREADS = 256
"""Threads that share the units of a slice: one row."""
UNIT = 16
"""Bytes of a unit."""


def multiply(a: int, b: int) -> int:
    """The product of two polynomials, modulo that of the CRC."""
    product = 0
    for bit in range(63, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return product


@functools.cache
def power(bits: int) -> int:
    """x to this power."""
    if bits == 0:
        return 1 << 63
    half = power(bits // 2)
    square = multiply(half, half)
    return multiply(square, 1 << 62) if bits % 2 else square


def tables() -> "array.array[int]":
    """8 tables of 256: what each byte of a sum becomes one row of units later."""
    row = power(8 * UNIT * THREADS)
    bits = [multiply(1 << bit, row) for bit in range(64)]
    return array.array("Q", [_sum(bits, byte << 8 * at) for at in range(8) for byte in range(256)])


def weights() -> "array.array[int]":
    """For each thread the bits behind the first and the second half of its last unit, from their
    first bit on."""
    ends = [8 * UNIT * (THREADS - thread) for thread in range(THREADS)]
    return array.array("Q", [power(end - half) for end in ends for half in (0, 64)])


def behind(units: int, slice_units: int) -> "array.array[int]":
    """For each slice of a block the bits behind it."""
    ends = [*range(slice_units, units, slice_units), units]
    return array.array("Q", [power(8 * UNIT * (units - end)) for end in ends])


@functools.cache
def inversions(nbytes: int) -> int:
    """The part of the first and the last inversion in the sum of a block of this length."""
    return multiply(ONES, power(8 * nbytes)) ^ ONES


def joined(sums: Iterable[int], count: int, slices: int, nbytes: int) -> Iterator[int]:
    """The CRCs of these blocks from the sums of their slices."""
    sums, invert = list(sums), inversions(nbytes)
    for block in range(count):
        crc = invert
        for its in sums[block * slices : (block + 1) * slices]:
            crc ^= its
        yield crc


def _sum(bits: list[int], which: int) -> int:
    total = 0
    for bit, value in enumerate(bits):
        if which >> bit & 1:
            total ^= value
    return total
