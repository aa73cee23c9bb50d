//! Writes beside demand reads, on a simulated drive that reads slower while it writes.

use kvrail_device::{Clock, Operation};
use kvrail_poller::InFlightBytes;
use kvrail_ring::{Class, Opcode, Request, Status};

use super::rig::{Client, Rig};

const MIB: u64 = 1 << 20;
/// A read of 64 KiB by itself.
const READ_NS: u64 = 120_000;
/// What a write of 1 MiB takes, whatever is beside it.
const WRITE_NS: u64 = 400_000;

/// A drive in made-up time: reads take longer for each MiB of writes that it has when they begin.
struct Drive {
    rig: Rig,
    /// What each MiB of writes adds to a read.
    penalty_ns: u64,
    /// Operations at the drive, and when they end.
    at_work: Vec<(Operation, u64)>,
}

impl Drive {
    fn new(penalty_ns: u64, bytes: InFlightBytes) -> Self {
        Self { rig: Rig::with_bytes(256, bytes), penalty_ns, at_work: Vec::new() }
    }

    fn writes_held(&self) -> u64 {
        let held = self.rig.own.shelf.borrow();
        let writes = held.held.iter().filter(|it| it.opcode == Opcode::Write);
        writes.map(|it| u64::from(it.length)).sum()
    }

    fn limit(&self) -> u64 {
        self.rig.stats.devices[0].counters.write_bytes.get()
    }

    /// Begins what was submitted, and ends what is due; or a while passes, in which writes wait.
    fn step(&mut self) {
        let held = self.writes_held();
        for operation in self.rig.own.shelf.borrow().held.clone() {
            if self.at_work.iter().all(|(it, _)| it.tag != operation.tag) {
                let took_ns = match operation.opcode {
                    Opcode::Write => WRITE_NS,
                    _ => READ_NS + held * self.penalty_ns / MIB,
                };
                self.at_work.push((operation, self.now_ns() + took_ns));
            }
        }
        let first_ns = self.at_work.iter().map(|(_, end_ns)| *end_ns).min();
        let end_ns = first_ns.unwrap_or(self.now_ns() + 100_000);
        self.rig.clock.advance(end_ns.saturating_sub(self.now_ns()));
        let now_ns = self.now_ns();
        let mut shelf = self.rig.own.shelf.borrow_mut();
        self.at_work.retain(|(operation, end_ns)| {
            if *end_ns <= now_ns {
                let at = shelf.held.iter().position(|it| it.tag == operation.tag).unwrap();
                shelf.finish(at, Status::Ok);
            }
            *end_ns > now_ns
        });
        drop(shelf);
        self.rig.settle();
    }

    fn now_ns(&self) -> u64 {
        self.rig.clock.now_ns()
    }

    /// Lets closed loops go on for so long; returns the bytes of each, and how long the reads of
    /// the last half of the time took.
    fn run(&mut self, loops: &mut [(&mut Client, Request)], milliseconds: u64) -> Run {
        let begin_ns = self.now_ns();
        let end_ns = begin_ns + milliseconds * 1_000_000;
        let mut run = Run { bytes: vec![0; loops.len()], reads_ns: Vec::new() };
        while self.now_ns() < end_ns {
            self.step();
            for (at, (client, request)) in loops.iter_mut().enumerate() {
                let done = client.collect();
                for done in &done {
                    assert_eq!(Status::from_number(done.status), Some(Status::Ok));
                    run.bytes[at] += u64::from(done.bytes);
                    if request.opcode == Opcode::Read as u8
                        && self.now_ns() > begin_ns.midpoint(end_ns)
                    {
                        run.reads_ns.push(u64::from(done.device_ns) + u64::from(done.queue_ns));
                    }
                }
                client.post(&vec![*request; done.len()]);
            }
            self.rig.settle();
        }
        run.reads_ns.sort_unstable();
        run
    }
}

struct Run {
    bytes: Vec<u64>,
    reads_ns: Vec<u64>,
}

impl Run {
    fn p99_ns(&self) -> u64 {
        self.reads_ns[(self.reads_ns.len() - 1) * 99 / 100]
    }
}

/// A reader of 64 KiB, one at a time, and a writer of 1 MiB with 64 in flight.
fn clients(drive: &mut Drive) -> (Client, Client) {
    let (mut reader, mut writer) = (drive.rig.client(0, 64), drive.rig.client(1, 64));
    reader.post(&[read(&reader)]);
    writer.post(&[write(&writer); 64]);
    drive.rig.settle();
    (reader, writer)
}

fn read(client: &Client) -> Request {
    client.read(1, 64 << 10)
}

fn write(client: &Client) -> Request {
    Request { opcode: Opcode::Write as u8, ..client.read(2, 1 << 20) }
}

