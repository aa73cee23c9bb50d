"""LMCache's own bench accepts the adapter, bytes verified."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"


def adapter(sidecar) -> str:
    return json.dumps(
        {
            "type": "native_plugin",
            "module_path": "kvrail_lmcache",
            "class_name": "KvrailConnector",
            "adapter_params": {"socket": str(sidecar.socket), "slot_bytes": 4 << 20},
        }
    )


def test_its_bench_verifies(sidecar):
    command = [Path(sys.executable).with_name("lmcache"), "bench", "l2"]
    command += ["--l2-adapter", adapter(sidecar), "--l1-align-bytes", "4096"]
    command += ["--data-size-kb", "4096", "--num-keys", "16", "--rounds", "2"]
    command += ["--no-skip-verify"]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": f"{EXAMPLES}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


def test_objects_of_any_length_and_misses(sidecar):
    from kvrail_lmcache import KvrailConnector

    connector = KvrailConnector(str(sidecar.socket), slot_bytes=1 << 20, staging=2)
    answers, fd = {}, connector.event_fd()

    def wait(number):
        import select

        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while number not in answers:
            assert poller.poll(10000), "the bell rings"
            answers.update({done[0]: done[1:] for done in connector.drain_completions()})
        return answers[number]

    out = [numpy.full(size, at, numpy.uint8) for at, size in enumerate((1, 511, 4096, 1 << 20))]
    keys = [f"key{at}" for at in range(len(out))]
    assert wait(connector.submit_batch_set(keys, [memoryview(it) for it in out]))[0]
    back = [numpy.zeros_like(it) for it in out]
    assert wait(connector.submit_batch_get(keys, [memoryview(it) for it in back]))[2] == [True] * 4
    assert all((a == b).all() for a, b in zip(out, back, strict=True))
    assert wait(connector.submit_batch_exists([*keys, "other"]))[2] == [True] * 4 + [False]
    assert wait(connector.submit_batch_delete(["key1"]))[2] == [True]
    assert wait(connector.submit_batch_get(["key1"], [memoryview(back[1])]))[2] == [False]
    large = memoryview(bytearray(2 << 20))
    ok, words, _ = wait(connector.submit_batch_set(["large"], [large]))
    assert not ok and "slot_bytes" in words
    threads = [
        threading.Thread(target=connector.submit_batch_exists, args=(keys,)) for _ in range(4)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    connector.close()
    connector.close()
