"""NIXL's POSIX plugin with io_uring on the volume's own file, opened for direct I/O.

nixl_arm.py FILE SECONDS: blocks of 1 MiB, 16 in flight, a new one whenever one has ended.
"""

import ctypes
import json
import mmap
import os
import sys
import time

from nixl_cu12._api import nixl_agent, nixl_agent_config

LARGE, DEPTH = 1 << 20, 16


def main() -> None:
    path, seconds = sys.argv[1], float(sys.argv[2])
    agent = nixl_agent("arm", nixl_agent_config(backends=[]))
    agent.create_backend("POSIX", {"use_uring": "true", "use_aio": "false"})
    memory = mmap.mmap(-1, DEPTH * LARGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    span = os.fstat(fd).st_size // LARGE - 1
    local = [(base + at * LARGE, LARGE, 0) for at in range(DEPTH)]
    # The first MiB is the volume's label.
    remote = [((1 + at) * LARGE, LARGE, fd) for at in range(span)]
    agent.register_memory([(base, DEPTH * LARGE, 0, "")], "DRAM")
    agent.register_memory([(0, (1 + span) * LARGE, fd, "")], "FILE")
    ours = agent.prep_xfer_dlist("NIXL_INIT_AGENT", local, "DRAM")
    theirs = agent.prep_xfer_dlist("arm", remote, "FILE")

    offset = moved = 0
    flying: list[object | None] = [None] * DEPTH
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        for place in range(DEPTH):
            handle = flying[place]
            if handle is not None:
                state = agent.check_xfer_state(handle)
                if state == "PROC":
                    continue
                assert state == "DONE", state
                agent.release_xfer_handle(handle)
                moved += LARGE
            offset = (offset + 7919) % span
            handle = agent.make_prepped_xfer("READ", ours, [place], theirs, [offset])
            agent.transfer(handle)
            flying[place] = handle
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    gib = moved / (1 << 30)
    for handle in flying:
        while agent.check_xfer_state(handle) == "PROC":
            pass
    print(json.dumps({"gib_per_s": gib / elapsed, "cpu_s_per_gib": cpu / gib}))
    sys.stdout.flush()
    os._exit(0)


main()
