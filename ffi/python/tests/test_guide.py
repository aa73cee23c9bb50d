"""The Python snippets of the guide and the READMEs run as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guide.md").read_text()
SNIPPETS = dict(re.findall(r"^```python title=(\S+)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE))
# On a real GPU: by tests/pytorch.
ON_GPU = [SNIPPETS.pop(title) for title in ("tensors.py", "paged.py")]
for page in ("ffi/python/README.md", "README.md"):
    text = (ROOT / page).read_text()
    SNIPPETS[page] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]


@pytest.mark.parametrize("title", SNIPPETS)
def test_a_snippet_runs(title):
    command = [sys.executable, "-c", SNIPPETS[title]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_there_are_snippets():
    of_stores = {"first.py", "many.py", "chain.py", "blocks.py", "memory.py", "late.py", "view.py"}
    of_volumes = {"volume.py", "batches.py", "loop.py", "pages.py"}
    assert set(SNIPPETS) == {"ffi/python/README.md", "README.md"} | of_stores | of_volumes
