//! Slow requests: the slow log, for which pollers have light tracers, and the trace, which one
//! client at a time reads. While it continues to read, pollers have full tracers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvrail_device::{Clock, MonotonicClock};
use kvrail_poller::{
    PollerCommand, PollerHandle, Spent, TraceEvent, TraceRing, Traced, TracedWork, Tracer,
};
use kvrail_protocol::{TraceInfo, TraceKey, TraceKind, TracePage, TraceSpent, TraceWork};
use kvrail_ring::Status;

use crate::failure::Failure;
use crate::pollers::{PollerSet, Pollers};
use crate::session::Session;
use crate::sessions::Sessions;
use crate::slow_log::SlowLog;

/// Time after the last read at which a trace ends.
const KEPT: Duration = Duration::from_secs(5);

/// Events of one page: with names as long as they may be, half of the longest message.
const PAGE_MAX: usize = 4096;

/// Events that are held for the session that traces: beyond that they stay with the pollers.
const UNREAD_MAX: usize = 2 * PAGE_MAX;

/// A trace that runs.
#[derive(Debug)]
struct RunningTrace {
    session: u64,
    slow_ns: u64,
    rings: Vec<Arc<TraceRing>>,
    /// Read for the slow log and not yet for the session.
    unread: VecDeque<TraceInfo>,
    until: Instant,
}

/// The slow log, and the trace, if there is one.
#[derive(Debug)]
pub(crate) struct RequestTraces {
    log: SlowLog,
    log_ns: u64,
    /// Of the light tracers.
    rings: Vec<Arc<TraceRing>>,
    running: Option<RunningTrace>,
    /// Pollers that have a full tracer.
    lent: PollerSet,
}

impl RequestTraces {
    /// From now on slow requests are logged.
    pub(crate) fn start(log_ns: u64, pollers: &mut Pollers) -> Self {
        let rings = pollers.handles().iter().map(|_| Tracer::light_ring(log_ns)).collect();
        let it = Self {
            log: SlowLog::default(),
            log_ns,
            rings,
            running: None,
            lent: PollerSet::default(),
        };
        it.lend_light(pollers);
        it
    }

    fn lend_light(&self, pollers: &mut Pollers) {
        for (poller, ring) in self.rings.iter().enumerate() {
            pollers.send(poller, PollerCommand::Trace(Box::new(Tracer::light(Arc::clone(ring)))));
        }
    }

    /// What takes this long is logged from now on.
    pub(crate) fn set_log(&mut self, log_ns: u64) {
        self.log_ns = log_ns;
        self.rings.iter().for_each(|ring| ring.set_slow(log_ns));
        if let Some(running) = &self.running {
            running.rings.iter().for_each(|ring| ring.set_slow(log_ns.min(running.slow_ns)));
        }
    }

    /// Slow requests of the past.
    pub(crate) fn past(&mut self, handles: &[PollerHandle], sessions: &Sessions) -> TracePage {
        self.collect(handles, sessions);
        let lost = self.log.forgotten() + self.rings.iter().map(|ring| ring.lost()).sum::<u64>();
        TracePage { events: self.log.events(), lost, slow_ns: self.log_ns }
    }

    /// Moves events from the pollers to the slow log, and those of a trace to it.
    fn collect(&mut self, handles: &[PollerHandle], sessions: &Sessions) {
        let named = SessionNames { sessions, now: ClockPair::read() };
        for (handle, ring) in handles.iter().zip(&self.rings) {
            while let Some(event) = ring.next() {
                self.log.add(named.info(handle, &event));
            }
        }
        let Some(RunningTrace { rings, unread, slow_ns, .. }) = &mut self.running else { return };
        for (handle, ring) in handles.iter().zip(rings) {
            while unread.len() < UNREAD_MAX
                && let Some(event) = ring.next()
            {
                let event = named.info(handle, &event);
                let total_ns = event.spent.total_ns;
                if total_ns >= self.log_ns {
                    self.log.add(event.clone());
                }
                if total_ns >= *slow_ns {
                    unread.push_back(event);
                }
            }
        }
    }

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
        self.collect(pollers.handles(), sessions);
        let running = self.running.as_mut().expect("just begun");
        running.until = Instant::now() + KEPT;
        Ok(running.page())
    }

    fn begin(&mut self, session: u64, slow_ns: u64, pollers: &mut Pollers) -> Result<(), Failure> {
        if !self.lent.is_empty() {
            let message = "the trace before has not ended at every poller: try again; a poller \
                           that is stalled (`kvrail status`) keeps it";
            return Err((Status::Quota, message.into()));
        }
        let mut rings = Vec::new();
        for poller in pollers.all().iter() {
            let (tracer, ring) = Tracer::new(slow_ns.min(self.log_ns));
            rings.push(ring);
            pollers.send(poller, PollerCommand::Trace(Box::new(tracer)));
        }
        self.lent = pollers.all();
        tracing::info!(session, slow_ns, "slow requests are traced");
        let (unread, until) = (VecDeque::new(), Instant::now());
        self.running = Some(RunningTrace { session, slow_ns, rings, unread, until });
        Ok(())
    }

    /// Logs slow requests, and ends a trace that is no longer read.
    pub(crate) fn housekeep(&mut self, pollers: &mut Pollers, sessions: &Sessions, now: Instant) {
        self.collect(pollers.handles(), sessions);
        let over =
            |running: &mut RunningTrace| now >= running.until || !sessions.lives(running.session);
        if let Some(RunningTrace { session, .. }) = self.running.take_if(over) {
            self.lend_light(pollers);
            tracing::info!(session, "slow requests are traced no more");
        }
    }

    /// A poller gave a tracer back.
    pub(crate) fn returned(&mut self, poller: usize, tracer: &Tracer) {
        if !tracer.is_light() {
            self.lent.remove(poller);
        }
    }
}

impl RunningTrace {
    fn page(&mut self) -> TracePage {
        let events = self.unread.drain(..self.unread.len().min(PAGE_MAX)).collect();
        let lost = self.rings.iter().map(|ring| ring.lost()).sum();
        TracePage { events, lost, slow_ns: self.slow_ns }
    }
}

/// The present on two clocks.
struct ClockPair {
    unix: Duration,
    monotonic_ns: u64,
}

impl ClockPair {
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
struct SessionNames<'a> {
    sessions: &'a Sessions,
    now: ClockPair,
}

impl SessionNames<'_> {
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

    fn work(&self, handle: &PollerHandle, work: &TracedWork, key: Option<TraceKey>) -> TraceWork {
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
