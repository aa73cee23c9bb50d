"""Every wrong use raises the exception with the remedy."""

import array
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import kvrail
import numpy
import pytest

HUGE = 1 << 62


@pytest.mark.parametrize(
    ("offset", "length", "position", "error", "words"),
    [
        (100, 4096, 0, kvrail.RequestError, "multiples"),
        (0, 100, 0, kvrail.RequestError, "multiples"),
        (0, 0, 0, kvrail.RequestError, "0"),
        (HUGE, 4096, 0, kvrail.RequestError, "beyond"),
        (0, 4096, HUGE, kvrail.RequestError, "memory"),
        (0, 4096, (4 << 20) - 512, kvrail.RequestError, "memory"),
        (0, HUGE, 0, kvrail.RequestError, "memory"),
        (0, 2**64 - 1, 2**64 - 1, kvrail.RequestError, "memory"),
        (-4096, 4096, 0, OverflowError, "int"),
        (0, -1, 0, OverflowError, "int"),
        (2**64, 4096, 0, OverflowError, "int"),
        (0.5, 4096, 0, TypeError, "object"),
        ("0", 4096, 0, TypeError, "object"),
    ],
)
def test_ranges(volume, arena, offset, length, position, error, words):
    with volume.open_queue(2) as queue:
        for call in (volume.read, volume.write, queue.read, queue.write):
            with pytest.raises(error, match=words):
                call(arena, offset, length, position)
        assert queue.outstanding == 0


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (numpy.zeros(2, dtype=numpy.float64), "astype"),
        (numpy.zeros(2, dtype=numpy.int32), "astype"),
        (numpy.zeros(2, dtype=">i8"), "native"),
        (numpy.zeros((2, 2), dtype=numpy.int64), "dimensions"),
        (numpy.array([0, -4096]), r"offsets\[1\] is -4096"),
        (numpy.array([0, 2**63], dtype=numpy.uint64), "beyond"),
        (numpy.array([0, 1]), "multiples"),
        (numpy.arange(3), "3 items and positions has 2"),
        (b"12345678", "astype"),
        ([0, -1], r"offsets\[1\] is -1"),
        ([0, 2**64], r"offsets\[1\]"),
        ([0, "x"], "sequence of integers"),
        ("ab", "sequence of integers"),
        (None, "sequence of integers"),
        (3.5, "sequence of integers"),
        (-1, "offsets is -1"),
        ({1: 2}, "1 items"),
        (array.array("d", [0, 1]), "astype"),
    ],
)
def test_arrays(volume, arena, numbers, words):
    with pytest.raises(kvrail.RequestError, match=words):
        volume.read_many(arena, numbers, [0, 4096], 4096)


def test_the_bad_one_of_a_batch_is_named_and_the_others_end(volume, arena):
    with pytest.raises(kvrail.RequestError) as error:
        volume.read_many(arena, [0, 4096, 4097], [0, 4096, 8192], 4096)
    assert "request 2 of 3" in error.value.__notes__[0]
    with volume.open_queue() as queue:
        assert len(queue.read_many(arena, [0, 4096, 4097], [0, 4096, 8192], 4096)) == 2
        assert len(queue.wait(2)) == 2


def test_options(volume, arena):
    for options, error, words in [
        ({"colour": 1}, TypeError, "colour"),
        ({"priority": "high"}, kvrail.RequestError, "demand"),
        ({"timeout": -1}, kvrail.RequestError, "seconds"),
        ({"timeout": float("nan")}, kvrail.RequestError, "seconds"),
        ({"deadline": "soon"}, TypeError, "real number"),
        ({"durable": True}, kvrail.RequestError, "durable means nothing"),
        ({"verify": [1, 2]}, kvrail.RequestError, "verify has 2"),
    ]:
        with pytest.raises(error, match=words):
            volume.read_many(arena, [0], [0], 4096, **options)
    assert volume.read(arena, 0, 4096, timeout=None, verify=None).ok


def test_corrupt_bytes_are_an_exception_with_places(volume, arena):
    good = volume.read(arena, 0, 4096, checksum=True).checksum
    with pytest.raises(kvrail.CorruptError) as error:
        volume.read_many(arena, [0, 0, 0], [0, 4096, 8192], 4096, verify=[good, good ^ 1, good])
    assert error.value.status == "CORRUPT" and error.value.failed == [(1, "CORRUPT")]
    with volume.open_queue() as queue:
        queue.read(arena, 0, 4096, verify=good ^ 1)
        (end,) = queue.wait()
        with pytest.raises(kvrail.CorruptError):
            end.check()


