"""vLLM's own server with a model of random weights: server.py FOLDER ARGUMENTS of `vllm serve`.

Servers on one GPU share the weights by FOLDER, as other engines do.
"""

import os
import sys
from pathlib import Path

# The processes of the engine are forked, and so know how weights are made.
os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

from engine import fill_weights, share_weights
from vllm.entrypoints.launchers.api_server.entry import main

if __name__ == "__main__":
    fill_weights()
    share_weights(Path(sys.argv.pop(1)))
    main()
