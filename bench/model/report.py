"""Tables and a plot of what run.py left: report.py RESULTS [TAG]. The plot needs matplotlib.

Writes RESULTS/model.md and RESULTS/model.png, and prints the tables; with the tag of a run it only
prints the tables of that run. Ends with 1 where bits of a batch-invariant run are not equal.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from arms import ARMS, COMPUTES, PHASES

SHADES = ("black", "tab:blue", "tab:cyan", "tab:orange", "tab:brown", "tab:green", "tab:red")
SHADES += ("tab:gray", "tab:olive", "tab:purple", "tab:pink", "lightgray", "navy", "teal", "gold")
SHADES += ("dimgray", "darkred", "plum", "khaki", "sienna")
COLORS = dict(zip(ARMS, SHADES, strict=True))
Rows = dict[str, dict[str, Any]]
USED = ("engine_cpu_s", "sidecar_cpu_s", "read_bytes")
MOST_S = 0.99
OF_THE_END, LEAST = 2, 100
"""Steps that compute the end of a prompt which is there, and the fewest that have a percentile."""


def load(results: Path, place: str, tag: str) -> Rows:
    """What each arm saw in a place."""
    paths = {arm: results / f"{place}-{tag}{arm}.json" for arm in ARMS}
    return {arm: json.loads(path.read_text()) for arm, path in paths.items() if path.exists()}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def whole(length: str, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Hits of the whole prompt. Where a part is computed, last bits are those of other kernels."""
    return [hit for hit in row["hits"] if hit["cached_tokens"] >= int(length)]


def seconds(arm: str, length: str, row: dict[str, Any]) -> list[float]:
    """Times to the first token: of computed prompts; of hits of the whole prompt; of all where the
    arm may compute instead."""
    if arm in COMPUTES:
        return list(row["cold_s"])
    return [hit["ttft_s"] for hit in (row["hits"] if arm == "latency" else whole(length, row))]


def ttft(
    rows: Rows, rates: list[float]
) -> tuple[list[str], dict[str, dict[int, float]]]:
    """The tables and the plot's curves: seconds by tokens."""
    seen_s = {
        arm: {int(length): times for length, row in seen["ttft"].items()
              if (times := seconds(arm, length, row))}
        for arm, seen in rows.items()
        if "ttft" in seen
    }  # fmt: skip
    curves = {
        arm: {at: statistics.median(times) for at, times in by_length.items()}
        for arm, by_length in seen_s.items()
    }
    cold = next((curves[arm] for arm in COMPUTES if arm in curves), {})
    lengths = sorted({at for by_length in seen_s.values() for at in by_length})
    middle, slowest = [], []
    for at in lengths:
        cells = [ratio(curve.get(at), cold.get(at)) for curve in curves.values()]
        middle.append([f"{at:,}", *cells])
        of = [by_length.get(at, []) for by_length in seen_s.values()]
        slowest.append(
            [f"{at:,}", *(f"{nearest(it, MOST_S):.3f} s of {len(it)}" if it else "-" for it in of)]
        )
    names = [ARMS[arm] for arm in seen_s]
    tables = [
        "Medians; in brackets the ratio to computing.",
        table(["tokens", *names], middle),
        "The slowest (p99 by nearest rank), and their number.",
        table(["tokens", *names], slowest),
    ]
    if rates:
        tables += beside_drives(rows, rates)
    return tables, curves


