"""Tables and a plot of what run.py left: report.py RESULTS [TAG]. The plot needs matplotlib.

Writes RESULTS/model.md and RESULTS/model.png, and prints the tables; with the tag of a run it only
prints the tables of that run.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from arms import ARMS

LABELS = {
    "recompute": "recompute",
    "cpu": "vLLM's CPU tier",
    "fs": "vLLM's files",
    "tier": "kvrail tier",
    "direct": "kvrail direct",
    "latency": "kvrail direct, latency",
}
SHADES = ("black", "tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
COLORS = dict(zip(ARMS, SHADES, strict=True))
Rows = dict[str, dict[str, Any]]
USED = ("engine_cpu_s", "sidecar_cpu_s", "read_bytes")


def load(results: Path, place: str, tag: str, suffix: str = "") -> Rows:
    """What each arm saw in a place."""
    paths = {arm: results / f"{place}-{tag}{arm}{suffix}.json" for arm in ARMS}
    return {arm: json.loads(path.read_text()) for arm, path in paths.items() if path.exists()}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def whole(length: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Hits of the whole prompt. Where a part is computed, last bits are those of other kernels."""
    return [hit for hit in row["hits"] if hit["cached_tokens"] >= int(length)]


def hit_s(arm: str, length: str, row: dict[str, Any]) -> float | None:
    """Median time to the first token of hits of the whole prompt; of all where the arm may compute
    instead."""
    hits = row["hits"] if arm == "latency" else whole(length, row)
    return statistics.median(hit["ttft_s"] for hit in hits) if hits else None


def ttft(rows: Rows) -> tuple[list[str], dict[str, dict[int, float]]]:
    """The table's parts and the plot's curves: seconds by tokens."""
    curves: dict[str, dict[int, float]] = {}
    for arm, seen in rows.items():
        for length, row in seen.get("ttft", {}).items():
            seconds = hit_s(arm, length, row)
            if seconds is not None:
                curves.setdefault(arm, {})[int(length)] = seconds
    lengths = sorted({int(at) for seen in rows.values() for at in seen.get("ttft", {})})
    cold = {
        at: statistics.median(
            second
            for seen in rows.values()
            for second in seen.get("ttft", {}).get(str(at), {}).get("cold_s", [])
        )
        for at in lengths
    }
    curves["recompute"] = cold
    names = [arm for arm in ARMS if arm in curves]
    head = ["tokens", *(LABELS[arm] for arm in names)]
    cells = []
    for at in lengths:
        row = [f"{at:,}"]
        for arm in names:
            seconds = curves[arm].get(at)
            ratio = "" if arm == "recompute" or seconds is None else f" ({seconds / cold[at]:.2f})"
            row.append("-" if seconds is None else f"{seconds:.3f} s{ratio}")
        cells.append(row)
    return [table(head, cells)], curves


def exactness(rows: Rows) -> str:
    """Whether hits have the tokens and log-probabilities of a hit in the GPU's cache."""
    cells = []
    for arm, seen in rows.items():
        rows_of = seen.get("ttft", {})
        hits = [hit for length, row in rows_of.items() for hit in whole(length, row)]
        asked = sum(len(row["hits"]) for row in rows_of.values())
        if asked:
            exact = sum(hit["bit_exact"] for hit in hits)
            cells.append([LABELS[arm], f"{len(hits)} of {asked}", f"{exact} of {len(hits)}"])
    return table(["arm", "hits of the whole prompt", "of them equal to the last bit"], cells)


def measured(
    rows: Rows, part: str, head: list[str], cells: Callable[[Any], list[str]]
) -> list[str]:
    """A table of the arms that measured this part; none where no arm did."""
    lines = [[LABELS[arm], *cells(seen[part])] for arm, seen in rows.items() if part in seen]
    return [table(["arm", *head], lines)] if lines else []


def nearest(values: Iterable[float], share: float) -> float:
    """The least of the values that this share does not exceed."""
    in_order = sorted(values)
    return in_order[math.ceil(share * len(in_order)) - 1]


def returning(rows: Rows) -> list[str]:
    """Users that come back: times to the first token, and what one pass over all has used."""
    seen_by = {arm: seen["returning"]["seen"] for arm, seen in rows.items() if "returning" in seen}
    if not seen_by:
        return []
    counts = [seen["users"] for seen in max(seen_by.values(), key=len)]
    times, used = [], []
    for arm, seen in seen_by.items():
        cells = [
            f"{nearest(row['ttft_s'], 0.5):.2f} s; {nearest(row['ttft_s'], 0.99):.2f} s"
            for row in seen
        ]
        times.append([LABELS[arm], *cells, *["-"] * (len(counts) - len(cells))])
        tokens = sum(row["tokens"] for row in seen)
        totals = {name: sum(row[name] for row in seen) for name in USED}
        stored = rows[arm]["returning"]["stored"]
        used.append([
            LABELS[arm],
            f"{sum(row['cached_tokens'] for row in seen) / tokens:.0%}",
            f"{tokens / sum(row['wall_s'] for row in seen):,.0f}",
            f"{totals['engine_cpu_s']:.1f} s; {totals['sidecar_cpu_s']:.1f} s",
            f"{totals['read_bytes'] / 1e9:.1f} GB",
            f"{stored['written_bytes'] / 1e9:.1f} GB",
        ])  # fmt: skip
    head = [f"{count} at once: p50; p99" for count in counts]
    costs = ["hits", "tokens of prompts a second", "CPU of engine; of sidecar", "read", "stored"]
    return [table(["arm", *head], times), table(["arm", *costs], used)]


