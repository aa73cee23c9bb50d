//! A write budget that runs out: puts are declined with the reason, repeated puts are taken, and
//! SIGHUP sets another budget.

use kvrail_client::{
    Arena, BlockKey, BlockNote, BlockRequest, Completed, Decline, Identity, Namespace, Pages,
    Queue, Status,
};
use rustix::process::Signal;

use super::{counter, small_store};
use crate::rig::{LONG, Place, Sidecar, eventually, kvrail, run, until_some};

const BYTES: usize = 8000;
const MEMBER: u64 = 40 << 20;

struct Putter {
    arena: Arena,
    queue: Queue,
    space: Namespace,
    next: u64,
}

impl Putter {
    fn open(sidecar: &Sidecar) -> Self {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "test")]).unwrap();
        let space = client.store("kv").unwrap().namespace("main", &identity).unwrap();
        let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
        Self { arena, queue: client.open_queue(64).unwrap(), space, next: 0 }
    }

    fn end(&mut self, request: BlockRequest) -> Completed {
        self.queue.submit(request).unwrap();
        self.queue.wait(LONG).unwrap().expect("one is in flight")
    }

    /// `None` if the put was taken.
    fn put(&mut self, number: u64) -> Option<Decline> {
        let lease = self.arena.lease(BYTES).unwrap();
        let done = self.end(BlockRequest::put(&self.space, key(number), lease));
        match (done.status, done.note) {
            (Status::Ok, _) => None,
            (Status::Declined, BlockNote::Declined(why)) => Some(why),
            other => panic!("put of {number}: {other:?}"),
        }
    }

    /// Puts a block that was never put before, again if the store was only busy.
    fn put_new(&mut self) -> (u64, Option<Decline>) {
        let number = self.next;
        self.next += 1;
        until_some("the store is not busy", || match self.put(number) {
            Some(Decline::Busy) => None,
            answer => Some((number, answer)),
        })
    }

    /// Puts a block that the budget declines. The budget grows by a byte every two seconds, and a
    /// slow machine may take that long: a put, or a repeated one where tokens were scarce, then
    /// spends the byte once it is written, and the debt lasts for hours.
    fn put_beyond(&mut self) -> u64 {
        for _ in 0..32 {
            match self.put_new() {
                (number, Some(Decline::Budget)) => return number,
                (number, Some(Decline::FirstSight)) => drop(self.put(number)),
                (_, None) => {}
                other => panic!("no budget is left: {other:?}"),
            }
        }
        panic!("no budget is left, and 32 puts were taken");
    }

    fn has(&mut self, number: u64) -> bool {
        let lease = self.arena.lease(BYTES).unwrap();
        self.end(BlockRequest::get(&self.space, key(number), lease)).status == Status::Ok
    }
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

/// Sets another budget on a running sidecar.
fn budget(place: &mut Place, sidecar: &Sidecar, words: &str) {
    let bytes = counter(sidecar, "budget_bytes_per_day");
    place.configure_volume(&format!("write_budget = \"{words}\""));
    place.configuration();
    sidecar.signal(Signal::HUP);
    eventually("another budget", || counter(sidecar, "budget_bytes_per_day") != bytes);
}

#[test]
fn a_budget_that_runs_out_declines_with_the_reason_until_there_is_more() {
    let mut place = small_store(MEMBER);
    place.configure_volume("write_budget = \"0.001dwpd\"");
    let sidecar = Sidecar::start(&place);
    let mut putter = Putter::open(&sidecar);

    // All puts are taken until the ring was full once.
    let mut taken = 0;
    while putter.put_new().1.is_none() {
        taken += 1;
        assert!(taken * (BYTES as u64) < MEMBER, "nothing is ever declined");
    }
    // Of nine segments some are open or kept ready.
    assert!(taken * (BYTES as u64) > MEMBER / 3, "only {taken} were taken");
    assert!(putter.has(taken - 1) && !putter.has(taken));
    let written = counter(&sidecar, "written_bytes");
    let mut beyond: Vec<_> = (0..50).map(|_| putter.put_beyond()).collect();
    beyond.retain(|number| putter.put(*number) == Some(Decline::Budget));
    assert!(beyond.len() >= 49, "again, but nothing is left: {} were declined", beyond.len());
    let more = counter(&sidecar, "written_bytes") - written;
    assert!(more <= 4 << 20, "{more} bytes were written without a budget");

    // Little of the budget is left: a repeated put is taken. Half of the bucket takes 10 s.
    budget(&mut place, &sidecar, "200dwpd");
    let mut fresh = 0;
    eventually("something to write", || {
        let (number, answer) = putter.put_new();
        fresh = number;
        answer == Some(Decline::FirstSight)
    });
    for second_sight in [fresh, beyond[0]] {
        eventually("a second sight", || putter.put(second_sight).is_none());
        assert!(putter.has(second_sight));
    }

    eventually("the same in the table and in the counters", || {
        let of = |name| counter(&sidecar, name);
        let (first_sight, out) = (of("declined_first_sight"), of("declined_budget"));
        assert!(first_sight >= 1, "{first_sight}");
        let reasons = [format!("{first_sight} first sight"), format!("{out} budget")];
        let mut status = kvrail();
        let stdout = run(status.args(["store", "status", "--socket"]).arg(sidecar.socket())).stdout;
        out >= 99 && reasons.iter().all(|words| stdout.contains(words)) && stdout.contains("/day")
    });

    // Without a limit every first put is taken.
    budget(&mut place, &sidecar, "unlimited");
    assert!((0..50).all(|_| putter.put_new().1.is_none()));
    drop(putter);
    sidecar.stop();
}
