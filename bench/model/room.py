"""What stores, drives and the host's memory have to keep in a run, and whether they have room."""

import json
import math
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arms import ALONE, KVRAIL, SGLANG, SHARED_MEMORY, SIMPLE, SPECIAL, store_of
from mixed import distinct_tokens
from places import DRIVES, READ

SHAPES, GIB = Path(__file__).parent / "shapes", 1 << 30
WARMS_UP = (600, 16_384)
"""Tokens of the prompts before the first phase; the second has no more than the longest."""

SEGMENT, SPARE, HEAD = 256 << 20, 3, GIB // 4
"""Bytes of a store's segment, of which a block takes no two; those of a member that are free or
being filled; and what a member has beside them."""

FORMATTED = 0.97
"""The share of a drive that files get."""

ENGINE = 4 * GIB
"""Memory of the host for an engine by itself: an estimate. A run of seven had room with it."""

FILES = ("fs", "lmcache_fs", "sglang_file")
ONE_FILE = ("simple_disk", "lmcache_raw")
"""Arms with a folder of files that only grow, and with one file of `--disk-gib`."""


def puts(phase: Any, options: Namespace) -> tuple[int, int]:
    """Tokens that all arms over one store put once in a phase, and those that each puts for
    itself."""
    first, total = sum(phase.lengths[:1]), sum(phase.lengths)
    longest = max(phase.lengths, default=0)
    if phase.name == "mixed":
        return distinct_tokens(options, longest), 0
    return {
        "ttft": (total, 0),
        "stored": (total * options.turns, 0),
        "shared": (total * options.turns, 0),
        "interfere": (0, 2 * longest * options.turns),
        "flip": (first, 0),
        "kill": (0, 6 * first),
        "lost": (0, total),
        "returning": (longest * max(map(int, options.users.split(","))), 0),
    }.get(phase.name, (0, 0))


def longest(options: Namespace) -> int:
    return max((length for phase in options.phases for length in phase.lengths), default=0)


def warms_up(options: Namespace) -> list[int]:
    """Tokens of the prompts at each start."""
    return [WARMS_UP[0], min(longest(options), WARMS_UP[1])]


def store_bytes(owner: str, options: Namespace) -> int:
    """A store has room for at least what its memory tier has room for."""
    return max(tier_gib(owner, options), options.store_gib) * GIB


def tier_gib(owner: str, options: Namespace) -> int:
    return int(options.tier_gib) if owner == "hot" else 0


def token_bytes(options: Namespace) -> int:
    """What a token has in the KV cache."""
    shape = json.loads((SHAPES / options.shape / "config.json").read_text())
    shape = shape.get("text_config", shape)
    if "kv_lora_rank" in shape:
        numbers = shape["kv_lora_rank"] + shape["qk_rope_head_dim"]
    else:
        numbers = 2 * shape["num_key_value_heads"] * shape["head_dim"]
    nbytes = 2 if options.kv_cache_dtype == "auto" else 1
    return int(numbers * shape["num_hidden_layers"] * nbytes)


def put_bytes(arms: list[str], options: Namespace) -> int:
    """The most that these arms, over one store or folder, have there at a time."""
    most = 0
    for chunk in {SPECIAL.get(arm, {}).get("block_size") for arm in arms}:
        alike = [arm for arm in arms if SPECIAL.get(arm, {}).get("block_size") == chunk]
        alone = sum(arm in ALONE for arm in alike)
        warm = sum(warms_up(options)) * (alone + (alone < len(alike)))
        tokens = peak = warm
        for phase in options.phases:
            taking = sum(arm in phase.arms for arm in alike)
            once, each = puts(phase, options)
            if alike == ["fs"] and phase.name in ("stored", "interfere"):  # which clear its folder
                tokens, each = 0, each // options.turns
            tokens += warm if phase.name == "restart" else once * bool(taking) + each * taking
            peak = max(peak, tokens)
        most += peak
    return most * token_bytes(options)


def store_fits(size: int, options: Namespace) -> float:
    """Bytes of whole chunks that a store keeps. Its members get them by chance: three deviations
    are left."""
    members = DRIVES if options.place == "memory" else 1
    chunk = options.chunk_tokens * token_bytes(options)
    segments = (size // members - HEAD) // SEGMENT - SPARE
    blocks = max(segments, 0) * ((SEGMENT - 1) // chunk)
    return members * (blocks - 3 * math.sqrt(blocks * (1 - 1 / members))) * chunk


def over_stores(options: Namespace) -> dict[str, list[str]]:
    """Arms of each store, by the arm that it is named by."""
    arms = [arm for arm in options.arms if arm in KVRAIL]
    owners = {arm: store_of(arm, options.share) for arm in arms}
    return {owner: [arm for arm in arms if owners[arm] == owner] for owner in owners.values()}


def no_room(options: Namespace) -> Iterator[str]:
    """What has no room, of stores, drives and the host's memory."""
    members = DRIVES if options.place == "memory" else 1
    stores = {owner: store_bytes(owner, options) for owner in over_stores(options)}
    held = {owner: put_bytes(arms, options) for owner, arms in over_stores(options).items()}
    for owner, size in stores.items():
        if held[owner] > (fits := store_fits(size, options)):
            yield (
                f"the store of {owner} has room for {fits / GIB:.1f} GiB, "
                f"and its arms put {held[owner] / GIB:.1f}: --store-gib"
            )
    files = {arm: put_bytes([arm], options) for arm in options.arms if arm in FILES}
    files |= {arm: options.disk_gib * GIB for arm in options.arms if arm in ONE_FILE}
    first = sum(files.values()) + (sum(stores.values()) + READ) // members
    if options.place == "disk":
        if first > (free := shutil.disk_usage(options.dir).free):
            yield f"the disk has {free / GIB:.1f} GiB free, the arms need {first / GIB:.1f}"
        return
    if first > (fits := FORMATTED * options.drive_gib * GIB):
        yield (
            f"the first drive has room for {fits / GIB:.1f} GiB, and has to keep "
            f"{first / GIB:.1f}: --drive-gib"
        )
    need, have = memory_bytes(options, sum(held.values()) + sum(files.values())), host_bytes()
    if need > have:
        yield f"the host has {have / GIB:.0f} GiB of memory, the run needs {need / GIB:.0f}"


def memory_bytes(options: Namespace, kept: int) -> int:
    """Of the host, with drives in memory that keep these bytes: an estimate."""
    tiers = sum(arm in (*SHARED_MEMORY, *SIMPLE, *SGLANG[1:]) for arm in options.arms)
    tier = options.tier_gib if "hot" in over_stores(options) else 0
    return kept + READ + (tiers * options.cpu_gib + tier) * GIB + len(options.arms) * ENGINE


def host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
