//! A client that reads one block after the other, and what that took.

use std::path::Path;
use std::time::{Duration, Instant};

use kvrail_client::{Arena, AttachOptions, Client, Lease, Pages, Queue, Request, Status, Volume};
use kvrail_protocol::StatusReport;

use crate::Failure;

/// Bytes of a read.
const BLOCK: usize = 4096;
/// No read takes longer.
const LONG: Duration = Duration::from_secs(60);

/// A client with something to show.
pub(crate) struct Reader {
    client: Client,
    volume: Volume,
    queue: Queue,
    lease: Option<Lease>,
    _arena: Arena,
}

impl Reader {
    /// Attaches under a number, with a queue and an arena, to the volume `kv`.
    pub(crate) fn attach(socket: &Path, number: usize) -> Result<Self, Failure> {
        let name = format!("engine-worker-{number}");
        let client = Client::attach_with(socket, &AttachOptions { name, ..Default::default() })?;
        let arena = client.create_arena(BLOCK, Pages::Base)?;
        Ok(Self {
            volume: client.volume("kv")?,
            queue: client.open_queue(8)?,
            lease: Some(arena.lease(BLOCK)?),
            _arena: arena,
            client,
        })
    }

    /// How its sidecar is.
    pub(crate) fn status(&self) -> Result<StatusReport, Failure> {
        Ok(self.client.status()?)
    }

    /// Reads for the given time; every read must end OK.
    pub(crate) fn read(&mut self, time: Duration) -> Result<Round, Failure> {
        let (start, mut samples) = (Instant::now(), Vec::with_capacity(1 << 20));
        while start.elapsed() < time {
            let begin = Instant::now();
            let lease = self.lease.take().ok_or("no lease")?;
            self.queue.submit(Request::read(&self.volume, 0, lease))?;
            let done = self.queue.wait(LONG)?.ok_or("no answer")?;
            samples.push(u64::try_from(begin.elapsed().as_nanos())?);
            assert_eq!(done.status, Status::Ok);
            self.lease = done.lease;
        }
        samples.sort_unstable();
        let at = |share: usize| samples[(samples.len() - 1) * share / 1000] as f64 / 1e3;
        Ok(Round { reads: samples.len(), us: [at(500), at(990), at(999)] })
    }
}

/// Reads of one turn.
pub(crate) struct Round {
    reads: usize,
    /// Microseconds at p50, p99 and p99.9.
    us: [f64; 3],
}

/// Medians over rounds, with the least and the most of them.
pub(crate) fn medians(rounds: &[Round]) -> String {
    let of = |which: usize| {
        let mut values: Vec<f64> = rounds.iter().map(|round| round.us[which]).collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (values[0], values[values.len() - 1]);
        format!("{:.1} ({least:.1}, {most:.1})", values[values.len() / 2])
    };
    let reads: usize = rounds.iter().map(|round| round.reads).sum();
    format!("p50 {}  p99 {}  p99.9 {}  {reads} reads", of(0), of(1), of(2))
}
