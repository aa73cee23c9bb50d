//! The guide's program in Rust for a store; a test compares it with the guide.

use std::time::Duration;

use kvrail_client::{BlockKey, BlockRequest, Client, Identity, Lookup, Pages, Status};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::attach("kvrail.sock")?;
    let identity = Identity::new([("model", "llama-70b"), ("dtype", "fp8"), ("tokens", "16")])?;
    let space = client.store("kv")?.namespace("demo", &identity)?;
    let arena = client.create_arena(8 << 20, Pages::Auto)?;
    let mut queue = client.open_queue(128)?;

    let key = BlockKey::of(b"the engine's name of the block");
    let mut block = arena.lease(640_256)?;
    block.fill(0xa5);
    queue.submit(BlockRequest::put(&space, key, block).depth(3).metadata(b"mine"))?;
    let put = queue.wait(Duration::MAX)?.expect("one is in flight");
    assert_eq!(put.status, Status::Ok); // put.note says if it was there already

    let hold = Duration::from_secs(5);
    let found = queue.lookup(&space, &[key], &Lookup { hold, ..Lookup::default() })?;
    assert_eq!(found.prefix, 1);

    queue.submit(BlockRequest::get(&space, key, arena.lease(1 << 20)?))?;
    let got = queue.wait(Duration::MAX)?.expect("one is in flight");
    assert_eq!((got.status, got.bytes), (Status::Ok, 640_256));
    let block = got.lease.expect("the completion brings it");
    assert!(block[..640_256].iter().all(|byte| *byte == 0xa5));
    println!("the same bytes");
    Ok(())
}
