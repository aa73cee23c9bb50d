//! The guide's program for GPU memory in Rust; a test compares it with the guide.

use std::time::Duration;

use kvrail_client::{Client, Fragment, GpuCache, GpuMemory, Request, Status};
use kvrail_memory::{PageSize, Region, load, store};

const BLOCKS: u32 = 16;
const PART: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::attach("kvrail.sock")?;
    let volume = client.volume("kv")?;
    let gpu = client.gpus().first().expect("one is served").uuid.clone();

    // K of all blocks, then V of all blocks.
    let half = PART * BLOCKS as usize;
    let memory = Region::create("cache", 2 * half, PageSize::Base)?;
    let fd = memory.fd().try_clone_to_owned()?;
    let mut cache =
        GpuCache::new(gpu, BLOCKS).memory(GpuMemory::Descriptor { fd, bytes: 2 * half as u64 });
    for base in [0, half as u64] {
        let (stride, bytes) = (PART as u64, PART as u64);
        cache = cache.fragment(Fragment { memory: 0, base, stride, bytes });
    }
    let region = client.attach_gpu(cache)?;
    let mut queue = client.open_queue(128)?;

    store(&memory, half + 3 * PART, &[0xa5; PART]); // V of block 3
    let write = Request::write_gpu(&volume, 0, region.block(3)?);
    let read = Request::read_gpu(&volume, 0, region.block(9)?);
    for request in [write, read] {
        queue.submit(request)?;
        let end = queue.wait(Duration::MAX)?.expect("one is in flight");
        assert_eq!(end.status, Status::Ok);
    }
    region.detach()?;
    let mut back = [0; PART];
    load(&memory, half + 9 * PART, &mut back);
    assert_eq!(back, [0xa5; PART]);
    println!("the same bytes");
    Ok(())
}
