//! Rings over a pipe, where a read hangs until the test writes.
#![expect(unsafe_code, reason = "one test writes into a ring's shared page")]
// UNSAFETY: plays the kernel, which leaves a flag set that nothing but its timing would set here.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::Opcode;
use rustix::io::Errno;
use rustix::io_uring::{IORING_OFF_SQ_RING, IoringSqFlags, io_uring_params, io_uring_setup};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{EntriesLeft, Ring, RingCompletion};
use crate::buffer_table::{Access, BufferPlace};
use crate::contract::{Attached, BufferIndex, Durability, Operation};
use crate::uring::kernel_thread::KernelThread;
use crate::uring::ring_mode::{Interrupt, RingMode, Sqpoll};
use crate::uring::setup::{RingPlan, main_ring};
use crate::uring::sqe::Block;

const AT: BufferIndex = BufferIndex(3);

/// A ring over the reading end of an empty pipe: a read from it hangs until a write.
struct Pipe {
    ring: Ring<Block>,
    region: Arc<dyn Pinned>,
    write_end: OwnedFd,
}

fn pipe<M: RingMode<SqeFormat = Block>>() -> Pipe {
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let thread = KernelThread::default();
    let plan = RingPlan { path: "pipe", file: read_end.as_fd(), entries: 32, thread, tether: None };
    let mut ring = main_ring::<M>(&plan, Block::default()).unwrap().ring;
    let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    ring.register(AT, &region).unwrap();
    Pipe { ring, region, write_end }
}

fn read() -> Operation {
    let (opcode, durability) = (Opcode::Read, Durability::Visible);
    Operation { tag: 0, opcode, durability, offset: 0, length: 4096, buffer: AT, buffer_offset: 0 }
}

fn registered(address: usize) -> BufferPlace {
    BufferPlace { address, access: Access::Registered }
}

fn push_read<M: RingMode<SqeFormat = Block>>(pipe: &mut Pipe) {
    let address = pipe.region.base().as_ptr() as usize;
    pipe.ring.push(&read(), registered(address), 7);
    M::submit(&mut pipe.ring);
}

fn pop<M: RingMode<SqeFormat = Block>>(ring: &mut Ring<Block>) -> RingCompletion {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        M::collect(ring, 1);
        if let Some(completion) = ring.pop() {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion");
    }
}

/// The tag is the proof: it does not come while a request uses the buffer, and comes right after.
fn tag_comes_after_the_last_use<M: RingMode<SqeFormat = Block>>() {
    let mut pipe = pipe::<M>();
    push_read::<M>(&mut pipe);
    // The kernel looks the buffer up when it takes the request off the queue.
    while !pipe.ring.with_submissions(|queue| queue.is_empty()) {
        std::thread::yield_now();
    }
    assert_eq!(pipe.ring.unregister_one(AT), Ok(EntriesLeft::None));
    let patience = Instant::now() + Duration::from_millis(50);
    while Instant::now() < patience {
        M::collect(&mut pipe.ring, 1);
        assert_eq!(pipe.ring.pop(), None, "freed while a read uses it");
    }
    assert_eq!(Arc::strong_count(&pipe.region), 2);
    rustix::io::write(&pipe.write_end, b"late").unwrap();
    assert_eq!(pop::<M>(&mut pipe.ring), RingCompletion::Cqe { name: 7, result: 4 });
    assert_eq!(pop::<M>(&mut pipe.ring), RingCompletion::Freed(AT));
    assert_eq!(Arc::strong_count(&pipe.region), 1);
    let mut seen = [0; 4];
    kvrail_memory::load(&*pipe.region, 0, &mut seen);
    assert_eq!(&seen, b"late");
}

#[test]
fn a_tag_comes_after_the_last_use_interrupt() {
    tag_comes_after_the_last_use::<Interrupt>();
}

#[test]
fn a_tag_comes_after_the_last_use_sqpoll() {
    tag_comes_after_the_last_use::<Sqpoll>();
}

fn hung_request_is_leaked<M: RingMode<SqeFormat = Block>>() {
    let mut pipe = pipe::<M>();
    push_read::<M>(&mut pipe);
    let Pipe { ring, region, write_end } = pipe;
    drop(ring);
    assert_eq!(Arc::strong_count(&region), 2, "the kernel may still write there");
    drop(write_end);
}

