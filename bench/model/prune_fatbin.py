"""Makes zeroes of the GPU code that a card would never load: prune_fatbin.py IN OUT [CAPABILITY].

The file keeps its length and layout: only payloads of fat binaries' entries for other chips become
zeroes, which compress to nothing. Their headers stay, and the driver picks the entry that fits.
CAPABILITY is 90 unless given (an H100 or H200).
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = 0xBA55ED50
"""First word of a fat binary: then its version, its header's bytes and those behind the header."""
PTX, ELF = 1, 2
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")


class Entry(NamedTuple):
    kind: int
    capability: int
    at: int
    """The payload's place in the file, in bytes."""
    length: int


def sections(data: bytearray) -> Iterator[range]:
    """Where an ELF file of 64 bits has fat binaries."""
    assert data[:5] == b"\x7fELF\x02", "not an ELF file of 64 bits"
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + at * size) for at in range(count)]
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        if data[start : data.index(b"\0", start)] in SECTIONS:
            yield range(offset, offset + length)


def binaries(data: bytearray, section: range) -> Iterator[list[Entry]]:
    """The entries of each fat binary."""
    at = section.start
    while at + 16 <= section.stop:
        magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8
            continue
        entry, at, entries = at + header, at + header + length, []
        while entry + 64 <= at:
            kind, _, header, length = struct.unpack_from("<HHIQ", data, entry)
            (capability,) = struct.unpack_from("<I", data, entry + 28)
            entries.append(Entry(kind, capability, entry + header, length))
            entry += header + length
        yield entries


def needed(entries: list[Entry], capability: int) -> list[Entry]:
    """Code for the card; without it the newest PTX before the card, and code of its family."""
    fits = [entry for entry in entries if entry[:2] == (ELF, capability)]
    if fits:
        return fits
    older = [entry for entry in entries if entry.capability <= capability]
    ptx = [entry for entry in older if entry.kind == PTX]
    family = [entry for entry in older if entry.kind == ELF]
    family = [entry for entry in family if entry.capability // 10 == capability // 10]
    return family + ([max(ptx, key=lambda entry: entry.capability)] if ptx else [])


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    capability = int(sys.argv[3]) if len(sys.argv) > 3 else 90
    data = bytearray(source.read_bytes())
    kept = zeroed = 0
    for section in sections(data):
        for entries in binaries(data, section):
            fits = needed(entries, capability)
            for entry in entries:
                if entry in fits:
                    kept += entry.length
                else:
                    data[entry.at : entry.at + entry.length] = bytes(entry.length)
                    zeroed += entry.length
    target.write_bytes(data)
    print(f"{source.name}: {kept / 1e6:.1f} MB kept, {zeroed / 1e6:.1f} MB are zeroes now")


if __name__ == "__main__":
    main()
