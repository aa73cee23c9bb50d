"""Deaths, forks and signals: nothing hangs, nothing crashes, nothing leaks."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import kvrail
import kvrail.aio
import pytest
from host import Host, until

SLOW = "import kvrail, signal, sys, os, time\n"


@pytest.fixture(scope="module")
def stores() -> Iterator[kvrail.Sidecar]:
    with kvrail.serve(store="256MiB") as sidecar:
        yield sidecar


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SLOW + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_sidecar_dies_in_the_middle_of_waits():
    with kvrail.serve("16MiB") as sidecar:
        client = sidecar.attach()
        volume, arena = client.volume("kv"), client.create_arena(8 << 20)
        threading.Timer(0.2, sidecar.kill).start()
        places = range(0, 8 << 20, 4096)
        with pytest.raises(kvrail.SessionEndedError, match="attach again|went away"):
            while True:
                volume.read_many(arena, places, places, 4096)
        with pytest.raises(kvrail.SessionEndedError):
            volume.read(arena, 0, 4096)
        with pytest.raises(kvrail.SessionEndedError):
            client.create_arena(4096)
        arena.close()
        client.close()
    with pytest.raises(kvrail.NoSidecarError):
        sidecar.attach()


def test_the_sidecar_dies_under_an_event_loop():
    async def main():
        with kvrail.serve("16MiB") as sidecar:
            client = sidecar.attach()
            volume, arena = client.volume("kv"), client.create_arena(1 << 20)
            queue = kvrail.aio.Queue(volume)
            asyncio.get_running_loop().call_later(0.2, sidecar.kill)
            places = range(0, 1 << 20, 4096)
            with pytest.raises(kvrail.SessionEndedError):
                while True:
                    await queue.read_many(arena, places, places, 4096)
            await queue.close()
            client.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_sidecar_drains():
    with kvrail.serve("16MiB") as sidecar:
        client = sidecar.attach()
        volume, arena = client.volume("kv"), client.create_arena(1 << 20)
        volume.write(arena, 0, 1 << 20)
        sidecar.stop()
        with pytest.raises(kvrail.SessionEndedError):
            volume.read(arena, 0, 4096)
        client.close()


def test_a_client_goes_on_over_restarts(tmp_path):
    host = Host(tmp_path)
    host.start()
    blocks = {b"%d" % number: bytes([number + 1]) * (1 + 5003 * number) for number in range(16)}
    epochs, restart = [], threading.Thread()
    while len(epochs) < 3:
        # Waits for the next sidecar by itself.
        with kvrail.Client(host.socket, wait=30) as client:
            space = client.store("kv").namespace("restarts", {"model": "test"})
            if not epochs:
                assert all(space.put(*block, durable=True) == "OK" for block in blocks.items())
            epochs.append(client.epoch)
            # Until all of the drive is read, blocks that are not found yet are misses.
            until("its drive is read", lambda: not space.lookup(list(blocks)).warming)
            assert all(space.get(key) == block for key, block in blocks.items())
            host.kill()
            with pytest.raises(kvrail.SessionEndedError):
                space.get(b"0")
            restart = threading.Timer(0.2, host.start)
            restart.start()
    restart.join()
    assert len(set(epochs)) == 3
    start = time.monotonic()
    with pytest.raises(kvrail.NoSidecarError):
        kvrail.Client(tmp_path / "none", wait=0.1)
    assert time.monotonic() - start >= 0.1
    with pytest.raises(kvrail.RequestError, match="wait is -1"):
        kvrail.Client(host.socket, wait=-1)
    host.kill()


def test_a_wait_ends_in_time(volume, arena):
    start = time.monotonic()
    with pytest.raises(kvrail.TimedOutError, match="in flight"):
        while True:
            volume.read(arena, 0, len(arena), timeout=0)
    with volume.open_queue() as queue:
        queue.read(arena, 0, len(arena))
        queue.wait(2, timeout=0.1)
        assert queue.wait(1, timeout=0.1) == []
    assert time.monotonic() - start < 30
    # Old completions are not mistaken for later ones.
    for _ in range(20):
        assert volume.read(arena, 0, 4096).bytes == 4096


def test_ctrl_c_ends_a_wait():
    code = """
