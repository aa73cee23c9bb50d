//! Round trips through the kernel: a Unix socket with messages of lane size, and eventfds.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use kvrail_ring::slot::{COMPLETION_BYTES, REQUEST_BYTES};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{read, write};

use super::timing::{answered, time_trips, time_wake_ups};

pub(super) fn socket_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    let (mut here, mut there) = UnixStream::pair().context("a pair of Unix sockets")?;
    // Moved into the closure, `here` is dropped at its end: the echo side reads the end and stops.
    let ask = move |_: &AtomicBool| {
        let (request, mut completion) = ([7; REQUEST_BYTES], [0; COMPLETION_BYTES]);
        time_trips(time, || {
            here.write_all(&request)?;
            here.read_exact(&mut completion)?;
            Ok(())
        })
    };
    let echo = move |_: &AtomicBool| {
        let mut request = [0; REQUEST_BYTES];
        while there.read_exact(&mut request).is_ok() {
            if there.write_all(&request[..COMPLETION_BYTES]).is_err() {
                break;
            }
        }
        Ok(())
    };
    answered(cores, echo, ask, || Ok(()))
}

pub(super) fn eventfd_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    let (there, back) = (bell()?, bell()?);
    let trip = || {
        ring(&there)?;
        listen(&back)
    };
    let answer = |stop: &AtomicBool| each_ring(&there, stop, || ring(&back));
    answered(cores, answer, |_| time_trips(time, trip), || ring(&there))
}

/// Wake-ups of a thread that sleeps in `read`. It answers through memory, as a poller does: only
/// its own wake-up counts.
pub(super) fn wake_ups(cores: [u32; 2]) -> Result<Histogram<u64>> {
    let (there, answers) = (bell()?, AtomicU64::new(0));
    let answer = || {
        answers.fetch_add(1, Ordering::Release); // pairs with the Acquire in `trip`
        Ok(())
    };
    let mut rung = 0;
    let trip = || {
        ring(&there)?;
        rung += 1;
        // Pairs with the Release in `answer`.
        while answers.load(Ordering::Acquire) < rung {
            std::hint::spin_loop();
        }
        Ok(())
    };
    let answer = |stop: &AtomicBool| each_ring(&there, stop, answer);
    answered(cores, answer, |_| time_wake_ups(trip), || ring(&there))
}

/// Answers each ring of the bell until it is stopped.
fn each_ring(bell: &OwnedFd, stop: &AtomicBool, answer: impl Fn() -> Result<()>) -> Result<()> {
    // Pairs with the Release before the last ring.
    while !stop.load(Ordering::Acquire) {
        listen(bell)?;
        answer()?;
    }
    Ok(())
}

fn bell() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC).context("an eventfd")
}

fn ring(bell: &OwnedFd) -> Result<()> {
    write(bell, &1_u64.to_ne_bytes()).context("writing an eventfd")?;
    Ok(())
}

fn listen(bell: &OwnedFd) -> Result<()> {
    let mut count = [0; 8];
    read(bell, &mut count).context("reading an eventfd")?;
    Ok(())
}
