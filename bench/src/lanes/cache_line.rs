//! One cache line there, one back: the least that two cores can do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::timing::{on_core, time_trips};
use crate::cpu::pin;

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

/// Tells the client side that nobody will answer, also when this side fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed); // carries no data
    }
}

pub(super) fn round_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    let (there, back) = (Line::default(), Line::default());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let echo = scope.spawn(|| echo(cores[1], &there, &back, &stop));
        let histogram = on_core(cores[0], || {
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
        });
        stop.store(true, Ordering::Relaxed); // carries no data
        echo.join().map_err(|_| anyhow::anyhow!("the echo thread panicked"))??;
        histogram
    })
}

fn echo(core: u32, there: &Line, back: &Line, stop: &AtomicBool) -> Result<()> {
    let _stop = StopOnDrop(stop);
    pin(core)?;
    let mut sequence = 1;
    loop {
        while !there.has(sequence) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        std::hint::black_box(there.sum());
        back.send(sequence);
        sequence += 1;
    }
}
