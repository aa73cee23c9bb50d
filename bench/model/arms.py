"""The ways to keep KV blocks that are measured beside each other."""

ARMS = ("recompute", "cpu", "fs", "tier", "direct")
"""No second level; vLLM's CPU tier; its CPU tier over its own tier of files; over kvrail's; kvrail
without a CPU tier."""
