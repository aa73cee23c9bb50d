//! The trace of slow requests, which one client at a time reads: lent to all pollers while the
//! client continues to read it, and taken back afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvrail_device::{Clock, MonotonicClock};
use kvrail_poller::{Command, PollerHandle, Spent, TraceEvent, TraceRing, Traced, Tracer, Work};
use kvrail_protocol::{TraceInfo, TraceKey, TraceKind, TracePage, TraceSpent, TraceWork};
use kvrail_ring::Status;

use crate::failure::Failure;
use crate::pollers::{PollerSet, Pollers};
use crate::session::Session;
use crate::sessions::Sessions;

/// Time after the last read at which a trace ends.
const KEPT: Duration = Duration::from_secs(5);

/// Events of one page: with names as long as they may be, half of the longest message.
const PAGE_MAX: usize = 4096;

/// A trace that runs.
#[derive(Debug)]
struct Running {
    session: u64,
    slow_ns: u64,
    rings: Vec<Arc<TraceRing>>,
    until: Instant,
}

/// The trace, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    running: Option<Running>,
    /// Pollers that have a tracer.
    lent: PollerSet,
}

impl Trace {
    /// Slow requests since this session's last read. The first read begins the trace.
    pub(crate) fn ask(
        &mut self,
        session: u64,
        slow_ns: u64,
        (pollers, sessions): (&mut Pollers, &Sessions),
    ) -> Result<TracePage, Failure> {
        if let Some(running) = &self.running
            && (running.session, running.slow_ns) != (session, slow_ns)
        {
            let message = if running.session == session {
                "a trace keeps the limit that it began with; attach again for another one".into()
            } else {
                format!("session {} traces already; one at a time does", running.session)
            };
            return Err((Status::Quota, message));
        }
        if self.running.is_none() {
            self.begin(session, slow_ns, pollers)?;
        }
        let running = self.running.as_mut().expect("just begun");
        running.until = Instant::now() + KEPT;
        Ok(running.page(pollers.handles(), sessions))
    }

    fn begin(&mut self, session: u64, slow_ns: u64, pollers: &mut Pollers) -> Result<(), Failure> {
        if !self.lent.is_empty() {
            let message = "the trace before has not ended at every poller: try again; a poller \
                           that is stalled (`kvrail status`) keeps it";
            return Err((Status::Quota, message.into()));
        }
        let mut rings = Vec::new();
        for poller in pollers.all().iter() {
            let (tracer, ring) = Tracer::new(slow_ns);
            rings.push(ring);
            pollers.send(poller, Command::Trace(Some(Box::new(tracer))));
        }
        self.lent = pollers.all();
        tracing::info!(session, slow_ns, "slow requests are traced");
        self.running = Some(Running { session, slow_ns, rings, until: Instant::now() });
        Ok(())
    }

    /// Ends a trace that is no longer read.
    pub(crate) fn housekeep(&mut self, pollers: &mut Pollers, sessions: &Sessions, now: Instant) {
        let over = |running: &mut Running| now >= running.until || !sessions.lives(running.session);
        if let Some(Running { session, .. }) = self.running.take_if(over) {
            pollers.send_each(self.lent, || Command::Trace(None));
            tracing::info!(session, "slow requests are traced no more");
        }
    }

    /// A poller gave its tracer back.
    pub(crate) fn returned(&mut self, poller: usize) {
        self.lent.remove(poller);
    }
}

impl Running {
    fn page(&self, handles: &[PollerHandle], sessions: &Sessions) -> TracePage {
        let named = Names { sessions, now: Now::read() };
        let rings = handles.iter().zip(&self.rings);
        let events = rings.flat_map(|(handle, ring)| {
            std::iter::from_fn(|| ring.next()).map(|event| named.info(handle, &event))
        });
        TracePage {
            events: events.take(PAGE_MAX).collect(),
            lost: self.rings.iter().map(|ring| ring.lost()).sum(),
        }
    }
}

/// The present on two clocks.
struct Now {
    unix: Duration,
    monotonic_ns: u64,
}

impl Now {
    fn read() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix, monotonic_ns: MonotonicClock.now_ns() }
    }

    fn unix_ms(&self, monotonic_ns: u64) -> u64 {
        let ago = Duration::from_nanos(self.monotonic_ns.saturating_sub(monotonic_ns));
        u64::try_from(self.unix.saturating_sub(ago).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Names of the numbers in events.
struct Names<'a> {
    sessions: &'a Sessions,
    now: Now,
}

impl Names<'_> {
    fn info(&self, handle: &PollerHandle, event: &TraceEvent) -> TraceInfo {
        let (kind, work, key) = match &event.what {
            Traced::Batch(work) => (TraceKind::Batch, Some(work), None),
            Traced::Keyed(work, key) => (TraceKind::Keyed, Some(work), Some(*key)),
            Traced::Own(work) => (TraceKind::Store, Some(work), None),
            Traced::Turn => (TraceKind::Turn, None, None),
        };
        let key = key.map(|key| TraceKey(key.bits()));
        TraceInfo {
            kind,
            poller: handle.index.0,
            ended_unix_ms: self.now.unix_ms(event.ended_ns),
            work: work.map(|work| self.work(handle, work, key)),
            spent: spent(&event.spent),
        }
    }

    fn work(&self, handle: &PollerHandle, work: &Work, key: Option<TraceKey>) -> TraceWork {
        let session = work.session.and_then(|slot| self.sessions.at(slot));
        TraceWork {
            device: handle.devices[work.device].1.name.clone(),
            session: session.map(Session::id),
            client: session.map(|session| session.name().to_owned()),
            operation: work.opcode.name().to_owned(),
            class: work.class.name().to_owned(),
            status: work.status.name().to_owned(),
            requests: work.count,
            bytes: work.bytes,
            key,
        }
    }
}

fn spent(spent: &Spent) -> TraceSpent {
    TraceSpent {
        total_ns: spent.total_ns(),
        lane_ns: spent.lane_ns,
        held: spent.held,
        store_ns: spent.store_ns,
        queue_ns: spent.queue_ns,
        device_ns: spent.device_ns,
        answer_ns: spent.answer_ns,
        completion_ns: spent.completion_ns,
    }
}