#[test]
fn a_request_that_hangs_keeps_its_memory_for_ever_interrupt() {
    hung_request_is_leaked::<Interrupt>();
}

#[test]
fn a_request_that_hangs_keeps_its_memory_for_ever_sqpoll() {
    hung_request_is_leaked::<Sqpoll>();
}

#[test]
fn a_request_that_ends_in_time_is_waited_for() {
    let mut pipe = pipe::<Interrupt>();
    push_read::<Interrupt>(&mut pipe);
    let Pipe { ring, region, write_end } = pipe;
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        rustix::io::write(&write_end, b"in time").unwrap();
    });
    drop(ring);
    writer.join().unwrap();
    assert_eq!(Arc::strong_count(&region), 1);
}

#[test]
fn what_was_never_handed_over_does_not_count_as_in_flight() {
    let mut pipe = pipe::<Interrupt>();
    let address = pipe.region.base().as_ptr() as usize;
    pipe.ring.push(&read(), registered(address), 7);
    let Pipe { ring, region, write_end: _write_end } = pipe;
    drop(ring);
    assert_eq!(Arc::strong_count(&region), 1);
}

/// A ring dropped by a thread that may not drive it keeps the operations in flight; a ring with a
/// kernel thread can be drained by any thread.
#[test]
fn dropping_on_another_thread_is_safe() {
    let mut pipe_of_issuer = pipe::<Interrupt>();
    push_read::<Interrupt>(&mut pipe_of_issuer);
    let Pipe { ring, region, write_end: _write_end } = pipe_of_issuer;
    std::thread::spawn(move || drop(ring)).join().unwrap();
    assert_eq!(Arc::strong_count(&region), 2);

    let mut pipe_of_thread = pipe::<Sqpoll>();
    push_read::<Sqpoll>(&mut pipe_of_thread);
    let Pipe { ring, region, write_end } = pipe_of_thread;
    let dropper = std::thread::spawn(move || drop(ring));
    rustix::io::write(&write_end, b"in time").unwrap();
    dropper.join().unwrap();
    assert_eq!(Arc::strong_count(&region), 1);
}

#[test]
fn a_ring_belongs_to_the_thread_that_first_submits() {
    let mut pipe = pipe::<Interrupt>();
    let moved = std::thread::spawn(move || {
        push_read::<Interrupt>(&mut pipe);
        rustix::io::write(&pipe.write_end, b"here").unwrap();
        assert_eq!(pop::<Interrupt>(&mut pipe.ring), RingCompletion::Cqe { name: 7, result: 4 });
        pipe
    });
    let mut pipe = moved.join().unwrap();
    // Thread-local addresses of an ended thread may be reused, but not by a thread that lived.
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pipe.ring.collect()));
    let text = *caught.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("driven by the thread that first submits"), "{text}");
}

#[test]
fn a_second_registration_at_the_same_place_is_refused() {
    let mut pipe = pipe::<Interrupt>();
    // A second registration at the same place is refused before it reaches the kernel.
    let other: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    assert_eq!(pipe.ring.register(AT, &other), Err(Errno::BUSY));
    assert_eq!(Arc::strong_count(&other), 1);
}

/// The kernel does 20 pieces of deferred work in a call, and 1 behind a wait for one completion.
#[test]
fn a_sleep_ends_with_everything_that_is_done() {
    let mut pipe = pipe::<Interrupt>();
    let address = pipe.region.base().as_ptr() as usize;
    for name in 0..30 {
        pipe.ring.push(&Operation { length: 1, ..read() }, registered(address), name);
    }
    Interrupt::submit(&mut pipe.ring);
    rustix::io::write(&pipe.write_end, &[0; 30]).unwrap();
    pipe.ring.block(10_000_000_000);
    assert_eq!(std::iter::from_fn(|| pipe.ring.pop()).count(), 30);
}

