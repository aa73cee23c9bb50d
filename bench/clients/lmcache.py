"""LMCache's own bench over this repository's adapter and its own fs_native with direct I/O.

lmcache.py [ROUNDS]: 16 objects of 4 MiB, stored and loaded, verified; the two take turns on one
disk. Run it where LMCache and kvrail are installed; KVRAIL_BINARY may name the sidecar's binary.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import kvrail

EXAMPLES = Path(__file__).parents[2] / "ffi/python/examples"
BENCH = ["bench", "l2", "--l1-align-bytes", "4096", "--data-size-kb", "4096", "--num-keys", "16"]
BENCH += ["--rounds", "4", "--no-skip-verify", "--format", "json"]


def run(adapter: dict[str, object]) -> dict[str, float]:
    """MiB/s of stores and loads, the mean of the bench's rounds."""
    path = f"{EXAMPLES}:{os.environ.get('PYTHONPATH', '')}"
    program = Path(sys.executable).with_name("lmcache")
    with tempfile.NamedTemporaryFile() as told:
        command = [program, *BENCH, "--output", told.name, "--l2-adapter", json.dumps(adapter)]
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and "verified OK" in done.stdout, done.stdout + done.stderr
        operations = [it for it in json.load(told)["metrics"].values() if "operation" in it]
    return {
        it["operation"].lower(): it["throughput_avg_mbps"]
        for it in operations
        if it["operation"] != "Lookup"
    }


def main() -> None:
    rounds, results = int((sys.argv + ["3"])[1]), defaultdict(list)
    with kvrail.serve("2GiB", directory="/var/tmp") as sidecar:
        ours = {"type": "native_plugin", "module_path": "kvrail_lmcache"}
        ours["class_name"] = "KvrailConnector"
        ours["adapter_params"] = {"socket": str(sidecar.socket), "slot_bytes": 4 << 20}
        theirs = {"type": "fs_native", "num_workers": 4, "use_odirect": True}
        for _ in range(rounds):
            results["kvrail"].append(run(ours))
            # A folder of its own each time: it does not store what it has already.
            with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                results["fs_native"].append(run(theirs | {"base_path": folder}))
    about = {"kernel": platform.release(), "cpus": os.cpu_count()}
    print(json.dumps({"machine": about, "rounds": results}, indent=1))
    for name, all_ in results.items():
        middle = {key: statistics.median(told[key] for told in all_) for key in all_[0]}
        print(name, *(f"{key} {value:.0f} MiB/s" for key, value in middle.items()), file=sys.stderr)


main()
