//! The counted program: batches of reads, client and poller in turns.
//!
//! The functions named `counted_*` are the only ones that count. Nothing in them waits: what they
//! find is there, because the other side was given time, so their work is the same in every run.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_bench::port::{self, Direction, Operation, Port, PortShape, Target};
use kvrail_bench::raw::RawTarget;
use kvrail_client::{Client, Completed, Lease, Pages, Queue, Request, Status, Volume};
use kvrail_device::{Device, DirectIo, Driver, ModeName};

use crate::arms::{Arm, KeyedCall};
use crate::keyed;
use crate::sidecar::{self, Content, HandPoller};

/// Requests of a batch: fewer than a poller takes from one lane in one tick.
pub(crate) const BATCH: u32 = 32;
/// Batches that count.
pub(crate) const ROUNDS: u32 = 50;
/// Bytes of a read.
pub(crate) const READ_BYTES: u32 = 4096;
/// The device has finished a batch within this time.
const DEVICE_TIME: Duration = Duration::from_millis(5);

/// Runs one arm from beginning to end.
pub(crate) fn run(arm: Arm, device: Option<&Path>) -> Result<()> {
    let device = || device.context("--device is missing");
    match arm {
        Arm::Null => Device::hand_to(vec![sidecar::open(None)?], Lane(None)),
        Arm::Store(keyed) => Device::hand_to(vec![sidecar::open(None)?], Lane(Some(keyed))),
        Arm::Device(mode) => {
            let opened = sidecar::open(Some((mode, device()?)))?;
            Device::hand_to(vec![opened], Lane(None))
        }
        Arm::Raw(mode) => raw(mode, device()?),
    }
}

/// Whose turn it is: the client asks for ticks, the poller answers.
#[derive(Debug)]
pub(crate) struct Baton {
    asks: Sender<()>,
    answers: Receiver<()>,
}

impl Baton {
    /// Has the poller take its turn.
    pub(crate) fn turn(&self) -> Result<()> {
        self.asks.send(())?;
        Ok(self.answers.recv()?)
    }
}

/// Through a lane to the device of a poller, as a sidecar drives it; for a store what is asked.
struct Lane(Option<KeyedCall>);

impl Driver for Lane {
    type End = Result<()>;

    fn drive<D: Device>(self, devices: Vec<D>) -> Result<()> {
        let (asks, asked) = channel();
        let (answer, answers) = channel();
        let content = self.0.map_or(Content::Raw, |_| Content::Store);
        let served = sidecar::start(devices, content)?;
        let (socket, mut poller) = (served.socket.clone(), served.poller);
        thread::scope(|scope| {
            let baton = Baton { asks, answers };
            let client = scope.spawn(move || match self.0 {
                None => client(&socket, &baton),
                Some(keyed) => keyed::client(&socket, &baton, keyed),
            });
            while !client.is_finished() {
                if asked.try_recv().is_ok() {
                    turn(&mut poller);
                    answer.send(())?;
                } else {
                    poller.tick(); // commands of the control thread
                    thread::sleep(Duration::from_micros(200));
                }
            }
            client.join().map_err(|_| anyhow!("the client panicked"))?
        })?;
        served.control.stop(&mut poller)
    }
}

/// Two ticks with time for the device between them.
fn turn<D: Device>(poller: &mut HandPoller<D>) {
    counted_poller(poller);
    thread::sleep(DEVICE_TIME);
    counted_poller(poller);
    while poller.in_flight() > 0 {
        counted_poller(poller);
    }
}

#[inline(never)]
fn counted_poller<D: Device>(poller: &mut HandPoller<D>) {
    poller.tick();
}

struct CountReader {
    queue: Queue,
    volume: Volume,
    leases: Vec<Lease>,
    done: Vec<Completed>,
}

fn client(socket: &Path, baton: &Baton) -> Result<()> {
    let client = Client::attach(socket)?;
    let volume = client.volume("counted")?;
    let arena = client.create_arena((BATCH * READ_BYTES) as usize, Pages::Base)?;
    let lease = |_| arena.lease(READ_BYTES as usize);
    let leases = (0..BATCH).map(lease).collect::<Result<Vec<_>, _>>()?;
    let queue = client.open_queue(BATCH as usize)?;
    let done = Vec::with_capacity(BATCH as usize);
    let mut reader = CountReader { queue, volume, leases, done };
    for _ in 0..ROUNDS {
        counted_client_submit(&mut reader)?;
        baton.turn()?;
        counted_client_poll(&mut reader);
        for done in reader.done.drain(..) {
            ensure!(done.status == Status::Ok, "a read ended {}", done.status);
            reader.leases.extend(done.lease);
        }
        ensure!(reader.leases.len() == BATCH as usize, "{} reads ended", reader.leases.len());
    }
    Ok(())
}

#[inline(never)]
fn counted_client_submit(reader: &mut CountReader) -> Result<()> {
    for offset in (0..BATCH).map(|number| u64::from(number * READ_BYTES)) {
        let lease = reader.leases.pop().context("a lease for each request")?;
        let staged = reader.queue.stage(Request::read(&reader.volume, offset, lease));
        staged.map_err(|refused| anyhow!("refused: {}", refused.reason))?;
    }
    reader.queue.publish();
    Ok(())
}

#[inline(never)]
fn counted_client_poll(reader: &mut CountReader) {
    reader.queue.poll(&mut reader.done);
}

fn raw(mode: ModeName, device: &Path) -> Result<()> {
    let geometry = sidecar::geometry(u64::from(BATCH * READ_BYTES));
    let target = RawTarget::open(&[device.to_owned()], geometry, DirectIo::Required, mode)?;
    let shape = PortShape { slots: BATCH, buffer_bytes: READ_BYTES };
    let mut done = Vec::with_capacity(BATCH as usize);
    target.with_port(shape, &mut |port| {
        for _ in 0..ROUNDS {
            counted_client_raw_stage(port)?;
            while done.len() < BATCH as usize {
                thread::sleep(DEVICE_TIME);
                counted_client_raw_turn(port, &mut done)?;
            }
            for ended in done.drain(..) {
                ended.outcome.map_err(|fault| anyhow!("a raw read: {fault}"))?;
            }
        }
        Ok(())
    })
}

#[inline(never)]
fn counted_client_raw_stage(port: &mut dyn Port) -> Result<()> {
    let (direction, bytes) = (Direction::Read, READ_BYTES);
    (0..BATCH).try_for_each(|slot| {
        port.stage(slot, Operation { direction, offset: u64::from(slot * READ_BYTES), bytes })
    })
}

#[inline(never)]
fn counted_client_raw_turn(port: &mut dyn Port, done: &mut Vec<port::Done>) -> Result<()> {
    port.turn(port::TurnWait::No, done)
}
