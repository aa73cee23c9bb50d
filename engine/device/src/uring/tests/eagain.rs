//! Requests that the kernel hands back with EAGAIN are submitted again, unchanged. For disks the
//! kernel waits by itself for whatever it lacks, so these reads are of a kind that may not wait:
//! for a file outside the page cache, the kernel returns EAGAIN and begins to load it.

use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::Status;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::{AT, Fault, open, reap_all, submit_reads};
use crate::contract::{Device, Finished};
use crate::failure::Cause;
use crate::split::Outcome;
use crate::uring::sqe::{Block, SqeFormat};

const READS: u32 = 64;
const READ_BYTES: u32 = 64 << 10;

thread_local! {
    /// Requests that came back with EAGAIN.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
}

/// Reads that may not wait.
#[derive(Clone, Debug)]
struct Nowait;

impl Fault for Nowait {
    const READ_FLAGS: i32 = libc::RWF_NOWAIT;

    fn moved_all(result: i32, asked: u32) -> bool {
        Block::moved_all(result, asked)
    }

    fn outcome(result: i32, asked: u32) -> Outcome {
        if result == -Errno::AGAIN.raw_os_error() {
            REFUSALS.set(REFUSALS.get() + 1);
        }
        Block::outcome(result, asked)
    }

    fn cause(result: i32) -> Cause {
        Block::cause(result)
    }
}

/// Content of the block of that number.
fn content(number: u32) -> Vec<u8> {
    (0..READ_BYTES).map(|at| (at / 4096 + number * 31).to_le_bytes()[0]).collect()
}

/// A file that the page cache does not hold. Beside this program: `/tmp` may be memory.
fn cold_file() -> tempfile::NamedTempFile {
    let program = std::env::current_exe().unwrap();
    let file = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
    for number in 0..READS {
        file.as_file().write_all_at(&content(number), u64::from(number * READ_BYTES)).unwrap();
    }
    file.as_file().sync_all().unwrap();
    fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    file
}

#[test]
fn what_comes_back_with_eagain_is_submitted_again_until_it_is_done() {
    let file = cold_file();
    let mut device = open::<Nowait>(&file);
    let region = Arc::new(HeapBlock::new((READS * READ_BYTES) as usize));
    device.attach(AT, Arc::<HeapBlock>::clone(&region)).unwrap();
    submit_reads(&mut device, READS, READ_BYTES);
    let completed = reap_all(&mut device, || {});
    let expected = (0..READS).map(|number| Finished {
        tag: u64::from(number),
        status: Status::Ok,
        bytes: READ_BYTES,
    });
    assert!(completed.iter().copied().eq(expected), "{completed:?}");
    for number in 0..READS {
        let mut bytes = vec![0; READ_BYTES as usize];
        region.read_at((number * READ_BYTES) as usize, &mut bytes).unwrap();
        assert!(bytes == content(number), "block {number}");
    }
    let refusals = REFUSALS.get();
    println!("{refusals} times EAGAIN");
    assert!(refusals > 0, "no request was submitted twice: this shows nothing");
}
