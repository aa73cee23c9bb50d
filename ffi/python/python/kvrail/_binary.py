"""The path of the sidecar's binary."""

import os
import shutil
import sys
from pathlib import Path

from kvrail.errors import ServeError


def binary() -> Path:
    """The program: ``KVRAIL_BINARY``, the one in this package, or the one in ``PATH``."""
    named = os.environ.get("KVRAIL_BINARY")
    packed = Path(__file__).parent / "bin" / "kvrail"
    for candidate in (named, packed, shutil.which("kvrail")):
        # The console script of this package is no sidecar.
        if candidate and os.access(candidate, os.X_OK) and not _is_script(Path(candidate)):
            return Path(candidate)
    raise ServeError("no kvrail binary: install a wheel that has it, or set KVRAIL_BINARY")


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def main() -> None:
    """The console script ``kvrail``: becomes the binary."""
    try:
        program = binary()
    except ServeError as error:
        sys.exit(f"kvrail: {error}")
    # `kvrail engines` looks for engines in this package's environment.
    environment = {"KVRAIL_PYTHON": sys.executable} | os.environ
    os.execve(program, ["kvrail", *sys.argv[1:]], environment)