def others(rows: Rows) -> list[str]:
    """Interference, flipped bytes and a killed sidecar."""
    behind = measured(
        rows,
        "interfere",
        ["small request before", "slowest behind a stored prompt", "GPU hit at once"],
        lambda seen: [
            f"{seen['small_before_s']:.3f} s",
            f"{max(max(turn['small_s']) for turn in seen['turns']):.3f} s",
            f"{statistics.median(turn['gpu_hit_s'] for turn in seen['turns']):.3f} s",
        ],
    )
    flipped = measured(
        rows,
        "flip",
        ["flipped", "tokens equal", "TTFT over the damage", "the next time: found; TTFT; equal"],
        lambda seen: [
            f"{seen['flipped']:,}",
            f"{seen['damaged']['tokens_equal']} of {seen['damaged']['of']}",
            f"{seen['damaged']['ttft_s']:.3f} s",
            f"{seen['anew']['cached_tokens']:,}; {seen['anew']['ttft_s']:.3f} s; "
            f"{seen['anew']['tokens_equal']} of {seen['anew']['of']}",
        ],
    )
    killed = measured(
        rows,
        "kill",
        ["six requests, sidecar killed", "tokens equal", "hits again after"],
        lambda seen: [
            f"{seen['wall_s']['killed']:.2f} s for {seen['wall_s']['hits']:.2f} s",
            f"{sum(row['tokens_equal'] for row in seen['killed'])} of "
            f"{sum(row['of'] for row in seen['killed'])}",
            f"{seen['back_s']:.1f} s" if seen["back_s"] else "never",
        ],
    )
    return [*behind, *flipped, *killed]


def plot(path: Path, places: dict[str, dict[str, dict[int, float]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(places), figsize=(5 * len(places), 3.6), squeeze=False)
    for axis, (place, curves) in zip(axes[0], places.items(), strict=True):
        for arm, points in curves.items():
            tokens = sorted(points)
            style = "--" if arm == "recompute" else "-"
            seconds = [points[at] for at in tokens]
            axis.plot(tokens, seconds, style, marker="o", color=COLORS[arm], label=LABELS[arm])
        axis.set(title=place, xlabel="tokens of the prompt", ylabel="seconds to the first token")
        axis.set_ylim(bottom=0)
        axis.legend()
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def part(results: Path, place: tuple[str, str], tag: str) -> tuple[list[str], Any]:
    """The tables of a place, and the curves of its plot."""
    name, title = place
    rows = load(results, name, tag)
    if not rows:
        return [], {}
    machine = json.loads((results / f"{name}-{tag}machine.json").read_text())
    first = next(iter(rows.values()))
    kinds = [first["shape"]]
    if first.get("kv_cache_dtype", "auto") != "auto":
        kinds.append(f"KV cache of {first['kv_cache_dtype']}")
    if first.get("served"):
        kinds.append("an engine process of its own, CUDA graphs")
    parts = [
        f"## {title}",
        f"{', '.join(kinds)}, chunks of {first['chunk_tokens']} tokens, {first['gpu']}, "
        f"{machine['cores']} cores, kernel {machine['kernel']}, {machine['kvrail']}; "
        f"`{machine['command']}`",
    ]
    curves: dict[str, dict[int, float]] = {}
    if any("ttft" in seen for seen in rows.values()):
        tables, curves = ttft(rows)
        parts += [*tables, exactness(rows)]
    parts += [*returning(rows), *others(rows)]
    again = load(results, name, tag, ".again")
    if again:
        cells = [
            [LABELS[arm], f"{int(at):,}", f"{row['cached_tokens']:,}", f"{row['ttft_s']:.3f} s"]
            for arm, seen in again.items()
            for at, row in seen.get("again", {}).items()
        ]
        head = ["arm", "tokens", "hits after a restart of the engine", "TTFT"]
        parts.append(table(head, cells))
    return parts, curves


def main() -> None:
    results, tag = Path(sys.argv[1]), "".join(sys.argv[2:3])
    parts, places = ["# Time to first token with a model on the GPU"], {}
    for place in (("disk", "One disk"), ("memory", "Four drives in memory")):
        tables, curves = part(results, place, tag)
        parts += tables
        if curves:
            places[place[1]] = curves
    text = "\n\n".join(parts) + "\n"
    print(text)
    if not tag:
        (results / "model.md").write_text(text)
        plot(results / "model.png", places)


if __name__ == "__main__":
    main()