client = kvrail.Client(sys.argv[1])
volume, arena = client.volume("kv"), client.create_arena(1 << 20)
queue = volume.open_queue()
stopped = int(sys.argv[2])
signal.signal(signal.SIGALRM, signal.default_int_handler)
volume.read(arena, 0, 4096)
os.kill(stopped, signal.SIGSTOP)
threads = [f"/proc/{stopped}/task/{thread}/stat" for thread in os.listdir(f"/proc/{stopped}/task")]
while not all(") T" in open(thread).read() for thread in threads):
    time.sleep(0.001)
waits = (
    lambda: volume.read(arena, 0, 4096),
    lambda: volume.read(arena, 0, 4096, timeout=20),
    lambda: (queue.read(arena, 0, 4096), queue.wait()),
    client.status,
    volume.open_queue,
    lambda: client.create_arena(4096),
    lambda: kvrail.Client(sys.argv[1]),
)
for wait in waits:
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        wait()
        print("no interrupt")
    except KeyboardInterrupt:
        print("interrupted" if time.monotonic() - start < 10 else "late")
os.kill(stopped, signal.SIGCONT)
print(volume.read(arena, 0, 4096).status)
client.close()
"""
    with kvrail.serve("16MiB") as sidecar:
        try:
            done = run(code, sidecar.socket, sidecar.pid)
        finally:
            os.kill(sidecar.pid, signal.SIGCONT)
        assert done.stdout.split() == ["interrupted"] * 7 + ["OK"], done


@pytest.mark.parametrize("stopped", [False, True], ids=["serving", "while the sidecar hangs"])
@pytest.mark.parametrize("call", ["put", "get", "lookup", "queue", "read", "volume_queue"])
def test_a_close_ends_the_calls_of_other_threads(sidecar, stores, call, stopped):
    """More than the memory that blocks are copied through goes in each call."""
    host = sidecar if call in ("read", "volume_queue") else stores
    client, ends = host.attach(), []
    work = Work(client).begin(call)
    work()  # queues and memory are there
    inside = threading.Event()

    def run():
        try:
            while True:
                inside.set()
                work()
        except kvrail.KvrailError as error:
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    if stopped:
        os.kill(host.pid, signal.SIGSTOP)
    try:
        thread.start()
        inside.wait()
        client.close()
        thread.join(30)
        assert [type(end) for end in ends] == [kvrail.ClosedError]
    finally:
        os.kill(host.pid, signal.SIGCONT)


EXITS = """
import threading
client = kvrail.Client(sys.argv[1])
space = client.store("kv").namespace("exits", {"model": "m"})
arena = client.create_arena(32 << 20)

def calls(thread):
    names = [b"%d %d" % (thread, at) for at in range(16)]
    places = (arena, [(16 * thread + at) << 18 for at in range(16)], [1 << 18] * 16)
    while True:
        space.put_many(names, places)
        space.get_many(names, places)

for thread in range(8):
    threading.Thread(target=calls, args=(thread,), daemon=True).start()
