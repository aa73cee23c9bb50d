"""The ways to keep KV blocks that are measured beside each other."""

ARMS = ("recompute", "cpu", "fs", "tier", "direct", "latency")
"""No second level; vLLM's CPU tier; its CPU tier over its own tier of files; over kvrail's; kvrail
without a CPU tier, which loads all that it has; the same, which computes what is sooner."""

DIRECT = ("direct", "latency")
KVRAIL = ("tier", *DIRECT)
