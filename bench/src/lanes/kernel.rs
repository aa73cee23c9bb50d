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

use super::timing::{on_core, time_trips, time_wake_ups};
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
    let (there, back) = (bell()?, bell()?);
    let trip = || {
        ring(&there)?;
        listen(&back)
    };
    answered(cores, &there, || ring(&back), || time_trips(time, trip))
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
    answered(cores, &there, answer, || time_wake_ups(trip))
}

/// Makes trips on the first core while a thread on the other answers each ring of the bell.
fn answered(
    cores: [u32; 2],
    bell: &OwnedFd,
    answer: impl Fn() -> Result<()> + Send + Sync,
    trips: impl FnOnce() -> Result<Histogram<u64>> + Send,
) -> Result<Histogram<u64>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Failing to bind must not leave the first waiting: serve from any core, say so after.
            let pinned = pin(cores[1]);
            loop {
                listen(bell)?;
                answer()?;
                // Pairs with the Release before the last ring.
                if stop.load(Ordering::Acquire) {
                    return pinned;
                }
            }
        });
        let histogram = on_core(cores[0], trips);
        stop.store(true, Ordering::Release); // pairs with the Acquire above
        ring(bell)?;
        other.join().map_err(|_| anyhow::anyhow!("the answering thread panicked"))??;
        histogram
    })
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
