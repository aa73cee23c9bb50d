"""A sidecar for the length of a test or a notebook."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from kvrail._binary import binary
from kvrail._kvrail import Client
from kvrail.errors import NoSidecarError, ServeError

_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 40.0
# sun_path of unix(7), without its last zero.
_SOCKET_BYTES_MAX = 107


class Sidecar:
    """A sidecar that :func:`serve` started. A context manager: leaving it stops the sidecar. It
    belongs to the process that started it; a forked child can attach, and stops nothing."""

    socket: Path
    """Where clients attach."""

    volume: str
    """The name of its volume or store."""

    def __init__(self, directory: Path, volume: str, settings: Mapping[str, str]) -> None:
        self.volume = volume
        self._owner = os.getpid()
        self._directory = directory
        self._folders = [directory]
        if len(os.fsencode(directory / "kvrail.sock")) > _SOCKET_BYTES_MAX:
            # TMPDIR of a batch job is often long; this one is the shortest that is everywhere.
            self._folders.append(Path(tempfile.mkdtemp(prefix="kvrail-", dir="/tmp")))
        self.socket = self._folders[-1] / "kvrail.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = [f"--set={key}={value}" for key, value in settings.items()]

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [binary(), *arguments], env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ServeError(f"kvrail {arguments[0]} {arguments[1]}: {done.stderr.strip()}")

    def _create(self, kind: Sequence[str], size: str, files: Sequence[str]) -> None:
        direct = ["--direct", "optional", "--quiet"]
        self._run("volume", "create", self.volume, *kind, "--size", size, *direct, *files)

    def _start(self, files: Sequence[str]) -> None:
        config = self._directory / "kvrail.toml"
        # Strings and lists of JSON are strings and lists of TOML.
        socket, listed = (json.dumps(v, ensure_ascii=False) for v in (str(self.socket), files))
        config.write_text(
            # Several may run on one host: none takes a port by default.
            f'sidecar.socket = {socket}\nmetrics.listen = "off"\ndevice.direct = "optional"\n'
            f'[[volume]]\nname = "{self.volume}"\nmembers = {listed}\n'
        )
        # A killed process cannot remove the folders; the sidecar ends a moment later and does.
        removed = [f"--remove={folder}" for folder in self._folders]
        serve = ["serve", "--exit-with-parent", f"--config={config}", *removed]
        command = [str(binary()), *serve, *self._settings]
        with self._log().open("wb") as log:
            # A group of its own: Ctrl-C, in a terminal and in a notebook, is for the program.
            self._process = subprocess.Popen(
                command,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_WITHIN_S
        while True:
            if self._process is None or self._process.poll() is not None:
                raise ServeError(f"the sidecar did not start: {self.log().strip()}")
            try:
                self.attach().close()
                return
            except NoSidecarError:
                if time.monotonic() > deadline:
                    raise ServeError(f"not ready in time: {self.log().strip()}") from None
                time.sleep(0.01)

    @property
    def pid(self) -> int | None:
        """Its process, while it runs."""
        return None if self._process is None else self._process.pid

    def attach(self, *, name: str | None = None) -> Client:
        """A client of it."""
        return Client(self.socket, name=name)

    def log(self) -> str:
        """Its standard error until now."""
        return self._log().read_text(errors="replace") if self._log().exists() else ""

    def _log(self) -> Path:
        return self._directory / "kvrail.log"

    def stop(self) -> None:
        """Lets it finish requests in flight, and waits for its end."""
        process = self._take_process()
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process = process
            self.kill()
            raise ServeError(f"the sidecar did not stop: {self.log().strip()}") from None
        # Terminated before it caught signals (-15) is an end like any other.
        if process.returncode not in (0, -15):
            raise ServeError(f"the sidecar ended with {process.returncode}: {self.log().strip()}")

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        process = self._take_process()
        if process is not None:
            process.kill()
            process.wait()

    def _take_process(self) -> subprocess.Popen[bytes] | None:
        process, self._process = self._process, None
        return process if self._is_ours() else None

    def _is_ours(self) -> bool:
        return os.getpid() == getattr(self, "_owner", None)

    def _remove(self) -> None:
        for folder in self._folders if self._is_ours() else ():
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> "Sidecar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            self._remove()

    def __del__(self) -> None:
        if self._is_ours():
            self.kill()
            self._remove()


def _environment() -> dict[str, str]:
    """The environment without configuration of this process or machine."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KVRAIL_")}
    return kept | {"KVRAIL_CONFIG": "/dev/null"}


def serve(
    size: str | None = None,
    *,
    store: str | None = None,
    path: str | os.PathLike[str] | None = None,
    segment: str | None = None,
    block_mean: str = "64KiB",
    name: str = "kv",
    members: int = 1,
    directory: str | os.PathLike[str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Sidecar:
    """Starts a sidecar with a new store or volume, and waits until it serves.

    For tests, notebooks, and engines that have a host to themselves. Everything lies in a new
    folder below ``directory`` (the system's folder of temporary files if none is named) and is
    removed at the end; where that path is too long for a socket, the socket is below ``/tmp``. The
    sidecar also stops when the thread that called this ends: call it from one that lives
    while you need it.

    >>> with kvrail.serve(store="1GiB") as sidecar, sidecar.attach() as client:  # doctest: +SKIP
    ...     space = client.store("kv").namespace("demo", {"model": "m"})

    :param size: of a raw volume, as ``"64MiB"`` (1 GiB by default); the files are fully
        allocated.
    :param store: bytes of a store instead: blocks by key.
    :param path: a folder for the store's files, which stay: the next one that is served there has
        its blocks. Files that are there already are served as they are, whatever ``store`` and
        ``segment`` are.
    :param segment: bytes of a segment of the store, as ``"64MiB"``: a power of two. The longest
        block has half of it. By default about a 32nd of a member, 256 MiB at most.
    :param block_mean: bytes that the store's blocks have on average: its index has room for
        the blocks that fit.
    :param name: of the store or volume.
    :param members: files it is striped over.
    :param settings: keys of the configuration, as ``{"limits.arenas_per_session": "4"}``.
    """
    if store is not None and size is not None:
        raise ServeError("pass the size of a volume or of a store, not both")
    if store is None and (path is not None or segment is not None):
        raise ServeError("path and segment are for a store: pass its size, as store='1GiB'")
    folder = Path(tempfile.mkdtemp(prefix="kvrail-", dir=directory)).absolute()
    sidecar = Sidecar(folder, name, settings or {})
    try:
        home = folder if path is None else Path(path).absolute()
        home.mkdir(parents=True, exist_ok=True)
        files = [str(home / f"{name}-{index}.img") for index in range(members)]
        kind = [] if store is None else ["--kind", "store", "--block-mean", block_mean]
        kind += [] if segment is None else ["--segment", segment]
        if not all(os.path.exists(file) for file in files):
            sidecar._create(kind, store or size or "1GiB", files)
        sidecar._start(files)
    except BaseException:
        sidecar.kill()
        sidecar._remove()
        raise
    return sidecar
