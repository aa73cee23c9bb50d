"""The ways to keep KV blocks that are measured beside each other."""

ARMS = {
    "recompute": "recompute",
    "cpu": "vLLM's CPU tier",
    "simple": "`SimpleCPUOffload`",
    "fs": "vLLM's files",
    "simple_disk": "`SimpleCPUOffload`, disk",
    "tier": "kvrail tier",
    "direct": "kvrail direct",
    "narrow": "kvrail direct, 128 MiB pinned",
    "fine": "kvrail direct, chunks of 64",
    "latency": "kvrail direct, latency",
    "hot": "kvrail direct, hot",
    "second": "kvrail direct, hot, second engine",
    "third": "kvrail direct, hot, third engine",
    "fourth": "kvrail direct, hot, fourth engine",
    "lmcache_kvrail": "LMCache, kvrail",
    "lmcache_fs": "LMCache, `fs_native`",
    "lmcache_raw": "LMCache, `raw_block`",
    "sglang": "SGLang, recompute",
    "sglang_kvrail": "SGLang, kvrail",
    "sglang_file": "SGLang, `file`",
}
"""Names and what tables have for them. No second level; vLLM's CPU tier; another of vLLM's; its CPU
tier over its own tier of files; that other one with a disk and no CPU tier; vLLM's CPU tier over
kvrail's; kvrail without a CPU tier, which loads all that it has; with less pinned memory; with
chunks of fewer tokens; the same as the first of these, which computes what is sooner; with a memory
tier of the sidecar; more engines over the same sidecar as that. LMCache's connector and server
over kvrail, and over its own back ends. SGLang without a second level, and with its HiCache over
kvrail and over its own back end of files."""

HOT = ("hot", "second", "third", "fourth")
"""Engines over one sidecar with a memory tier of `--tier-gib`, which may be 0."""
DIRECT = ("direct", "narrow", "fine", "latency", *HOT)
SPECIAL = {"narrow": {"staging_bytes": 128 << 20}, "fine": {"block_size": 64}}
LMCACHE = ("lmcache_kvrail", "lmcache_fs", "lmcache_raw")
SGLANG = ("sglang", "sglang_kvrail", "sglang_file")
KVRAIL = ("tier", *DIRECT, "lmcache_kvrail", "sglang_kvrail")
COMPUTES = ("recompute", "sglang")
"""Arms without anything below the GPU's cache."""
SIMPLE = ("simple", "simple_disk")
ALONE = ("latency",)
"""Arms that choose by how fast they have computed: they warm up when no other does."""

FORGETS = ("fs", "tier")
"""Arms whose CPU tier is above drives: it is emptied before a hit that is to come from these."""

SHARED_MEMORY = ("cpu", *FORGETS, *LMCACHE)
"""Arms whose memory of the host is in /dev/shm."""

PHASES = ("ttft", "stored", "again", "shared", "interfere", "flip", "kill", "lost", "returning")
PHASES += ("mixed",)
"""What arm.py can do; run.py has `restart` beside these."""


def store_of(arm: str, share: bool) -> str:
    """The arm by which the store of this one is named."""
    owners = dict.fromkeys(HOT, "hot")
    if share:
        owners |= dict.fromkeys(("narrow", "fine", "latency"), "direct")
    return owners.get(arm, arm)