time.sleep(0.2)
"""


def test_a_program_may_exit_while_its_daemon_threads_are_in_calls(stores):
    """Python ends such threads where they ask for its lock: below frames of this library."""
    for _ in range(3):
        done = run(EXITS, stores.socket)
        assert (done.returncode, done.stderr) == (0, "")


class Work:
    """Calls that do not end soon."""

    def __init__(self, client: kvrail.Client) -> None:
        self.client, self.blocks = client, [bytearray(1 << 20) for _ in range(24)]
        self.names = [b"%d" % at for at in range(len(self.blocks))]

    def begin(self, call: str):
        if call in ("read", "volume_queue"):
            return self.of_volume(call)
        space = self.client.store("kv").namespace("closing", {"model": "m"})
        space.put_many(self.names, self.blocks)
        if call == "queue":
            queue = space.queue()

            def through_it():
                queue.submit_get(self.names, self.blocks)
                queue.wait()

            return through_it
        return {
            "put": lambda: space.put_many(self.names, self.blocks),
            "get": lambda: space.get_many(self.names, self.blocks),
            "lookup": lambda: space.lookup(self.names),
        }[call]

    def of_volume(self, call: str):
        volume, arena = self.client.volume("kv"), self.client.create_arena(8 << 20)
        places = range(0, 8 << 20, 4096)
        if call == "read":
            return lambda: volume.read_many(arena, places, places, 4096)
        queue = volume.open_queue()

        def through_it():
            queue.read(arena, 0, len(arena))
            queue.wait()

        return through_it


@pytest.mark.parametrize("of", ["volume", "namespace"])
def test_a_close_ends_what_an_event_loop_waits_for(sidecar, stores, of):
    host = sidecar if of == "volume" else stores

    async def main():
        client = host.attach()
        if of == "volume":
            queue, arena = kvrail.aio.Queue(client.volume("kv")), client.create_arena(1 << 20)
            call = functools.partial(queue.read, arena, 0, 1 << 20)
        else:
            queue = kvrail.aio.Queue(client.store("kv").namespace("closing", {"model": "m"}))
            call = functools.partial(queue.get, b"nothing", bytearray(4096))
        await call()  # its memory is there
        os.kill(host.pid, signal.SIGSTOP)
        try:
            # A signal comes some time after it was sent, to one thread after the other.
            threads = Path(f"/proc/{host.pid}/task").glob("*/stat")
            for stat in threads:
                while stat.read_text().rpartition(")")[2].split()[0] != "T":
                    await asyncio.sleep(0.01)
            waiting = asyncio.ensure_future(call())
            await asyncio.sleep(0)
            await asyncio.to_thread(client.close)
            with pytest.raises(kvrail.ClosedError):
                await waiting
        finally:
            os.kill(host.pid, signal.SIGCONT)
        await queue.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_memory_of_calls_whose_time_was_over_is_used_again(stores):
    """Another call that waits for that memory, and has nothing in flight, takes it."""
    with stores.attach() as client:
        space = client.store("kv").namespace("late", {"model": "m"})
        names, blocks = [b"%d" % at for at in range(20)], [bytearray(1 << 20) for _ in range(20)]
        space.put_many(names, blocks)
        ends = []

        def late():
            with pytest.raises(kvrail.TimedOutError):
                space.get_many(names, blocks, timeout=1.0)

        def other():
            ends.append(space.get_many(names, [bytearray(1 << 20) for _ in names]).all_ok)

        first, second = (threading.Thread(target=it, daemon=True) for it in (late, other))
        os.kill(stores.pid, signal.SIGSTOP)
        try:
            first.start()
            time.sleep(0.2)  # it has all of the memory by then, or the test shows nothing
            second.start()
            first.join()
        finally:
            os.kill(stores.pid, signal.SIGCONT)
        second.join(30)
        assert ends == [True]


def test_use_after_fork(sidecar):
    code = """
client = kvrail.Client(sys.argv[1])
volume, arena = client.volume("kv"), client.create_arena(1 << 20)
queue = volume.open_queue()
view = memoryview(arena)
queue.read(arena, 0, 4096)
volume.read(arena, 0, 4096)
child = os.fork()
if child == 0:
    refused = 0
    uses = (client.status, client.close, volume.flush, queue.poll, queue.close, arena.close,
            lambda: volume.read(arena, 0, 4096), lambda: queue.read(arena, 0, 4096),
            volume.open_queue, lambda: client.create_arena(4096))
    for use in uses:
        try:
            use()
        except kvrail.ForkedError as error:
            assert "attach in the child" in str(error)
            refused += 1
    view[0] = 1
    with kvrail.Client(sys.argv[1]) as own:
        arena = own.create_arena(4096)
        assert own.volume("kv").read(arena, 0, 4096).ok
    sys.exit(0 if refused == len(uses) else 1)
assert os.waitpid(child, 0)[1] == 0
assert volume.read(arena, 0, 4096).ok
queue.wait()
client.close()
print("well")
"""
    done = run(code, sidecar.socket)
    assert done.stdout.strip() == "well", done


def sessions(client: kvrail.Client) -> int:
    return len(client.status()["sessions"])


def test_a_killed_process_leaves_nothing(sidecar, client):
    before = sessions(client)
    code = """
client = kvrail.Client(sys.argv[1])
volume, arena = client.volume("kv"), client.create_arena(1 << 20)
queue = volume.open_queue()
queue.read(arena, 0, 1 << 20)
if os.fork() == 0:
    os.write(1, b"ready\\n")
    time.sleep(60)
os.write(1, b"ready\\n")
time.sleep(60)
"""
    command = [sys.executable, "-c", SLOW + code, str(sidecar.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"ready\n" == process.stdout.readline()
        assert sessions(client) == before + 1
        # Only the process that attached dies; its child keeps copies of all descriptors.
        process.kill()
        process.wait()
        try:
            until("its session ends", lambda: sessions(client) == before)
            assert client.status()["regions"]["bytes"] == 0
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_killed_program_takes_the_sidecar_of_an_ended_thread_along():
    code = """
