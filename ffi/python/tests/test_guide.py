"""The guide's snippets in Python do what the guide says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[3] / "docs" / "guide.md").read_text()
README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = dict(re.findall(r"^```python title=(\S+)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE))
# On a real GPU: by tests/pytorch.
ON_GPU = [SNIPPETS.pop(title) for title in ("tensors.py", "paged.py")]
SNIPPETS["README.md"] = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)[0]


@pytest.mark.parametrize("title", SNIPPETS)
def test_a_snippet_runs(title):
    command = [sys.executable, "-c", SNIPPETS[title]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done


def test_there_are_snippets():
    of_stores = {"first.py", "many.py", "blocks.py"}
    of_volumes = {"volume.py", "batches.py", "loop.py", "pages.py"}
    assert set(SNIPPETS) == {"README.md"} | of_stores | of_volumes
