"""L1, L3: LMCache's own bench accepts the adapter, and its contract holds over kills."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import compress
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed")

import torch  # noqa: E402
from host import BUSY, Busy, Host  # noqa: E402
from kvrail import _lane, _tier  # noqa: E402
from kvrail.lmcache import L2Adapter  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey  # noqa: E402
from lmcache.v1.memory_management import (  # noqa: E402
    MemoryFormat,
    MemoryObjMetadata,
    TensorMemoryObj,
)

OBJECT = 1 << 20


def spec(host) -> dict[str, Any]:
    whole = {"type": "plugin", "module_path": "kvrail.lmcache", "class_name": "L2Adapter"}
    return whole | {"adapter_params": {"socket": str(host.socket)}}


@pytest.fixture
def adapter(host) -> Iterator[L2Adapter]:
    adapter = L2Adapter({"socket": str(host.socket)})
    yield adapter
    adapter.close()


def keys_of(numbers: range, salt: str = "") -> list[ObjectKey]:
    return [ObjectKey(number.to_bytes(32, "big"), "model", 7, 0, salt) for number in numbers]


def objects(
    count: int,
    seed: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    nbytes: int = OBJECT,
) -> list[Any]:
    """Objects as LMCache hands them over: with random bytes, or empty."""
    random, made = numpy.random.default_rng(seed), []
    for _ in range(count):
        raw = torch.zeros(nbytes, dtype=torch.uint8)
        if seed is not None:
            raw = torch.from_numpy(random.integers(0, 256, nbytes, dtype=numpy.uint8))
        shape = torch.Size([nbytes // dtype.itemsize])
        about = MemoryObjMetadata(
            shape, dtype, 0, nbytes, fmt=MemoryFormat.KV_2LTD, ref_count=1, shapes=[shape]
        )
        about.dtypes = [dtype]
        made.append(TensorMemoryObj(raw, about, None))
    return made


def object_of(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> Any:
    """One object of these tensors, as LMCache hands it over."""
    sizes = [torch.Size(it) for it in shapes]
    raw = torch.zeros(
        sum(size.numel() * dtype.itemsize for size, dtype in zip(sizes, dtypes, strict=True)),
        dtype=torch.uint8,
    )
    about = MemoryObjMetadata(
        sizes[0], dtypes[0], 0, raw.nbytes, fmt=MemoryFormat.KV_2LTD, ref_count=1, shapes=sizes
    )
    about.dtypes = list(dtypes)
    return TensorMemoryObj(raw, about, None)


def layout_of(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> MemoryLayoutDesc:
    return MemoryLayoutDesc([torch.Size(it) for it in shapes], list(dtypes))


def layouts(dtype: torch.dtype = torch.bfloat16) -> dict[int, MemoryLayoutDesc]:
    return {0: MemoryLayoutDesc([torch.Size([OBJECT // dtype.itemsize])], [dtype])}


def wait(fd: int, query: Any) -> Any:
    """As LMCache's controllers wait: they poll only when the eventfd has rung, and read it."""
    poller, deadline = select.poll(), time.monotonic() + 30
    poller.register(fd, select.POLLIN)
    while True:
        assert poller.poll(1000 * (deadline - time.monotonic())), "the eventfd never rang"
        os.eventfd_read(fd)
        if (answer := query()) not in (None, {}):
            return answer


def store(adapter: L2Adapter, keys: list[ObjectKey], out: list[Any]) -> Any:
    task = adapter.submit_store_task(keys, out)
    return wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)[task]


def lookup(adapter: L2Adapter, keys: list[ObjectKey], descs: Any = None) -> list[bool]:
    task = adapter.submit_lookup_and_lock_task(keys, layouts() if descs is None else descs)
    fd = adapter.get_lookup_and_lock_event_fd()
    found = wait(fd, lambda: adapter.query_lookup_and_lock_result(task))
    return [found.test(at) for at in range(len(keys))]


def load(adapter: L2Adapter, keys: list[ObjectKey], back: list[Any]) -> list[bool]:
    task = adapter.submit_load_task(keys, back)
    came = wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
    assert adapter.query_load_result(task) is None, "an answer is given once"
    return [came.test(at) for at in range(len(keys))]


