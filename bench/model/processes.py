"""What processes have used, as the kernel counts it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
CACHES = Path("/proc/sys/vm/drop_caches")
ENDS_S = (20.0, 10.0)
"""The longest that a sidecar may take to end, in seconds: asked to, and killed."""

ENDS_WITH_US = (
    'exec 3<&0; (cat <&3; kill -KILL 0) >/dev/null & exec 3<&-; exec "$@" </dev/null'
)
"""Of a shell that becomes a program: its whole session ends when the pipe of its input does."""


@dataclass(frozen=True)
class Used:
    """What a process and those that it has started have used."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0

    @classmethod
    def by(cls, pid: int) -> "Used":
        """So far."""
        parts = [cls._one(each) for each in family(pid)]
        return cls(
            sum(it.cpu_s for it in parts),
            sum(it.read_bytes for it in parts),
            sum(it.written_bytes for it in parts),
        )

    @classmethod
    def _one(cls, pid: int) -> "Used":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:
            return cls()
        counts = dict(line.split(": ") for line in lines)
        ticks = sum(map(int, fields[11:15]))  # with those of children that have ended
        return cls(ticks / TICKS, int(counts["read_bytes"]), int(counts["write_bytes"]))

    def since(self, before: "Used") -> "Used":
        """What was used since then."""
        return Used(
            self.cpu_s - before.cpu_s,
            self.read_bytes - before.read_bytes,
            self.written_bytes - before.written_bytes,
        )


def drives_read(folders: list[Path]) -> int | None:
    """Bytes that the drives of these folders have read, as the kernel counts them for a device;
    none where a file system has no device of its own."""
    sectors = 0
    for number in {folder.stat().st_dev for folder in folders}:
        path = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
        if not path.exists():
            return None
        sectors += int(path.read_text().split()[2])
    return sectors * 512


def family(pid: int) -> Iterator[int]:
    """A process and all that it has started, itself first."""
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = tasks.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from family(int(child))


def begin(words: list[str], log: Path, **more: str) -> "subprocess.Popen[Any]":
    """One that leads a session of its own, and ends with us, also where we are killed."""
    with open(log, "ab") as lines:
        return subprocess.Popen(
            ["sh", "-c", ENDS_WITH_US, "sh", *words],
            env=os.environ | more,
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=lines,
            start_new_session=True,
        )


def end_all(process: "subprocess.Popen[Any]") -> None:
    """One that leads a session of its own, with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def drop_caches() -> None:
    """Nothing of files stays in the kernel's memory."""
    os.sync()
    CACHES.write_text("3")


def is_sidecar(pid: int, home: Path) -> bool:
    """Whether this process is a sidecar of this folder; one that has ended is none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"kvrail" in words and str(home).encode() in words


def used_by_sidecar(pid_file: Path) -> Used:
    """So far. What an arm does without its sidecar is none of its results."""
    pid = int(pid_file.read_text())
    if not is_sidecar(pid, pid_file.parent):
        raise RuntimeError(f"the sidecar of {pid_file.parent.name} has ended; its log has why")
    return Used.by(pid)


def end_sidecar(pid_file: Path) -> None:
    """What is stored stays. Nothing where it has ended already."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    for signalled, seconds in zip((signal.SIGTERM, signal.SIGKILL), ENDS_S, strict=True):
        if not is_sidecar(pid, pid_file.parent):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signalled)
        until = time.monotonic() + seconds
        while is_sidecar(pid, pid_file.parent) and time.monotonic() < until:
            time.sleep(0.05)
    if is_sidecar(pid, pid_file.parent):
        raise RuntimeError(f"the sidecar {pid} does not end")
