"""Arms in turns on one machine with a GPU: run.py RESULTS PLACE [options].

PLACE is `disk` (a folder of this machine) or `memory` (four file systems on loop devices in memory,
the place of four fast drives). Each arm is an engine process of its own, each with a fresh store or
folder; after its phases a second process has the phase `again` on the same store. RESULTS gets one
JSON for each arm, which report.py makes into tables.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from arms import ARMS, KVRAIL

HERE = Path(__file__).parent
DRIVES = 4


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


def drives_in_memory(bytes_each: int) -> list[Path]:
    """Folders of file systems on loop devices whose files lie in memory."""
    root = Path("/tmp/kvrail-model-memory")
    folders = [root / f"drive-{number}" for number in range(DRIVES)]
    if folders[-1].exists():
        return folders
    root.mkdir(parents=True, exist_ok=True)
    size = f"huge=within_size,size={DRIVES * bytes_each + (1 << 30)}"
    run("mount", "-t", "tmpfs", "-o", size, "tmpfs", root)
    for folder in folders:
        image = folder.with_suffix(".ext4")
        with open(image, "xb") as file:
            file.truncate(bytes_each)
        run("mkfs.ext4", "-q", "-F", image)
        folder.mkdir()
        # What an arm removes goes back to memory.
        run("mount", "-o", "loop,discard", image, folder)
    return folders


class Side:
    """A sidecar with a store of its own over the folders of a place."""

    def __init__(
        self, home: Path, folders: list[Path], store_bytes: int, tier_gib: int
    ) -> None:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        self.home, self.socket = home, home / "kvrail.sock"
        self.members = [folder / "kv.member" for folder in folders]
        for member in self.members:
            member.unlink(missing_ok=True)
        size = ["--size", str(store_bytes), "--fill", "nothing"]
        run("kvrail", "volume", "create", "kv", *self.members, *size, "--kind", "store")
        members = ", ".join(f'"{member}"' for member in self.members)
        (home / "kvrail.toml").write_text(
            f'metrics.listen = "off"\nmemory.unsealed_imports = "accept"\n'
            f'sidecar.socket = "{self.socket}"\nmemory_tier.bytes = "{tier_gib}GiB"\n'
            f'[[volume]]\nname = "kv"\nmembers = [{members}]\n'
        )
        self.serve = (
            f"ulimit -l unlimited; kvrail serve --config {home}/kvrail.toml "
            f">>{home}/log 2>&1 </dev/null & echo $! >{home}/pid"
        )
        self.start()

    def start(self) -> None:
        subprocess.run(self.serve, shell=True, check=True, start_new_session=True)
        words = ["kvrail", "status", "--socket", str(self.socket)]
        until = time.monotonic() + 20
        while subprocess.run(words, capture_output=True, check=False).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"the sidecar does not answer: {self.home}/log")
            time.sleep(0.1)

    def stop(self) -> None:
        pid = int((self.home / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.05)
        for member in self.members:
            member.unlink(missing_ok=True)


def measure(options: argparse.Namespace, arm: str, folders: list[Path]) -> None:
    """Both engine processes of an arm."""
    out = options.results / f"{options.place}-{options.tag}{arm}.json"
    words = [sys.executable, HERE / "arm.py", arm, out, "--shape", HERE / "shapes" / options.shape]
    words += ["--lengths", options.lengths, "--turns", str(options.turns)]
    words += ["--chunk-tokens", str(options.chunk_tokens), "--gpu-gib", str(options.gpu_gib)]
    words += ["--ranks", str(options.ranks), "--users", options.users]
    words += ["--kv-cache-dtype", options.kv_cache_dtype, *["--served"] * options.served]
    home, side = Path("/tmp/kvrail-model") / options.place, None
    files = folders[0] / "files"
    if arm in KVRAIL:
        side = Side(home, folders, options.store_gib << 30, options.tier_gib)
        words += ["--socket", side.socket, "--pid-file", home / "pid", "--serve", side.serve]
        words += ["--members", ":".join(str(member) for member in side.members)]
    elif arm == "fs":
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        words += ["--files", files]
    began = time.monotonic()
    try:
        for phases in [options.phases] + ["again"] * (options.again and arm != "recompute"):
            last = ["--phases", phases]
            if phases == "again":
                words[3] = out.with_suffix(".again.json")
            left = options.until - time.monotonic()
            done = subprocess.run(
                [str(word) for word in words + last], timeout=max(left, 1), check=False
            )
            print(f"{arm} {phases}: status {done.returncode}", flush=True)
    except subprocess.TimeoutExpired:
        print(f"{arm}: ended by the limit of time", flush=True)
    finally:
        if side:
            subprocess.run(["kvrail", "store", "status", "--socket", side.socket], check=False)
            shutil.copy(home / "log", options.results / f"{options.place}-{options.tag}{arm}.log")
            side.stop()
        shutil.rmtree(files, ignore_errors=True)
    print(f"{arm}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("place", choices=("disk", "memory"))
    parser.add_argument("--dir", type=Path, default=Path("/tmp"), help="the folder of `disk`")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--shape", default="llama8b")
    parser.add_argument("--phases", default="ttft")
    parser.add_argument("--again", action="store_true", help="a second engine process, too")
    parser.add_argument("--lengths", default="8192,16384,32768")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--chunk-tokens", type=int, default=256)
    parser.add_argument("--gpu-gib", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=1, help="GPUs that share the model")
    parser.add_argument("--kv-cache-dtype", default="auto", help="fp8: 8 bits a number")
    parser.add_argument(
        "--served", action="store_true", help="the engine's own process, and CUDA graphs"
    )
    parser.add_argument("--users", default="1,4,16,32", help="of the phase returning, at once")
    parser.add_argument(
        "--store-gib", type=int, default=20, help="a store keeps a sixth of it free for new blocks"
    )
    parser.add_argument(
        "--tier-gib", type=int, default=0, help="memory tier, with blocks from their second get on"
    )
    parser.add_argument("--seconds", type=float, default=540, help="after which no arm goes on")
    parser.add_argument("--tag", default="", help="a word in the names of the files")
    options = parser.parse_args()
    if options.again and "flip" in options.phases:
        parser.error("--again finds nothing behind the phase flip, which damages its blocks")
    options.until = time.monotonic() + options.seconds
    options.results.mkdir(parents=True, exist_ok=True)
    if options.place == "memory":
        # vLLM's own tier has one folder, and never removes a file.
        folders = drives_in_memory((options.store_gib + 4) << 30)
    else:
        folders = [options.dir / "kvrail-model-disk"]
        folders[0].mkdir(exist_ok=True)
    version = subprocess.run(["kvrail", "--version"], capture_output=True, text=True, check=True)
    machine = {
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "place": options.place,
        "command": " ".join(["run.py", *sys.argv[1:]]),
        "kvrail": version.stdout.strip(),
    }
    seen_on = options.results / f"{options.place}-{options.tag}machine.json"
    seen_on.write_text(json.dumps(machine, indent=1))
    for arm in options.arms.split(","):
        if time.monotonic() < options.until - 40:
            measure(options, arm, folders)


if __name__ == "__main__":
    main()
