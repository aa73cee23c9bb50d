"""Where arms keep blocks: folders, what their drives do by themselves, and sidecars over them."""

import mmap
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from processes import end_sidecar

DRIVES, MEMORY = 4, Path("/tmp/kvrail-model-memory")
PART, READERS, READ = 4 << 20, 8, 2 << 30
"""Bytes of a read, threads that read, and bytes that they read."""

ANSWERS_S = 60.0
"""The longest that a sidecar may take to answer, in seconds."""


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


def drives_in_memory(bytes_each: int) -> list[Path]:
    """Folders of file systems on loop devices whose files lie in memory."""
    unmount_drives()  # those of a run that was killed
    folders = [MEMORY / f"drive-{number}" for number in range(DRIVES)]
    MEMORY.mkdir(parents=True, exist_ok=True)
    size = f"huge=within_size,size={DRIVES * bytes_each + (1 << 30)}"
    run("mount", "-t", "tmpfs", "-o", size, "tmpfs", MEMORY)
    for folder in folders:
        image = folder.with_suffix(".ext4")
        with open(image, "xb") as file:
            file.truncate(bytes_each)
        run("mkfs.ext4", "-q", "-F", image)
        folder.mkdir()
        # What an arm removes goes back to memory.
        run("mount", "-o", "loop,discard", image, folder)
    return folders


def unmount_drives() -> None:
    """Gives their memory back, at the latest when the last process has ended that uses them."""
    for folder in (*MEMORY.glob("drive-*"), MEMORY):
        if os.path.ismount(folder):
            run("umount", "--lazy", folder)


SHARED, LEFT = Path("/dev/shm"), ("vllm_offload_*", "lmcache_l1_pool_kvrail-model-*")


def make_room(tiers_bytes: int) -> None:
    """For CPU tiers, which lie in shared memory: its limit may be half of what a machine has at its
    start. What engines that were killed have left there goes."""
    for path in (path for left in LEFT for path in SHARED.glob(left)):
        path.unlink()
    if shutil.disk_usage(SHARED).free < tiers_bytes:
        run("mount", "-o", f"remount,size={tiers_bytes + (8 << 30)}", SHARED)


class Rate:
    """Bytes a second that drives read without any engine: direct reads of files of random bytes."""

    def __init__(self, folders: list[Path]) -> None:
        self.files = [folder / "rate" for folder in folders]
        self.seen: list[float] = []
        self._each, part = READ // len(folders), os.urandom(PART)
        for path in self.files:
            with open(path, "wb") as file:
                for _ in range(self._each // PART):
                    file.write(part)
                os.fsync(file.fileno())

    def measure(self) -> None:
        """Once more."""
        opened = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in self.files]
        parts = [(fd, at) for at in range(0, self._each, PART) for fd in opened]
        pages = [mmap.mmap(-1, PART) for _ in range(READERS)]

        def read(reader: int) -> int:
            return sum(os.preadv(fd, [pages[reader]], at) for fd, at in parts[reader::READERS])

        began = time.perf_counter()
        with ThreadPoolExecutor(READERS) as readers:
            total = sum(readers.map(read, range(READERS)))
        self.seen.append(total / (time.perf_counter() - began))
        for fd in opened:
            os.close(fd)


class Side:
    """A sidecar with a store of its own over the folders of a place."""

    def __init__(
        self, home: Path, folders: list[Path], store_bytes: int, settings: dict[str, str]
    ) -> None:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        self.home, self.socket, self.pid_file = home, home / "kvrail.sock", home / "pid"
        self.members = [folder / f"{home.name}.member" for folder in folders]
        for member in self.members:
            member.unlink(missing_ok=True)
        size = ["--size", str(store_bytes), "--fill", "nothing"]
        run("kvrail", "volume", "create", "kv", *self.members, *size, "--kind", "store")
        members = ", ".join(f'"{member}"' for member in self.members)
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (home / "kvrail.toml").write_text(
            f'metrics.listen = "off"\nmemory.unsealed_imports = "accept"\n'
            f'sidecar.socket = "{self.socket}"\n' + "\n".join(lines) + "\n"
            f'[[volume]]\nname = "kv"\nmembers = [{members}]\n'
        )
        self.serve = (
            f"ulimit -l unlimited; kvrail serve --config {home}/kvrail.toml "
            f">>{home}/log 2>&1 </dev/null & echo $! >{self.pid_file}"
        )

    def start(self) -> None:
        subprocess.run(self.serve, shell=True, check=True, start_new_session=True)
        words = ["kvrail", "status", "--socket", str(self.socket)]
        until = time.monotonic() + ANSWERS_S
        while subprocess.run(words, capture_output=True, check=False).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"the sidecar does not answer: {self.home}/log")
            time.sleep(0.1)

    def stop(self) -> None:
        """What is stored stays."""
        end_sidecar(self.pid_file)

    def remove(self, log: Path) -> None:
        """The store, too; the log of it stays."""
        subprocess.run(["kvrail", "store", "status", "--socket", self.socket], check=False)
        self.stop()
        if (self.home / "log").exists():
            shutil.copy(self.home / "log", log)
        for member in self.members:
            member.unlink(missing_ok=True)