kept = []
serve = threading.Thread(target=lambda: kept.append(kvrail.serve("16MiB")))
serve.start()
serve.join()
print(kept[0].socket, flush=True)
kvrail.Client(sys.stdin.readline().strip()).close()
print("serves", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", "import threading\n" + SLOW + code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        socket = process.stdout.readline()
        process.stdin.write(socket)
        process.stdin.flush()
        assert process.stdout.readline() == "serves\n"
        process.kill()
    until("its folder is removed", lambda: not Path(socket.strip()).parent.exists())


def test_the_end_of_the_interpreter_with_everything_open(sidecar):
    code = """
client = kvrail.Client(sys.argv[1])
volume, arena = client.volume("kv"), client.create_arena(1 << 20)
queue = volume.open_queue()
queue.read(arena, 0, 4096)
view = memoryview(arena)
print("well")
"""
    done = run(code, sidecar.socket)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "well", "")


def test_an_embedded_sidecar_ends_with_its_program(tmp_path):
    code = """
sidecar = kvrail.serve("16MiB", directory=sys.argv[1])
print(sidecar.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    pid = int(run(code, tmp_path).stdout)
    until("it has ended", lambda: not os.path.exists(f"/proc/{pid}/exe"))
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_sidecar_that_cannot_start(tmp_path):
    with pytest.raises(kvrail.ServeError, match="size"):
        kvrail.serve("nonsense", directory=tmp_path)
    with pytest.raises(kvrail.ServeError, match="no.such.key"):
        kvrail.serve("16MiB", directory=tmp_path, settings={"no.such.key": "1"})
    assert list(tmp_path.iterdir()) == []
    with kvrail.serve("16MiB", directory=tmp_path) as sidecar:
        assert sidecar.attach().volume("kv").capacity >= 15 << 20
        assert sidecar.log()
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_sidecar_in_any_folder(tmp_path, monkeypatch):
    odd = tmp_path / '"\\ 😀'
    odd.mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in (odd, odd.name):
        with kvrail.serve("16MiB", directory=folder) as sidecar:
            assert sidecar.socket.is_absolute()
            sidecar.attach().close()
    assert list(odd.iterdir()) == []


def test_an_embedded_sidecar_in_a_folder_too_long_for_a_socket(tmp_path):
    long = tmp_path / ("n" * 120)
    long.mkdir()
    with kvrail.serve("16MiB", directory=long) as sidecar:
        assert len(os.fsencode(sidecar.socket)) <= 107
        sidecar.attach().close()
    assert list(long.iterdir()) == []
    assert not sidecar.socket.parent.exists()


def test_a_forked_child_stops_no_sidecar_of_its_parent(tmp_path):
    code = """
with kvrail.serve("16MiB", directory=sys.argv[1]) as sidecar:
    if os.fork() == 0:
        sidecar.stop()
        sidecar.kill()
        sidecar.__exit__(None, None, None)
        sys.exit(0)
    assert os.wait()[1] == 0
    with sidecar.attach() as client:
        assert client.volume("kv").flush().ok
print("well")
"""
    done = run(code, tmp_path)
    assert done.stdout.strip() == "well", done
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_not_for_the_embedded_sidecar(tmp_path):
    # A shell's background jobs inherit an interrupt that is ignored.
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)
os.setpgid(0, 0)
with kvrail.serve("16MiB", directory=sys.argv[1]) as sidecar, sidecar.attach() as client:
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(10)
    except KeyboardInterrupt:
        print("interrupted")
    time.sleep(0.2)
    assert client.volume("kv").flush().ok
print("well")
"""
    done = run(code, tmp_path)
    assert done.stdout.split() == ["interrupted", "well"], done


def test_a_stopped_sidecar_leaves_nothing(tmp_path):
    sidecar = kvrail.serve("16MiB", directory=tmp_path)
    sidecar.stop()
    assert "drained and stopped" in sidecar.log()
    del sidecar
    assert list(tmp_path.iterdir()) == []


def test_the_console_script_is_the_binary():
    done = run("from kvrail._binary import main; sys.argv = ['kvrail', '--version']; main()")
    assert done.stdout.startswith("kvrail "), done