def test_objects_are_stored_with_their_place_in_what_was_looked_up(adapter, placed):
    keys = keys_of(range(8))
    others = [ObjectKey(key.chunk_hash, "model", 8, 0, "") for key in keys]
    # One request of two workers.
    assert not any(lookup(adapter, [*keys, *others]))
    for some in (keys[:3], keys[3:5], [keys[5], others[0]], keys_of(range(90, 91))):
        assert store(adapter, some, objects(len(some), seed=1)).is_successful()
    assert placed == [
        (["begins"] * 3, [0, 1, 2]),
        (["begins"] * 2, [3, 4]),
        (["extends", "begins"], [5, 0]),
        (["extends"], [0]),
    ]


def test_a_store_that_a_busy_store_declines_is_no_failure(tmp_path):
    host = Host(tmp_path, "48MiB", block_mean="64KiB")
    host.start()
    busy, adapter = Busy(host), L2Adapter({"socket": str(host.socket)})
    for number in range(100):
        keys = keys_of(range(16 * number, 16 * number + 16))
        descs = {0: MemoryLayoutDesc([torch.Size([BUSY // 2])], [torch.bfloat16])}
        assert not any(lookup(adapter, keys, descs))
        stored = store(adapter, keys, objects(16, seed=1, nbytes=BUSY))
        assert stored.is_successful()
        if stored.bytes_transferred() == 0:
            break
        busy.read()
    else:
        raise AssertionError("new chains are always taken")
    assert not any(lookup(adapter, keys, descs)), "declined as a whole"
    adapter.close()
    host.kill()


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a.raw_data, b.raw_data) for a, b in zip(one, other, strict=True))


def test_its_own_bench_verifies(host):
    command = [Path(sys.executable).with_name("lmcache"), "bench", "l2", "--no-skip-verify"]
    command += ["--l2-adapter", json.dumps(spec(host)), "--l1-align-bytes", "4096"]
    command += ["--data-size-kb", "1024", "--num-keys", "16", "--in-flight", "2", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "verified OK" in done.stdout, done.stdout + done.stderr


def test_objects_come_back_one_by_one(adapter):
    keys, out, back = keys_of(range(8)), objects(6, seed=1), objects(8)
    assert int(store(adapter, keys[:6], out)) == 6 * OBJECT
    assert int(store(adapter, keys[:6], out)) == 0, "what is there already moves no bytes"
    assert lookup(adapter, keys) == [True] * 6 + [False] * 2
    assert load(adapter, keys, back) == [True] * 6 + [False] * 2
    assert equal(out, back[:6]) and not any(it.raw_data.any() for it in back[6:])
    adapter.submit_unlock(keys)
    assert adapter.report_status()["is_healthy"] and adapter.get_usage().total_bytes_used > 0


def test_salts_ranks_and_dtypes_are_apart(adapter):
    keys, out = keys_of(range(2)), objects(2, seed=1)
    store(adapter, keys, out)
    assert lookup(adapter, keys_of(range(2), salt="user")) == [False, False]
    other = [ObjectKey(key.chunk_hash, key.model_name, 8) for key in keys]
    assert lookup(adapter, other) == [False, False]
    # The same length, another meaning: LMCache's key lacks the dtype.
    assert load(adapter, keys, objects(2, dtype=torch.float16)) == [False, False]
    assert lookup(adapter, keys) == [True, True]


def test_another_server_finds_them_by_their_layout(adapter, host):
    keys, out = keys_of(range(3)), objects(3, seed=1)
    store(adapter, keys, out)
    other = L2Adapter({"socket": str(host.socket)})
    assert lookup(other, keys, layouts(torch.float16)) == [False] * 3
    assert lookup(other, keys) == [True] * 3
    back = objects(3)
    assert load(other, keys, back) == [True] * 3 and equal(out, back)
    other.close()


def test_deleted_objects_are_gone_and_accounted_for(adapter):
    keys = keys_of(range(4))
    store(adapter, keys, objects(4, seed=1))
    before = adapter.get_usage().bytes_by_cache_salt[""]
    adapter.delete(keys[:2])
    assert before - adapter.get_usage().bytes_by_cache_salt[""] == 2 * OBJECT
    assert lookup(adapter, keys) == [False, False, True, True]
    adapter.delete(keys_of(range(90, 92)))


def test_an_object_that_is_stored_again_is_what_was_stored_last(adapter):
    """Other bytes, or another length, of what LMCache's serialization or bench makes."""
    keys, kind = keys_of(range(8)), torch.uint8
    for seed, nbytes in ((1, OBJECT), (2, OBJECT), (3, OBJECT // 4), (4, 2 * OBJECT)):
        out, back = objects(8, seed, kind, nbytes), objects(8, None, kind, nbytes)
        assert int(store(adapter, keys, out)) == 8 * nbytes
        assert load(adapter, keys, back) == [True] * 8 and equal(out, back)
        assert adapter.get_usage().bytes_by_cache_salt[""] == 8 * nbytes
    assert load(adapter, keys, objects(8, None, kind)) == [False] * 8, "another length is a miss"


def test_a_delete_needs_no_store_before(adapter, host):
    """A new server has stored and loaded nothing: it learns the dtypes of what is there."""
    keys = keys_of(range(8))
    store(adapter, keys, objects(8, seed=1))
    store(adapter, keys_of(range(8, 10)), objects(2, seed=1, dtype=torch.float16))
    for first in (0, 4):
        other, told = L2Adapter({"socket": str(host.socket)}), Listener()
        other.register_listener(told)
        if first:
            lookup(other, keys_of(range(20, 21)), layouts(torch.float16))
        other.delete(keys[first : first + 4])
        assert told.there == {*keys[first + 4 :], *keys_of(range(8, 10))}
        assert other.get_usage().bytes_by_cache_salt[""] == len(told.there) * OBJECT
        other.close()
    assert lookup(adapter, keys) == [False] * 8


def test_an_unlock_ends_the_holds_of_a_lookup_alone(adapter, host, tmp_path):
    keys = keys_of(range(8))
    store(adapter, keys, objects(8, seed=1))
    other = L2Adapter({"socket": str(host.socket)})
    assert lookup(other, keys) == [True] * 8
    held(host, 8)
    other.submit_unlock(keys)
    held(host, 0)
    other.close()


def held(host, count: int) -> None:
    """Waits until this number of blocks is held: a poller shows it a while after the lookup."""
    until = time.monotonic() + 5
    while (holds := host.holds()) != count:
        assert time.monotonic() < until, f"{holds} blocks are held, not {count}"


def test_sizes_that_differ_are_deleted_as_they_were_stored(adapter):
    sizes = [OBJECT >> at for at in range(8)] + [12 * (at + 1) for at in range(7)]
    for number, nbytes in enumerate(sizes):
        out = objects(1, number, torch.uint8, nbytes)
        store(adapter, keys_of(range(number, number + 1)), out)
    assert adapter.get_usage().bytes_by_cache_salt[""] == sum(sizes)
    adapter.delete(keys_of(range(0, 15, 2)))
    assert adapter.get_usage().bytes_by_cache_salt[""] == sum(sizes[1::2])
    adapter.delete(keys_of(range(15)))
    assert adapter.get_usage().bytes_by_cache_salt == {}


def test_what_is_stored_while_the_listing_goes_on_counts_once(adapter, host):
    store(adapter, keys_of(range(4)), objects(4, seed=1))
    other = L2Adapter({"socket": str(host.socket)})
    # Two are there already, two are new, and the listing meets all six.
    assert int(store(other, keys_of(range(2, 6)), [*objects(4, seed=1)[2:], *objects(2, 2)]))
    for _ in range(3):
        lookup(other, keys_of(range(8)))
    assert other.get_usage().bytes_by_cache_salt[""] == 6 * OBJECT
    other.close()


def test_a_long_name_of_a_model_is_stored_and_found_but_not_listed(adapter, caplog):
    keys = [ObjectKey(bytes([at] * 32), "m" * 1100, 7) for at in range(2)]
    out, back = objects(2, seed=1), objects(2)
    assert store(adapter, keys, out).is_successful()
    assert lookup(adapter, keys) == [True] * 2
    assert load(adapter, keys, back) == [True] * 2 and equal(out, back)
    assert adapter.list_l2_keys().entries == () and "not announced" in caplog.text
    adapter.delete(keys)
    assert lookup(adapter, keys) == [False] * 2


def test_objects_that_lmcache_touches_outlive_others(tmp_path):
    host = Host(tmp_path / "small", "128MiB")
    host.start()
    adapter, hot, cold = L2Adapter({"socket": str(host.socket)}), keys_of(range(8)), range(8, 16)
    store(adapter, keys_of(range(16)), objects(16, seed=1))
    for first in range(100, 740, 16):
        adapter.submit_touch(hot)
        store(adapter, keys_of(range(first, first + 16)), objects(16, seed=first))
    assert (all(lookup(adapter, hot)), any(lookup(adapter, keys_of(cold)))) == (True, False)
    adapter.close()
    host.kill()


def test_the_kind_of_memory_is_reported(adapter):
    api = pytest.importorskip("lmcache.v1.distributed.api")
    if not hasattr(api, "MemoryTags"):
        pytest.skip("this LMCache has no memory tags")
    tags = adapter.get_memory_tags()
    assert (tags.segment.value, tags.residency.value) == ("storage", "local")
    adapter.set_backend_identity("kvrail", shared=True)
    assert adapter.get_memory_tags().residency.value == "remote"


def test_several_tasks_are_in_flight(adapter):
    tasks = {}
    for turn in range(6):
        keys = keys_of(range(8 * turn, 8 * turn + 8))
        tasks[adapter.submit_store_task(keys, objects(8, seed=turn))] = turn
    done: dict[int, Any] = {}
    while len(done) < 6:
        done |= wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
    assert done.keys() == tasks.keys() and all(it.is_successful() for it in done.values())


def test_what_is_listed_is_what_is_there(adapter, host):
    keys = keys_of(range(20))
    store(adapter, keys, objects(20, seed=1))
    listed, cursor = [], None
    while True:
        page = adapter.list_l2_keys("model", page_size=7, cursor=cursor)
        listed += [it.key.to_object_key() for it in page.entries]
        assert all(it.size_bytes == OBJECT for it in page.entries)
        if (cursor := page.next_page_token) is None:
            break
    assert sorted(listed, key=lambda listed_key: listed_key.chunk_hash) == keys
    assert adapter.list_l2_keys("other").entries == ()
    with pytest.raises(ValueError, match="cursor"):
        adapter.list_l2_keys(cursor="old")


def test_a_new_server_announces_what_is_there_and_what_goes(adapter, host):
    store(adapter, keys_of(range(10)), objects(10, seed=1))
    other, told = L2Adapter({"socket": str(host.socket)}), Listener()
    other.register_listener(told)
    lookup(other, keys_of(range(1)))
    assert told.there == set(keys_of(range(10)))
    assert other.get_usage().bytes_by_cache_salt[""] == 10 * OBJECT
    for first in range(100, 1000, 20):
        store(other, keys_of(range(first, first + 20)), objects(20, seed=first))
    for _ in range(8):
        time.sleep(1.1 * _tier.FEED_S)
        lookup(other, keys_of(range(1)))
    all_ = keys_of(range(1000))
    there = {key for key, found in zip(all_, lookup(other, all_), strict=True) if found}
    assert told.there == there and 0 < len(there) < 900
    other.close()


class Listener:
    """The view of a coordinator."""

    def __init__(self) -> None:
        self.there: set[ObjectKey] = set()

    def on_l2_keys_stored(self, keys: list[ObjectKey], sizes: list[int]) -> None:
        self.there |= set(keys)

    def on_l2_keys_accessed(self, keys: list[ObjectKey]) -> None: ...

    def on_l2_keys_deleted(self, keys: list[ObjectKey]) -> None:
        self.there -= set(keys)


def test_three_descriptors(adapter):
    fds = {adapter.get_store_event_fd(), adapter.get_load_event_fd()}
    assert len(fds | {adapter.get_lookup_and_lock_event_fd()}) == 3


def test_unknown_parameters_are_refused(host):
    with pytest.raises(ValueError, match="sockett.*socket"):
        L2Adapter({"sockett": str(host.socket)})


def test_a_store_and_a_sidecar_that_are_not_there_are_named(host):
    with pytest.raises(Exception, match="other"):
        L2Adapter({"socket": str(host.socket), "store": "other"})
    with pytest.raises(Exception, match="no sidecar"):
        L2Adapter({"socket": "/nowhere/s"})


def test_memory_that_is_not_shared_is_copied_and_counted(adapter):
    keys, out, back = keys_of(range(4)), objects(4, seed=1), objects(4)
    store(adapter, keys, out)
    assert load(adapter, keys, back) == [True] * 4 and equal(out, back)
    status = adapter.report_status()
    assert status["copied_bytes"] == 2 * 4 * OBJECT and "no shared file" in status["copies"]


def test_a_store_that_takes_nothing_more_fails_stores_and_nothing_else(tmp_path):
    full = Host(tmp_path / "full", "64MiB", budget="0.001dwpd")
    full.start()
    adapter, out = L2Adapter({"socket": str(full.socket)}), objects(8, seed=1)
    told = [store(adapter, keys_of(range(at, at + 8)), out) for at in range(0, 128, 8)]
    assert told[0].is_successful() and not told[-1].is_successful()
    keys, back = keys_of(range(128)), objects(8)
    assert 0 < sum(lookup(adapter, keys)) < 128
    for at in range(0, 128, 8):
        came = load(adapter, keys[at : at + 8], back)
        assert equal(list(compress(out, came)), list(compress(back, came)))
    assert adapter.report_status()["is_healthy"]
    adapter.close()
    full.kill()


def test_a_drive_that_hangs_keeps_its_loads_and_no_call_waits_for_it(adapter, host, monkeypatch):
    monkeypatch.setattr(_tier, "HUNG_S", 0.3)
    keys, out, back = keys_of(range(8)), objects(8, seed=1), objects(8)
    store(adapter, keys, out)
    assert lookup(adapter, keys) == [True] * 8
    assert load(adapter, keys[:1], back[:1]) == [True]
    host.freeze()
    try:
        begun = time.monotonic()
        task = adapter.submit_load_task(keys, back)
        later = adapter.submit_store_task(keys_of(range(50, 52)), objects(2, seed=2))
        assert time.monotonic() - begun < 1
        assert lookup(adapter, keys_of(range(60, 64))) == [False] * 4
        time.sleep(0.4)
        begun = time.monotonic()
        assert not adapter.report_status()["is_healthy"]
        assert lookup(adapter, keys) == [False] * 8, "while it hangs it gets no request"
        assert not store(adapter, keys_of(range(70, 72)), objects(2, seed=3)).is_successful()
        adapter.submit_unlock(keys)
        assert adapter.query_load_result(task) is None, "its memory is not LMCache's yet"
        assert time.monotonic() - begun < 2
    finally:
        host.thaw()
    came = wait(adapter.get_load_event_fd(), lambda: adapter.query_load_result(task))
    assert came.popcount() == 8 and equal(out, back)
    done = wait(adapter.get_store_event_fd(), adapter.pop_completed_store_tasks)
    assert done[later].is_successful() and adapter.report_status()["is_healthy"]


def test_the_server_goes_on_without_a_sidecar_and_has_its_objects_again(adapter, host, monkeypatch):
    monkeypatch.setattr(_tier, "RETRY_S", 0.05)
    monkeypatch.setattr(_lane, "QUARANTINE_S", 0.2)
    keys, out, back = keys_of(range(16)), objects(16, seed=1), objects(16)
    assert store(adapter, keys, out).is_successful()
    host.write_records()
    task = adapter.submit_load_task(keys, back)
    host.kill()
    fd = adapter.get_load_event_fd()
    came = wait(fd, lambda: adapter.query_load_result(task)).popcount()
    assert came in (0, 16)
    assert lookup(adapter, keys) == [False] * 16
    assert not store(adapter, keys_of(range(50, 52)), objects(2, seed=2)).is_successful()
    assert load(adapter, keys[:2], back[:2]) == [False, False]
    assert not adapter.report_status()["is_healthy"]
    host.start()
    deadline = time.monotonic() + 30
    while not all(lookup(adapter, keys)):
        assert time.monotonic() < deadline, "never attached again"
        time.sleep(0.05)
    assert load(adapter, keys, back) == [True] * 16 and equal(out, back)
    assert adapter.report_status()["is_healthy"]
