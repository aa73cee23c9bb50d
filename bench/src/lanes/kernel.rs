//! Round trips through the kernel: a Unix socket with messages of lane size, and eventfds.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use kvrail_ring::slot::{COMPLETION_BYTES, REQUEST_BYTES};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::{read, write};

use super::{on_core, time_trips, time_wake_ups};
use crate::cpu::pin;

pub(super) fn socket_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    let (mut here, there) = UnixStream::pair().context("a pair of Unix sockets")?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || socket_echo(cores[1], there));
        let histogram = on_core(cores[0], move || {
            let (request, mut completion) = ([7; REQUEST_BYTES], [0; COMPLETION_BYTES]);
            // `here` is dropped at the end of this closure: the echo side reads the end and stops.
            let trips = time_trips(time, || {
                here.write_all(&request)?;
                here.read_exact(&mut completion)?;
                Ok(())
            });
            drop(here);
            trips
        });
        echo.join().map_err(|_| anyhow::anyhow!("the echo thread panicked"))??;
        histogram
    })
}

fn socket_echo(core: u32, mut socket: UnixStream) -> Result<()> {
    pin(core)?;
    let mut request = [0; REQUEST_BYTES];
    while socket.read_exact(&mut request).is_ok() {
        if socket.write_all(&request[..COMPLETION_BYTES]).is_err() {
            break;
        }
    }
    Ok(())
}

pub(super) fn eventfd_trips(cores: [u32; 2], time: Duration) -> Result<Histogram<u64>> {
    let make = || eventfd(0, EventfdFlags::CLOEXEC).context("an eventfd");
    let (there, back) = (make()?, make()?);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let echo = scope.spawn(|| eventfd_echo(cores[1], &there, &back, &stop));
        let histogram = on_core(cores[0], || {
            time_trips(time, || {
                ring(&there)?;
                listen(&back)
            })
        });
        stop.store(true, Ordering::Release); // pairs with the Acquire in `eventfd_echo`
        ring(&there)?;
        echo.join().map_err(|_| anyhow::anyhow!("the echo thread panicked"))??;
        histogram
    })
}

fn eventfd_echo(core: u32, there: &OwnedFd, back: &OwnedFd, stop: &AtomicBool) -> Result<()> {
    // Failing to bind must not leave the other side waiting: serve from any core, say so after.
    let pinned = pin(core);
    loop {
        listen(there)?;
        ring(back)?;
        // Pairs with the Release before the last ring.
        if stop.load(Ordering::Acquire) {
            return pinned;
        }
    }
}

/// Wake-ups of a thread that sleeps in `read`. It answers through memory, as a poller does: only
/// its own wake-up counts.
pub(super) fn wake_ups(cores: [u32; 2]) -> Result<Histogram<u64>> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC).context("an eventfd")?;
    let (answers, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| answer_bell(cores[1], &bell, &answers, &stop));
        let histogram = on_core(cores[0], || {
            let mut rung = 0;
            time_wake_ups(|| {
                ring(&bell)?;
                rung += 1;
                // Pairs with the Release in `answer_bell`.
                while answers.load(Ordering::Acquire) < rung {
                    std::hint::spin_loop();
                }
                Ok(())
            })
        });
        stop.store(true, Ordering::Release); // pairs with the Acquire in `answer_bell`
        ring(&bell)?;
        sleeper.join().map_err(|_| anyhow::anyhow!("the sleeping thread panicked"))??;
        histogram
    })
}

fn answer_bell(core: u32, bell: &OwnedFd, answers: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    // As in `eventfd_echo`.
    let pinned = pin(core);
    loop {
        listen(bell)?;
        answers.fetch_add(1, Ordering::Release); // pairs with the Acquire in `wake_ups`
        // Pairs with the Release before the last ring.
        if stop.load(Ordering::Acquire) {
            return pinned;
        }
    }
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
