//! A bare pair of rings with kvrail's slot sizes, from another author (rtrb): no opcodes, no
//! checks, no sleeping, no second process. The ceiling of a lane. Both sides write every word of a
//! slot again and read every word, as a lane's sides do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use kvrail_ring::slot::{COMPLETION_BYTES, REQUEST_BYTES};
use rtrb::{Consumer, Producer, RingBuffer};

use super::timing::{BATCH, BURST_DEPTH, answered, time_trips};

/// A slot of the request ring: one cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct RequestSlot([u64; REQUEST_BYTES / 8]);

/// A slot of the completion ring.
#[derive(Clone, Copy, Default)]
#[repr(align(32))]
struct CompletionSlot([u64; COMPLETION_BYTES / 8]);

impl RequestSlot {
    fn of(number: u64) -> Self {
        Self([number; REQUEST_BYTES / 8])
    }

    fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, word| sum ^ word)
    }
}

impl CompletionSlot {
    fn of(number: u64) -> Self {
        Self([number; COMPLETION_BYTES / 8])
    }

    fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, word| sum ^ word)
    }
}

/// The client's ends.
struct ClientEnds {
    requests: Producer<RequestSlot>,
    completions: Consumer<CompletionSlot>,
}

pub(super) fn round_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    with_echo(cores, |ends, stop| {
        let mut number = 0;
        time_trips(time, || {
            number += 1;
            let pushed = ends.requests.push(RequestSlot::of(number));
            assert!(pushed.is_ok(), "one slot of many is in use");
            loop {
                if let Ok(completion) = ends.completions.pop() {
                    std::hint::black_box(completion.sum());
                    return Ok(());
                }
                anyhow::ensure!(!stop.load(Ordering::Relaxed), "the echo thread is gone");
            }
        })
    })
}

/// Requests completed per second, `BATCH` to a publication. On a busy machine the other side may
/// not have run before the time is over: it goes on until something has come back.
pub(super) fn burst(cores: [u32; 2], time: Duration) -> Result<f64> {
    with_echo(cores, |ends, stop| {
        let mut batch = [RequestSlot::default(); BATCH as usize];
        let mut taken = [CompletionSlot::default(); BURST_DEPTH as usize];
        let (mut in_flight, mut completed) = (0, 0_u64);
        let begun = Instant::now();
        while (begun.elapsed() < time || completed == 0) && !stop.load(Ordering::Relaxed) {
            // The clock is looked at once for many batches.
            for _ in 0..64 {
                while in_flight + batch.len() <= taken.len() {
                    (completed..)
                        .zip(&mut batch)
                        .for_each(|(at, slot)| *slot = RequestSlot::of(at));
                    if ends.requests.push_entire_slice(&batch).is_err() {
                        break;
                    }
                    in_flight += batch.len();
                }
                let ended = ends.completions.pop_partial_slice(&mut taken).0;
                std::hint::black_box(ended.iter().fold(0, |sum, slot| sum ^ slot.sum()));
                in_flight -= ended.len();
                completed += ended.len() as u64;
            }
        }
        Ok(completed as f64 / begun.elapsed().as_secs_f64())
    })
}

fn with_echo<T: Send>(
    cores: [u32; 2],
    work: impl FnOnce(&mut ClientEnds, &AtomicBool) -> Result<T> + Send,
) -> Result<T> {
    let (requests, taken) = RingBuffer::new(BURST_DEPTH as usize);
    let (posted, completions) = RingBuffer::new(BURST_DEPTH as usize);
    let echo = |stop: &AtomicBool| {
        echo(taken, posted, stop);
        Ok(())
    };
    answered(cores, echo, |stop| work(&mut ClientEnds { requests, completions }, stop), || Ok(()))
}

fn echo(
    mut requests: Consumer<RequestSlot>,
    mut completions: Producer<CompletionSlot>,
    stop: &AtomicBool,
) {
    let mut taken = [RequestSlot::default(); BURST_DEPTH as usize];
    let mut posted = [CompletionSlot::default(); BURST_DEPTH as usize];
    while !stop.load(Ordering::Relaxed) {
        let count = requests.pop_partial_slice(&mut taken).0.len();
        for (completion, request) in posted.iter_mut().zip(&taken[..count]) {
            *completion = CompletionSlot::of(request.sum());
        }
        if count > 0 {
            let pushed = completions.push_entire_slice(&posted[..count]);
            assert!(pushed.is_ok(), "as many completions as requests fit");
        }
    }
}
