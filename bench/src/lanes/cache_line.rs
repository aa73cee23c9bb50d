//! One cache line there, one back: the least that two cores can do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::timing::{answered, time_trips};

/// 64 bytes of message in a pair of lines of their own (adjacent lines are prefetched together).
/// The last word is the sequence number and is written last.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line([AtomicU64; 8]);

impl Line {
    fn send(&self, sequence: u64) {
        for word in &self.0[..7] {
            word.store(sequence, Ordering::Relaxed);
        }
        self.0[7].store(sequence, Ordering::Release); // pairs with the Acquire in `has`
    }

    fn has(&self, sequence: u64) -> bool {
        self.0[7].load(Ordering::Acquire) == sequence // pairs with the Release in `send`
    }

    fn sum(&self) -> u64 {
        self.0[..7].iter().fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed))
    }
}

pub(super) fn round_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    let (there, back) = (Line::default(), Line::default());
    let ask = |stop: &AtomicBool| {
        let mut sequence = 0;
        time_trips(time, || {
            sequence += 1;
            there.send(sequence);
            while !back.has(sequence) {
                // A stop before its time means that the echo side could not start.
                anyhow::ensure!(!stop.load(Ordering::Relaxed), "the echo thread is gone");
            }
            std::hint::black_box(back.sum());
            Ok(())
        })
    };
    let echo = |stop: &AtomicBool| {
        echo(&there, &back, stop);
        Ok(())
    };
    answered(cores, echo, ask, || Ok(()))
}

fn echo(there: &Line, back: &Line, stop: &AtomicBool) {
    for sequence in 1.. {
        while !there.has(sequence) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
        std::hint::black_box(there.sum());
        back.send(sequence);
    }
}