def test_closed_things(sidecar):
    client = sidecar.attach()
    volume = client.volume("kv")
    arena = client.create_arena(1 << 20)
    queue = volume.open_queue()
    queue.read(arena, 0, 4096)
    queue.close()
    queue.close()
    for call in (queue.poll, queue.wait, queue.arm, queue.fileno, queue.flush):
        with pytest.raises(kvrail.ClosedError):
            call()
    arena.close()
    for call in (volume.read, volume.write):
        with pytest.raises(kvrail.ClosedError, match="arena"):
            call(arena, 0, 4096)
    arena, queue = client.create_arena(1 << 20), volume.open_queue()
    client.close()
    client.close()
    assert client.closed and arena.closed and queue.closed
    for call in (
        client.status,
        lambda: client.volume("kv"),
        lambda: client.volumes,
        lambda: client.create_arena(4096),
        lambda: volume.read(arena, 0, 4096),
        lambda: queue.poll(),
        lambda: memoryview(arena),
        volume.flush,
        volume.open_queue,
    ):
        with pytest.raises(kvrail.ClosedError):
            call()
    arena.close()
    queue.close()


def test_things_of_another_client(sidecar, volume):
    with sidecar.attach() as other:
        foreign = other.create_arena(1 << 20)
        with pytest.raises(kvrail.RequestError, match="another client"):
            volume.read(foreign, 0, 4096)


def test_arenas_that_cannot_be(client):
    with pytest.raises(kvrail.QuotaError, match="limits"):
        client.create_arena(1 << 60)
    with pytest.raises(kvrail.RequestError):
        client.create_arena(0)
    with pytest.raises(OverflowError):
        client.create_arena(-1)
    with pytest.raises(kvrail.RequestError, match="pages"):
        client.create_arena(4096, pages="big")
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 4096)
    with pytest.raises(kvrail.RequestError, match="seal"):
        client.import_arena(fd, 4096)
    os.close(fd)
    for nothing in (fd, -1, 12345):
        with pytest.raises(OSError):
            client.import_arena(nothing, 4096)
    with pytest.raises(kvrail.UnknownVolumeError, match="kv"):
        client.volume("nowhere")


def test_limits_have_names():
    with kvrail.serve("16MiB", settings={"limits.arenas_per_session": "1"}) as sidecar:
        with sidecar.attach() as client:
            client.create_arena(4096)
            with pytest.raises(kvrail.QuotaError, match="arenas_per_session") as error:
                client.create_arena(4096)
            assert error.value.status == "QUOTA"


def test_a_queue_in_two_threads(volume, arena):
    queue = volume.open_queue()
    inside, seen = threading.Event(), []

    def wait():
        for _ in range(200):
            queue.read(arena, 0, len(arena))
            inside.set()
            queue.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    inside.wait()
    while thread.is_alive():
        try:
            queue.poll()
        except kvrail.QueueBusyError as error:
            seen.append(error)
            break
    try:
        thread.join(30)
    except kvrail.QueueBusyError:
        pass
    assert seen and "each thread" in str(seen[0])


def test_synchronous_calls_from_many_threads(volume, arena):
    def work(me):
        for round in range(50):
            place = me * 65536
            view = memoryview(arena)[place : place + 4096]
            view[:] = bytes([me * 10 + round % 10]) * 4096
            volume.write(arena, place, 4096, place)
            volume.read(arena, place, 4096, place + 4096)
            assert bytes(memoryview(arena)[place + 4096 : place + 8192]) == bytes(view)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))


def test_no_sidecar(tmp_path):
    with pytest.raises(kvrail.NoSidecarError, match="kvrail serve"):
        kvrail.Client(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(kvrail.NoSidecarError):
        kvrail.Client(tmp_path / "file")
    with pytest.raises(TypeError):
        kvrail.Client(5)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"code": "Version", "message": "speak 9.0"}, kvrail.VersionMismatchError),
        ({"code": "NotAllowed", "message": "not you"}, kvrail.NotAdmittedError),
        (None, kvrail.SessionEndedError),
        ("silence", kvrail.TimedOutError),
    ],
)
def test_a_sidecar_that_does_not_let_us_in(tmp_path, answer, error):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            peer, _ = listener.accept()
            hello = json.loads(peer.recv(65536))
            if isinstance(answer, dict):
                reply = {"Reply": {"seq": hello["seq"], "answer": {"Refused": answer}}}
                peer.send(json.dumps(reply).encode())
            elif answer:
                peer.recv(1)
            peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error):
            kvrail.Client(path, timeout=0.3)
        thread.join()
