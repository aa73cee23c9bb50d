"""Several GPUs: each has a poller, blocks go from one to the other, a region is of one."""

from collections.abc import Iterator

import kvrail
import pytest

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip(f"PyTorch sees {torch.cuda.device_count()} GPUs, not 2", allow_module_level=True)


@pytest.fixture(scope="module")
def client() -> Iterator[kvrail.Client]:
    settings = {"gpu.devices": '["all"]'}
    with kvrail.serve("256MiB", settings=settings) as sidecar, sidecar.attach() as client:
        yield client


def cache(gpu):
    shape = (16, 16, 8, 128)
    made = [torch.zeros(shape, dtype=torch.bfloat16, device=f"cuda:{gpu}") for _ in range(8)]
    for tensor in made:
        tensor.normal_()
    torch.cuda.synchronize(gpu)
    return made


def test_status_has_each(client):
    known = {gpu["uuid"] for gpu in client.gpus}
    assert len(known) == torch.cuda.device_count()
    assert not any(gpu["failed"] for gpu in client.status()["gpus"])


def test_blocks_of_one_come_to_the_other(client):
    volume = client.volume("kv")
    first, second = cache(0), cache(1)
    with client.gpu_region(first) as here, client.gpu_region(second) as there:
        offsets = [at * here.block_bytes for at in range(here.blocks)]
        order = list(range(here.blocks))
        volume.write_blocks(here, offsets, order)
        volume.read_blocks(there, offsets, order[::-1])
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one.cpu(), other.cpu().flip(0))
    assert not any(gpu["failed"] for gpu in client.status()["gpus"])


def test_tensors_of_two_are_no_region(client):
    with pytest.raises((kvrail.KvrailError, ValueError), match="GPU"):
        client.gpu_region([cache(0)[0], cache(1)[0]])
