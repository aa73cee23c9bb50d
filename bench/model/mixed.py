"""A trace in Mooncake's form, for an engine: requests at their times, with blocks of fewer tokens,
so that prompts of 100,000 tokens fit, and time that goes faster.

A line is one request: `timestamp` in milliseconds, `output_length` in tokens, and `hash_ids`, the
blocks of its prompt, equal for equal prefixes.
"""

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

OUTPUTS = (4, 128)
"""An answer has this part of the trace's tokens, and this number at most."""


@dataclass(frozen=True)
class Line:
    """One request of the trace."""

    at_s: float
    """Behind the first one."""
    blocks: list[int]
    makes: int
    """Tokens of its answer."""


def lines(options: Namespace, tokens_max: int) -> list[Line]:
    """The requests that are played; a prompt that would be longer than `tokens_max` is cut."""
    rows = [json.loads(row) for row in Path(options.trace).read_text().splitlines()]
    rows = [row for row in rows if row["timestamp"] >= 1000 * options.trace_from]
    rows.sort(key=lambda row: row["timestamp"])
    rows, most = rows[: options.requests], tokens_max // options.block_tokens
    part, makes_max = OUTPUTS
    return [
        Line(
            (row["timestamp"] - rows[0]["timestamp"]) / 1000 / options.pace,
            row["hash_ids"][:most],
            min(makes_max, max(1, row["output_length"] // part)),
        )
        for row in rows
    ]


def distinct_tokens(options: Namespace, tokens_max: int) -> int:
    """Tokens of all prompts together, each once."""
    blocks = {block for line in lines(options, tokens_max) for block in line.blocks}
    return options.block_tokens * len(blocks)
