//! Gets beside puts at full rate, of one store: what reads cost where writes have no end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvrail_client::{
    BlockKey, BlockRequest, Client, Identity, Lease, Namespace, Pages, Queue, Status,
};

use super::{Failure, LONG, Measured, Until};

const STORE: &str = "store";
/// Blocks that gets may ask for are the youngest of this share of the store.
const YOUNG_SHARE: u64 = 4;
/// Bytes that are put at once.
const PUT_AHEAD: usize = 8 << 20;

/// One client, and the blocks of one length that all clients put and get.
struct Party<'a> {
    client: Client,
    space: Namespace,
    bytes: usize,
    /// Blocks that were put so far, one after the other.
    put: &'a AtomicU64,
}

/// Gets alone, puts alone, and both: blocks of two lengths, one get and eight gets at a time.
pub(super) fn puts(socket: &str, time: Duration) -> Result<Measured, Failure> {
    let mut figures = Measured::new();
    for bytes in [1 << 20, 64 << 10] {
        let put = AtomicU64::new(0);
        let (reader, writer) =
            (Party::open(socket, bytes, &put)?, Party::open(socket, bytes, &put)?);
        let what = format!("{} KiB", bytes >> 10);
        let young = reader.young();
        writer.put(&Until::told(), Some(young))?;
        let alone = writer.put(&Until::after(time), None)?;
        figures.push((format!("puts {what} alone"), "GB/s", alone));
        for depth in [1, 8] {
            let name = format!("gets {what} depth {depth}");
            figures.extend(reader.get(&format!("{name} alone"), depth, time)?);
            let stop = Until::told();
            let (gets, rate) = thread::scope(|scope| {
                let puts = scope.spawn(|| writer.put(&stop, None));
                thread::sleep(Duration::from_millis(300)); // until they are at their rate
                let gets = reader.get(&format!("{name} beside"), depth, time);
                stop.now();
                (gets, puts.join().expect("no panic"))
            });
            figures.extend(gets?);
            figures.push((format!("puts {what} beside depth {depth}"), "GB/s", rate?));
        }
    }
    Ok(figures)
}

impl<'a> Party<'a> {
    fn open(socket: &str, bytes: usize, put: &'a AtomicU64) -> Result<Self, Failure> {
        let client = Client::attach(socket)?;
        let name = format!("beside-{bytes}");
        let space = client.store(STORE)?.namespace(&name, &Identity::new([("by", "beside")])?)?;
        Ok(Self { client, space, bytes, put })
    }

    /// How many blocks gets may ask for.
    fn young(&self) -> u64 {
        self.space.store().volume().capacity() / self.bytes as u64 / YOUNG_SHARE
    }

    /// Keys of this run: puts find nothing.
    fn key(number: u64) -> BlockKey {
        let run = u128::from(std::process::id()) << 64;
        BlockKey::from_bits(
            (run | u128::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1 << 127),
        )
    }

    fn leases(&self, depth: usize) -> Result<(Queue, Vec<Lease>), Failure> {
        let arena = self.client.create_arena(self.bytes * depth, Pages::Auto)?;
        let leases = (0..depth).map(|_| arena.lease(self.bytes)).collect::<Result<_, _>>()?;
        Ok((self.client.open_queue(depth)?, leases))
    }

    /// A closed loop of puts, up to the given number if there is one; returns GB/s. A declined
    /// block is put again under the next key.
    fn put(&self, until: &Until, most: Option<u64>) -> Result<f64, Failure> {
        let depth = PUT_AHEAD / self.bytes;
        let (mut queue, mut idle) = self.leases(depth)?;
        let (start, first) = (Instant::now(), self.put.load(Ordering::Relaxed));
        let (mut next, mut bytes, mut busy) = (first, 0, 0);
        while busy > 0 || !until.is_over(start) {
            let more = !until.is_over(start) && most.is_none_or(|most| next - first < most);
            if !more && busy == 0 {
                break;
            }
            for lease in idle.drain(..).filter(|_| more) {
                let request = BlockRequest::put(&self.space, Self::key(next), lease);
                queue.stage(request)?;
                (next, busy) = (next + 1, busy + 1);
            }
            queue.publish();
            let mut done = Vec::new();
            queue.wait_for(1, &mut done, LONG)?;
            for done in done {
                busy -= 1;
                bytes += if done.status == Status::Ok { self.bytes } else { 0 };
                idle.push(done.lease.ok_or("no lease")?);
            }
            self.put.store(next - busy, Ordering::Relaxed); // a hint: what is missed is counted
        }
        Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// A closed loop of gets among the youngest blocks.
    fn get(&self, what: &str, depth: usize, time: Duration) -> Result<Measured, Failure> {
        let (mut queue, mut idle) = self.leases(depth)?;
        let (mut samples, mut inside) = (Vec::with_capacity(1 << 20), Vec::with_capacity(1 << 20));
        let (start, young, mut bytes, mut missed) = (Instant::now(), self.young(), 0, 0_u32);
        let mut random = fastrand::Rng::with_seed(1);
        let mut begun = vec![Instant::now(); depth];
        let mut free: Vec<usize> = (0..depth).collect();
        while start.elapsed() < time {
            for lease in idle.drain(..) {
                let put = self.put.load(Ordering::Relaxed); // a hint
                let number = put.saturating_sub(1 + random.u64(0..young));
                let place = free.pop().ok_or("no place")?;
                begun[place] = Instant::now();
                let request = BlockRequest::get(&self.space, Self::key(number), lease);
                queue.stage(request.tag(place as u64))?;
            }
            queue.publish();
            let mut done = Vec::new();
            queue.wait_for(1, &mut done, LONG)?;
            for done in done {
                let place = usize::try_from(done.tag)?;
                free.push(place);
                if done.status == Status::Ok {
                    samples.push(begun[place].elapsed().as_secs_f64() * 1e3);
                    inside.push(f64::from(done.device_ns) / 1e6 + f64::from(done.queue_ns) / 1e6);
                    bytes += self.bytes;
                } else {
                    missed += 1;
                }
                idle.push(done.lease.ok_or("no lease")?);
            }
        }
        let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        let mut figures = vec![(what.to_owned(), "GB/s", rate)];
        for (where_, samples) in [("", &mut samples), (" in the sidecar", &mut inside)] {
            samples.sort_by(f64::total_cmp);
            let at = |share: usize| samples[(samples.len() - 1) * share / 1000];
            figures.push((format!("{what}, p50{where_}"), "ms", at(500)));
            figures.push((format!("{what}, p99{where_}"), "ms", at(990)));
        }
        figures.push((format!("{what}, missed"), "", missed.into()));
        Ok(figures)
    }
}
