"""What a run is to do: its options and phases, and why it cannot."""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arms import ARMS, KVRAIL, PHASES, SGLANG, SIMPLE, store_of
from mixed import lines
from room import no_room
from turns import TURN_S


@dataclass(frozen=True)
class Phase:
    name: str
    lengths: list[int]
    arms: list[str]

    @classmethod
    def of(cls, word: str, options: argparse.Namespace) -> "Phase":
        rest, _, arms = word.partition(":")
        name, _, lengths = rest.partition("@")
        if name == "restart":
            return cls(name, [], [])
        numbers = [int(at) for at in lengths.split("+")] if lengths else options.lengths
        return cls(name, numbers, arms.split("+") if arms else options.arms)


def faults(options: argparse.Namespace) -> Iterator[str]:
    """Why this run cannot do what it is asked to."""
    names = [phase.name for phase in options.phases if phase.name != "restart"]
    yield from (f"{word} is there twice" for it in (names, options.arms) for word in twice(it))
    yield from (f"there is no phase {name}" for name in names if name not in PHASES)
    yield from (f"there is no arm {arm}" for arm in options.arms if arm not in ARMS)
    for phase in options.phases:
        yield from (
            f"{phase.name}: --arms has no {arm}" for arm in phase.arms if arm not in options.arms
        )
        yield from (
            f"{length} tokens are no multiple of a chunk's {options.chunk_tokens}"
            for length in phase.lengths
            if length % options.chunk_tokens
        )
        if phase.name in ("interfere", "mixed") and set(phase.arms) & set(SGLANG):
            yield f"SGLang's arms have no phase {phase.name}"
        if phase.name == "mixed":
            stores = [store_of(arm, options.share) for arm in phase.arms if arm in KVRAIL]
            yield from (
                f"mixed: arms over the store of {it} would find what the first one puts"
                for it in twice(stores)
            )
            yield from of_trace(options)
    if set(SGLANG) & set(options.arms) and not set(options.arms) <= set(SGLANG):
        yield "SGLang's arms need a run of their own: ratios are to one engine's computing"
    if set(SIMPLE) & set(options.arms) and not options.served:
        yield "SimpleCPUOffload lets its caches go with --served alone"
    yield from there(options)


def twice(words: list[str]) -> list[str]:
    return [word for word, number in Counter(words).items() if number > 1]


def there(options: argparse.Namespace) -> Iterator[str]:
    """Whether the results of another run have the names of this one's."""
    if machine_file(options).exists():
        yield f"{options.results} has such a run: give a --tag, or another folder"


def of_trace(options: argparse.Namespace) -> Iterator[str]:
    """Why there is nothing to play."""
    if options.pace <= 0 or options.block_tokens <= 0 or options.requests <= 0:
        yield "--pace, --block-tokens and --requests have to be above 0"
    elif not options.trace:
        yield "the phase mixed needs a --trace"
    elif not Path(options.trace).is_file():
        yield f"--trace: there is no file {options.trace}"
    else:
        try:
            played = lines(options, 0)
            if not played:
                yield f"{options.trace} has no request from second {options.trace_from:g} on"
            elif played[-1].at_s > TURN_S:
                yield (
                    f"the last request of {options.trace} comes after {played[-1].at_s:.0f} s, and "
                    f"a turn has {TURN_S:.0f}: --pace, --requests"
                )
        except (ValueError, KeyError, TypeError) as error:
            yield f"{options.trace} is no trace in Mooncake's form: {type(error).__name__}, {error}"


def machine_file(options: argparse.Namespace) -> Path:
    """What is known of a run's machine: each run has one."""
    return Path(options.results / f"{options.place}-{options.tag}machine.json")


def parser_of_all(about: str) -> argparse.ArgumentParser:
    """The options that run.py and agents.py have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("results", type=Path)
    parser.add_argument("place", choices=("disk", "memory"))
    parser.add_argument("--dir", type=Path, default=Path("/tmp"), help="the folder of `disk`")
    parser.add_argument("--arms", default="recompute,direct,latency,fs,cpu")
    parser.add_argument("--shape", default="llama8b")
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--gpu-gib", type=int, default=9, help="each engine's cache")
    parser.add_argument("--cpu-gib", type=int, default=9, help="each CPU tier of vLLM")
    parser.add_argument("--kv-cache-dtype", default="auto", help="fp8: 8 bits a number")
    parser.add_argument(
        "--store-gib", type=int, default=24, help="a store keeps some segments free for new blocks"
    )
    parser.add_argument("--drive-gib", type=int, default=32, help="of each drive in memory")
    parser.add_argument("--tier-gib", type=int, default=12, help="memory tier of the arm `hot`")
    parser.add_argument("--late", action="store_true", help="`hot` writes late")
    parser.add_argument("--tag", default="", help="a word in the names of the files")
    return parser


def parser_of_run(about: str) -> argparse.ArgumentParser:
    parser = parser_of_all(about)
    parser.add_argument("--phases", default="ttft")
    parser.add_argument("--lengths", default="8192,16384,32768")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--disk-gib", type=int, default=20, help="of SimpleCPUOffload's disk")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the model")
    parser.add_argument(
        "--served", action="store_true", help="the engine's own process, and CUDA graphs"
    )
    parser.add_argument("--users", default="1,4,16,32", help="of the phase returning, at once")
    parser.add_argument("--trace", default="", help="of the phase mixed, in Mooncake's form")
    parser.add_argument("--trace-from", type=float, default=0.0, help="its second to begin at")
    parser.add_argument("--requests", type=int, default=120, help="of the trace")
    parser.add_argument("--block-tokens", type=int, default=128, help="of a block of the trace")
    parser.add_argument("--pace", type=float, default=8.0, help="times as fast as the trace")
    parser.add_argument("--share", action="store_true", help="arms like `direct` have one store")
    parser.add_argument("--own-weights", action="store_true", help="one copy for each engine")
    parser.add_argument("--seconds", type=float, default=540, help="after which no arm goes on")
    return parser


def arguments(about: str, words: list[str] | None = None) -> argparse.Namespace:
    """Those of run.py, where they can work."""
    parser = parser_of_run(about)
    options = parser.parse_args(words)
    options.began = time.monotonic()
    options.until = options.began + options.seconds
    options.arms = options.arms.split(",")
    options.lengths = [int(word) for word in options.lengths.split(",")]
    options.phases = [Phase.of(word, options) for word in options.phases.split(",")]
    if found := list(faults(options)) or list(no_room(options)):
        parser.error("; ".join(found))
    return options
