//! The guide's program in Rust; a test compares it with the guide.

use std::time::Duration;

use kvrail_client::{Client, Pages, Request, Status};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::attach("kvrail.sock")?;
    let volume = client.volume("kv")?;
    let arena = client.create_arena(8 << 20, Pages::Auto)?;
    let mut queue = client.open_queue(128)?;

    let mut block = arena.lease(256 << 10)?;
    block.fill(0xa5);
    queue.submit(Request::write(&volume, 0, block))?;
    let written = queue.wait(Duration::MAX)?.expect("one is in flight");
    assert_eq!(written.status, Status::Ok);

    queue.submit(Request::read(&volume, 0, arena.lease(256 << 10)?))?;
    let read = queue.wait(Duration::MAX)?.expect("one is in flight");
    assert_eq!(read.status, Status::Ok);
    let block = read.lease.expect("the completion brings it");
    assert!(block.iter().all(|byte| *byte == 0xa5));
    println!("the same bytes");
    Ok(())
}
