"""One machine, one volume, one run: the clients in Rust, C and Python, and NIXL beside them.

run.py BUILT [SECONDS] [ROUNDS] [WORDS]: BUILT is the folder of an optimised build. Arms take turns;
the table has the median of the rounds. WORDS, as "batch,large", picks the arms that have one of
them. NIXL's arm is left out where nixl_cu12 is not installed.
"""

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"KVRAIL_CONFIG": "/dev/null"} | more


def start(built: Path, folder: Path) -> subprocess.Popen[bytes]:
    """A sidecar with a volume on the disk and one that has no device."""
    image, config = folder / "kv.img", folder / "kvrail.toml"
    create = [built / "kvrail", "volume", "create", "kv", image, "--size", "1GiB", "--quiet"]
    create += ["--stripe", "4MiB"]
    subprocess.run(create, env=environment(), check=True, capture_output=True)
    config.write_text(
        f'sidecar.socket = "{folder}/s"\nsidecar.log = "error"\nmetrics.listen = "off"\n'
        f'[[volume]]\nname = "kv"\nmembers = ["{image}"]\n'
        '[[volume]]\nname = "null"\nmembers = ["null:1TiB"]\n'
    )
    with open(folder / "log", "wb") as log:
        serve = [built / "kvrail", "serve", "--exit-with-parent", "--config", config]
        child = subprocess.Popen(serve, env=environment(), stdout=log, stderr=log)
    while not (folder / "s").exists() or child.poll() is not None:
        assert child.poll() is None, (folder / "log").read_text()
        time.sleep(0.01)
    return child


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def arms(built: Path, folder: Path, seconds: str) -> dict[str, list[object]]:
    compile_ = ["cc", "-O2", "-I", HERE.parents[1] / "ffi/c/include", HERE / "arm.c"]
    compile_ += ["-o", folder / "arm", "-L", built, "-lkvrail", f"-Wl,-rpath,{folder}"]
    subprocess.run(compile_, check=True)
    (folder / "libkvrail.so.1").symlink_to((built / "libkvrail.so").resolve())
    rust, c, python = [built / "examples/client_arm"], [folder / "arm"], [sys.executable]
    python.append(HERE / "arm.py")
    languages = {"rust": rust, "c": c, "python": python}
    socket, table = folder / "s", {}
    for volume in ("null", "kv"):
        for name, program in languages.items():
            table[f"latency {volume} {name}"] = [*program, socket, volume, "latency", seconds]
    for name, program in languages.items():
        table[f"batch kv {name}"] = [*program, socket, "kv", "batch", seconds]
    table["large kv python"] = [*python, socket, "kv", "large", seconds]
    if importlib.util.find_spec("nixl_cu12"):
        nixl = [sys.executable, HERE / "nixl_arm.py", folder / "kv.img", seconds]
        table["large kv nixl"] = nixl
    return table


def measure(
    built: Path, seconds: str, rounds: int, words: list[str]
) -> dict[str, list[dict[str, float]]]:
    results = defaultdict(list)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="kvrail-") as name:
        folder = Path(name)
        sidecar = start(built, folder)
        try:
            table = arms(built, folder, seconds)
            table = {arm: it for arm, it in table.items() if any(word in arm for word in words)}
            for turn in range(rounds):
                # There and back: no arm always follows the same one.
                for arm, command in list(table.items())[:: -1 if turn % 2 else 1]:
                    before = cpu_seconds(sidecar.pid)
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    assert done.returncode == 0, f"{arm}: {done.stderr}"
                    told = json.loads(done.stdout.splitlines()[-1])
                    if "gib_per_s" in told and "nixl" not in arm:
                        gib = told["gib_per_s"] * float(seconds)
                        told["sidecar_cpu_s_per_gib"] = (cpu_seconds(sidecar.pid) - before) / gib
                    results[arm].append(told)
        finally:
            sidecar.terminate()
            sidecar.wait()
    return dict(results)


def main() -> None:
    built = Path(sys.argv[1]).resolve()
    seconds, rounds, words = [*sys.argv[2:], *["2", "2", ""][len(sys.argv) - 2 :]]
    results = measure(built, seconds, int(rounds), words.split(","))
    middle = {
        arm: {key: statistics.median(told[key] for told in all_) for key in all_[0]}
        for arm, all_ in results.items()
    }
    about = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": sys.version.split()[0]}
    print(json.dumps({"machine": about, "seconds": seconds, "rounds": results}, indent=1))
    for arm, told in middle.items():
        words = "  ".join(f"{key} {value:.4g}" for key, value in told.items())
        print(f"{arm:22} {words}", file=sys.stderr)


main()
