"""Tests of the parent folder can be imported."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