def ratio(seconds: float | None, cold: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s" + (f" ({seconds / cold:.2f})" if cold else "")


def beside_drives(rows: Rows, rates: list[float]) -> list[str]:
    """How long the drives would take for the bytes that they have read for a hit."""
    rate, cells = statistics.median(rates), []
    for arm, seen in rows.items():
        for length, row in seen.get("ttft", {}).items():
            hits = [it for it in whole(length, row) if it["drive_bytes"]]
            if not hits:
                continue
            read = statistics.median(it["drive_bytes"] for it in hits)
            took = statistics.median(it["ttft_s"] for it in hits)
            cells.append([ARMS[arm], f"{int(length):,}", f"{read / 1e9:.2f} GB",
                          f"{took:.3f} s", f"{took / (read / rate):.2f}"])  # fmt: skip
    if not cells:
        return []
    head = ["arm", "tokens", "drives read for a hit", "TTFT", "/ (bytes / the drives' rate)"]
    text = (
        f"Beside these, {len(rates)} times, the drives alone read {rate / 1e9:.2f} GB/s "
        f"({min(rates) / 1e9:.2f} to {max(rates) / 1e9:.2f}): direct, eight reads of 4 MiB in "
        "flight."
    )
    return [text, table(head, cells)]


def exactness(rows: Rows) -> str:
    """Whether hits of the whole prompt have the tokens and log-probabilities of a hit in the GPU's
    cache, and this has those of the first arm's."""
    cells, first = [], next(seen["ttft"] for seen in rows.values() if "ttft" in seen)
    for arm, seen in rows.items():
        rows_of = seen.get("ttft", {})
        hits = sum(len(row["hits"]) for row in rows_of.values())
        full = [hit for length, row in rows_of.items() for hit in whole(length, row)]
        computed = [row for row in rows_of.values() if not row.get("first_cached_tokens")]
        pairs = [(row, first[at]) for at, row in rows_of.items() if at in first]
        cells.append([
            ARMS[arm],
            f"{len(full)} of {hits}",
            f"{sum(hit['bit_exact'] for hit in full)} of {len(full)}",
            f"{sum(row['gpu']['bit_exact'] for row in computed)} of {len(computed)}",
            f"{sum(alike(row, other) for row, other in pairs)} of {len(pairs)}",
        ])  # fmt: skip
    head = ["arm", "hits of the whole prompt", "equal to the last bit to one in the GPU's cache",
            "that equal to the first answer, computed", "and to the first arm's"]  # fmt: skip
    return table(head, cells)


def alike(answer: dict[str, Any], other: dict[str, Any]) -> bool:
    """To the last bit."""
    return bool(answer["tokens"] == other["tokens"] and answer["logprobs"] == other["logprobs"])


def compared(seen: Any) -> Iterator[dict[str, Any]]:
    """All answers that stand beside another one, somewhere in what an arm saw."""
    if isinstance(seen, dict) and "bit_exact" in seen:
        yield seen
    elif isinstance(seen, dict | list):
        for part in seen.values() if isinstance(seen, dict) else seen:
            yield from compared(part)


def unequal(rows: Rows) -> list[str]:
    """What differs in batch-invariant arms, where each answer has to be that of computing; flipped
    bytes of vLLM's files stay there."""
    found: list[str] = []
    first: dict[tuple[str, str, int], Any] = {}
    for arm, seen in rows.items():
        if seen["batch_invariant"] != "1":
            continue
        for phase in (it for it in PHASES if (it, arm) != ("flip", "fs")):
            answers = list(compared(seen.get(phase)))
            if wrong := sum(not it["bit_exact"] for it in answers):
                found.append(f"{arm}, {phase}: {wrong} of {len(answers)} answers")
        for phase in ("ttft", "again", "shared"):
            for length, row in seen.get(phase, {}).items():
                for at, answer in enumerate([row] if phase == "ttft" else row):
                    if not alike(answer, first.setdefault((phase, length, at), answer)):
                        found.append(f"{arm}, {phase}: {length} tokens, beside the first arm")
    return found


def measured(
    rows: Rows, part: str, head: list[str], cells: Callable[[Any], list[str]]
) -> list[str]:
    """A table of the arms that measured this part; none where no arm did."""
    lines = [[ARMS[arm], *cells(seen[part])] for arm, seen in rows.items() if part in seen]
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
        times.append([ARMS[arm], *cells, *["-"] * (len(counts) - len(cells))])
        tokens = sum(row["tokens"] for row in seen)
        totals = {name: sum(row[name] for row in seen) for name in USED}
        stored = rows[arm]["returning"]["stored"]
        used.append([
            ARMS[arm],
            f"{sum(row['cached_tokens'] for row in seen) / tokens:.0%}",
            f"{tokens / sum(row['wall_s'] for row in seen):,.0f}",
            f"{totals['engine_cpu_s']:.1f} s; {totals['sidecar_cpu_s']:.1f} s",
            f"{totals['read_bytes'] / 1e9:.1f} GB",
            f"{stored['written_bytes'] / 1e9:.1f} GB",
        ])  # fmt: skip
    head = [f"{count} at once: p50; p99" for count in counts]
    costs = ["hits", "tokens of prompts a second", "CPU of engine; of sidecar", "read", "stored"]
    return [table(["arm", *head], times), table(["arm", *costs], used)]


def mixed(rows: Rows) -> list[str]:
    """Requests of a trace, at their times; and of agents' sessions, as AIPerf saw them."""

    def cells(seen: dict[str, Any]) -> list[str]:
        times, wall_s = seen["ttft_s"], seen["wall_s"]
        lost = [f"; {seen[it]} {it}" for it in ("failed", "cut") if seen.get(it)]
        return [
            f"{len(times)} in {wall_s:.1f} s ({len(times) / wall_s:.2f}){''.join(lost)}",
            f"{seen['tokens'] / wall_s:,.0f}; {seen['made_tokens'] / wall_s:,.0f}",
            f"{nearest(times, 0.5):.2f} s; {nearest(times, MOST_S):.2f} s",
            f"{seen['cached_tokens'] / seen['tokens']:.0%}",
            f"{seen['engine_cpu_s']:.1f} s; {seen['sidecar_cpu_s']:.1f} s",
            f"{seen['read_bytes'] / 1e9:.1f} GB; {seen['written_bytes'] / 1e9:.1f} GB",
        ]

    head = ["requests (a second)", "tokens of prompts, and made, a second", "TTFT: p50; p99"]
    head += ["hits", "CPU of engine; of sidecar", "read; written"]
    return [*measured(rows, "mixed", head, cells), *measured(rows, "agents", head, cells)]


def interference(rows: Rows) -> list[str]:
    """Tokens of others while a prompt is loaded and stored; all arms beside the first one alone."""
    by_arm = {arm: seen["interfere"] for arm, seen in rows.items() if "interfere" in seen}
    if not by_arm:
        return []
    alone = [gap for row in next(iter(by_arm.values())) for gap in row["alone_s"]]
    cells = []
    for arm, turns in by_arm.items():
        cell = [ARMS[arm], f"{statistics.median(row['gpu_hit_s'] for row in turns):.3f} s"]
        for window in ("alone_s", "loading_s", "storing_s"):
            # In every arm the last steps before a prompt's first token compute its end.
            end = -OF_THE_END if window == "loading_s" else None
            gaps = [gap for row in turns for gap in row[window][:end]]
            if len(gaps) < LEAST:
                cell.append("-")
                continue
            most = nearest(gaps, MOST_S)
            cell.append(
                f"{statistics.median(gaps) * 1e3:.1f}; {most * 1e3:.1f} ms of {len(gaps):,} "
                f"({most / nearest(alone, MOST_S):.2f})"
            )
        cells.append(cell)
    head = ["arm", "GPU hit at once behind a stored prompt", "from token to token, alone: p50; p99",
            "while a prompt comes", "behind a computed prompt, which is stored"]  # fmt: skip
    return [table(head, cells)]


def firsts(rows: Rows, phase: str, title: str) -> list[str]:
    """First requests for prompts, beside those of the first arm."""
    by_arm = {arm: seen[phase] for arm, seen in rows.items() if phase in seen}
    if not by_arm:
        return []
    cells = []
    for arm, by_length in by_arm.items():
        for length, answers in by_length.items():
            if not answers:  # the first one failed
                continue
            others = next(it[length] for it in by_arm.values() if it.get(length))
            times = [it["ttft_s"] for it in answers]
            cold = statistics.median(it["ttft_s"] for it in others)
            pairs = list(zip(answers, others))
            same = sum(a["tokens"] == b["tokens"] for a, b in pairs)
            bits = sum(a["logprobs"] == b["logprobs"] for a, b in pairs)
            read = sum(it["drive_bytes"] or 0 for it in answers)
            cells.append([
                ARMS[arm],
                f"{int(length):,}",
                f"{sum(it['cached_tokens'] >= int(length) for it in answers)} of {len(answers)}",
                ratio(statistics.median(times), cold),
                f"{nearest(times, MOST_S):.3f} s",
                f"{read / 1e9:.2f} GB; {sum(it['read_bytes'] for it in answers) / 1e9:.2f} GB",
                f"{same}; {bits} of {len(pairs)}",
            ])  # fmt: skip
    head = ["arm", "tokens", "whole hits", "TTFT, p50", "slowest", "drives; processes read",
            "tokens equal to the first arm's; bits"]  # fmt: skip
    return [title, table(head, cells)]


def others(rows: Rows) -> list[str]:
    """Interference, flipped bytes and a killed sidecar."""
    behind = interference(rows)
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
    return [*behind, *flipped, *killed, *lost(rows)]


def lost(rows: Rows) -> list[str]:
    """One request whose sidecar dies in its load."""
    cells = []
    for arm, seen in rows.items():
        for length, row in seen.get("lost", {}).items():
            losses = row["losses"]
            first = [f"{row['cold_s']:.3f} s", f"{row['hit']['ttft_s']:.3f} s"]
            times = [
                ", ".join(f"{loss[name]['ttft_s']:.3f} s" for loss in losses)
                for name in ("killed", "down", "after")
            ]
            back = ", ".join(f"{it['back_s']:.1f} s" if it["back_s"] else "never" for it in losses)
            equal = [
                f"{sum(loss[name]['tokens_equal'] for loss in losses)} of "
                f"{sum(loss[name]['of'] for loss in losses)}"
                for name in ("killed", "down", "after")
            ]
            cells.append([ARMS[arm], f"{int(length):,}", *first, *times, back, "; ".join(equal)])
    head = ["arm", "tokens", "computed", "hit", "sidecar killed in the load", "none there"]
    head += ["hits after its return", "hits again after", "tokens equal: killed; none; after"]
    return [table(head, cells)] if cells else []


def plot(path: Path, places: dict[str, dict[str, dict[int, float]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(places), figsize=(5 * len(places), 3.6), squeeze=False)
    for axis, (place, curves) in zip(axes[0], places.items(), strict=True):
        for arm, points in ((arm, points) for arm, points in curves.items() if points):
            tokens = sorted(points)
            style = "--" if arm in COMPUTES else "-"
            seconds = [points[at] for at in tokens]
            label = ARMS[arm].replace("`", "")
            axis.plot(tokens, seconds, style, marker="o", color=COLORS[arm], label=label)
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
        tables, curves = ttft(rows, machine.get("drives_read", {}).get("ttft", []))
        parts += [*tables, exactness(rows)]
    parts += [*returning(rows), *mixed(rows), *others(rows)]
    if late := [f"{ARMS[arm]} {seen['unsettled']}" for arm, seen in rows.items()
                if "unsettled" in seen]:  # fmt: skip
        parts.append(f"Waits that ended while blocks were still stored: {', '.join(late)}.")
    parts += [f"Not equal: {text}." for text in unequal(rows)]
    parts += firsts(rows, "again", "Users that come back, once each:")
    parts += firsts(rows, "shared", "Prompts that the first arm computes, and then the other gets:")
    return parts, curves


def main() -> int:
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
        if places:
            plot(results / "model.png", places)
    return 1 if "\nNot equal: " in text else 0


if __name__ == "__main__":
    sys.exit(main())