#[test]
fn writes_have_what_reads_can_bear_beside_them() {
    // What each MiB adds to a read of 120 us, and the MiB of writes that make it twice as long.
    for (penalty_ns, bearable) in [(60_000, 2), (30_000, 4), (15_000, 8)] {
        let mut drive = Drive::new(penalty_ns, InFlightBytes::Followed);
        let (mut reader, mut writer) = clients(&mut drive);
        let requests = (read(&reader), write(&writer));
        let mut loops = [(&mut reader, requests.0), (&mut writer, requests.1)];
        let run = drive.run(&mut loops, 8_000);
        let p99_ns = run.p99_ns();
        assert!(p99_ns <= READ_NS * 22 / 10, "{penalty_ns}: a read takes {p99_ns} ns");
        let limit = drive.limit() / MIB;
        assert!((bearable / 2..=bearable + 1).contains(&limit), "{penalty_ns}: {limit} MiB");
    }
}

#[test]
fn where_any_write_makes_reads_slow_one_at_a_time_is_left() {
    let mut drive = Drive::new(2_000_000, InFlightBytes::Followed);
    let (mut reader, mut writer) = clients(&mut drive);
    let requests = (read(&reader), write(&writer));
    let mut loops = [(&mut reader, requests.0), (&mut writer, requests.1)];
    let run = drive.run(&mut loops, 2_000);
    assert_eq!(drive.limit(), 256 << 10);
    assert!(drive.writes_held() <= MIB, "one at least");
    // One after the other, but for the pauses in which reads are timed: nine tenths at least.
    let most = 2_000 * 1_000_000 / WRITE_NS * MIB;
    assert!(run.bytes[1] > most * 9 / 10, "{} of {most} bytes", run.bytes[1]);
}

#[test]
fn where_reads_do_not_suffer_writes_have_all_of_it() {
    let mut drive = Drive::new(0, InFlightBytes::Followed);
    let (mut reader, mut writer) = (drive.rig.client(0, 64), drive.rig.client(1, 64));
    let requests = (read(&reader), writer.read(2, 4 << 20));
    let requests = (requests.0, Request { opcode: Opcode::Write as u8, ..requests.1 });
    reader.post(&[requests.0]);
    writer.post(&[requests.1; 32]);
    drive.rig.settle();
    let mut loops = [(&mut reader, requests.0), (&mut writer, requests.1)];
    drive.run(&mut loops, 4_000);
    let all = drive.rig.stats.devices[0].counters.in_flight_bytes.get();
    // At the last some reads wait, because with writes they are more than the drive is given.
    assert!(all == 64 << 20 && drive.limit() >= all / 2, "{} of {all}", drive.limit());
}

#[test]
fn without_reads_and_with_a_fixed_size_writes_are_not_limited() {
    let mut drive = Drive::new(2_000_000, InFlightBytes::Followed);
    let mut writer = drive.rig.client(1, 64);
    writer.post(&[write(&writer); 64]);
    drive.rig.settle();
    let all = drive.rig.stats.devices[0].counters.in_flight_bytes.get();
    assert!(drive.writes_held() + MIB > all, "{} of {all}", drive.writes_held());

    let mut drive = Drive::new(2_000_000, InFlightBytes::Fixed(32 << 20));
    let (mut reader, mut writer) = clients(&mut drive);
    let requests = (read(&reader), write(&writer));
    drive.run(&mut [(&mut reader, requests.0), (&mut writer, requests.1)], 1_000);
    assert!(drive.writes_held() >= 31 * MIB && drive.limit() == 32 << 20);
}

#[test]
fn writes_that_wait_keep_no_read_waiting_and_background_reads_do_not_count() {
    let mut drive = Drive::new(2_000_000, InFlightBytes::Followed);
    let (mut reader, mut writer) = clients(&mut drive);
    let requests = (read(&reader), write(&writer));
    drive.run(&mut [(&mut reader, requests.0), (&mut writer, requests.1)], 1_000);
    // 60 writes wait; a read goes to the drive in the turn that takes it.
    reader.post(&[requests.0; 8]);
    drive.rig.settle();
    let held = drive.rig.own.shelf.borrow().held.clone();
    assert_eq!(held.iter().filter(|it| it.opcode == Opcode::Read).count(), 9);

    let mut drive = Drive::new(2_000_000, InFlightBytes::Followed);
    let (mut reader, mut writer) = (drive.rig.client(0, 64), drive.rig.client(1, 64));
    let background = Request { class: Class::Background as u8, ..read(&reader) };
    reader.post(&[background]);
    writer.post(&[requests.1; 64]);
    drive.rig.settle();
    drive.run(&mut [(&mut reader, background), (&mut writer, requests.1)], 500);
    assert_eq!(drive.limit(), drive.rig.stats.devices[0].counters.in_flight_bytes.get());
}

#[test]
fn nothing_hangs_when_the_last_read_begins_a_pause() {
    let mut drive = Drive::new(2_000_000, InFlightBytes::Followed);
    let (mut reader, mut writer) = clients(&mut drive);
    let requests = (read(&reader), write(&writer));
    for _ in 0..50 {
        drive.run(&mut [(&mut reader, requests.0), (&mut writer, requests.1)], 3);
        let before = drive.run(&mut [(&mut writer, requests.1)], 25).bytes[0];
        assert!(before > 0, "writes stand still without reads");
        let done = reader.collect().len();
        reader.post(&vec![requests.0; done]);
        drive.rig.settle();
    }
}