/// Sets the flag for deferred work of the kernel, as an interrupt does during a call that then does
/// that work: nothing clears the flag before more work comes.
fn claim_work(ring: &Ring<Block>) {
    let mut params = io_uring_params::default();
    // SAFETY: a ring without memory of ours; it is dropped at once, and `params` has the offsets of
    // the flags.
    drop(unsafe { io_uring_setup(1, &mut params) }.unwrap());
    let at = params.sq_off.flags as usize;
    let (size, protection) = (at + size_of::<u32>(), ProtFlags::READ | ProtFlags::WRITE);
    let (nowhere, shared) = (ptr::null_mut(), MapFlags::SHARED);
    // SAFETY: a new mapping of the ring's first page; it is left to the end of the process.
    let page = unsafe { mmap(nowhere, size, protection, shared, ring.fd(), IORING_OFF_SQ_RING) };
    // SAFETY: the flags are within the mapping, aligned, and reached by atomics on both sides.
    let flags = unsafe { AtomicU32::from_ptr(page.unwrap().wrapping_byte_add(at).cast()) };
    flags.fetch_or(IoringSqFlags::TASKRUN.bits(), Ordering::Relaxed); // read by this thread
}

#[test]
fn a_sleep_ends_although_the_kernel_says_that_there_is_more() {
    let (ended, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut pipe = pipe::<Interrupt>();
        push_read::<Interrupt>(&mut pipe);
        claim_work(&pipe.ring);
        pipe.ring.block(1_000_000);
        rustix::io::write(&pipe.write_end, b"x").unwrap();
        pipe.ring.block(10_000_000_000);
        assert_eq!(pipe.ring.pop(), Some(RingCompletion::Cqe { name: 7, result: 1 }));
        ended.send(()).unwrap();
    });
    ends.recv_timeout(Duration::from_secs(30)).expect("a sleep of a millisecond");
}

#[test]
fn system_calls_are_counted() {
    let mut pipe = pipe::<Interrupt>();
    assert_eq!(pipe.ring.enters(), 0);
    push_read::<Interrupt>(&mut pipe);
    assert_eq!(pipe.ring.enters(), 1);
    for _ in 0..1000 {
        Interrupt::collect(&mut pipe.ring, 1);
        assert_eq!(pipe.ring.pop(), None);
    }
    assert_eq!(pipe.ring.enters(), 1, "spinning makes no system call");
    rustix::io::write(&pipe.write_end, b"x").unwrap();
    pop::<Interrupt>(&mut pipe.ring);
    assert_eq!(pipe.ring.enters(), 2);
}

/// The kernel refused the second entry of a region: requests name its memory by address, and it is
/// let go when what was registered of it is free.
#[test]
fn a_region_that_is_registered_half_way_is_named_by_address() {
    let Pipe { mut ring, write_end, .. } = pipe::<Interrupt>();
    let (at, region) = (BufferIndex(8), HeapBlock::new(65 << 20));
    let region: Arc<dyn Pinned> = Arc::new(region);
    match ring.register(at, &region) {
        Ok(attached) => assert_eq!(attached, Attached::Partly),
        Err(errno) => return println!("skipped: 64 MiB cannot be pinned ({errno})"),
    }
    ring.address_only(at, Arc::clone(&region));
    let place = BufferPlace { address: region.base().as_ptr() as usize, access: Access::Addressed };
    ring.push(&Operation { buffer: at, ..read() }, place, 9);
    Interrupt::submit(&mut ring);
    assert!(!ring.let_go(at), "an entry is registered");
    assert_eq!(ring.unregister_one(at), Ok(EntriesLeft::None));
    rustix::io::write(&write_end, b"late").unwrap();
    assert_eq!(pop::<Interrupt>(&mut ring), RingCompletion::Cqe { name: 9, result: 4 });
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ring.let_go(at) {
        Interrupt::collect(&mut ring, 1);
        assert_eq!(ring.pop(), None, "it sends no notice");
        assert!(Instant::now() < deadline, "the tag does not come");
    }
    assert_eq!(Arc::strong_count(&region), 1);
    let mut seen = [0; 4];
    kvrail_memory::load(&*region, 0, &mut seen);
    assert_eq!(&seen, b"late");
}

#[test]
#[should_panic(expected = "is not in an addressed region")]
fn an_address_outside_the_region_goes_to_no_kernel() {
    let Pipe { mut ring, .. } = pipe::<Interrupt>();
    let (at, region) = (BufferIndex(8), Arc::new(HeapBlock::new(4096)) as Arc<dyn Pinned>);
    ring.address_only(at, Arc::clone(&region));
    let address = region.base().as_ptr() as usize + 1;
    ring.push(
        &Operation { buffer: at, ..read() },
        BufferPlace { address, access: Access::Addressed },
        9,
    );
}
