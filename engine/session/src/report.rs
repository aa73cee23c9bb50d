//! What `kvrail status` shows, put together from the pollers' counters and our tables.

use std::time::{Duration, Instant};

use kvrail_device::{Clock, Description, MonotonicClock};
use kvrail_poller::{Counter, DeviceStats, Latencies, PollerHandle, SessionSlot, WokenBy};
use kvrail_protocol::{
    DeviceReport, DeviceState, IoCounts, LatencyReport, PollerReport, RegionsReport, SessionReport,
    SidecarReport, StallReport, StatusReport, VolumeInfo, VolumeReport, Waker,
};

use crate::server::Server;
use crate::session::{Phase, Session};

/// Share of busy ticks, sampled now and then.
#[derive(Debug)]
pub(crate) struct BusyShares {
    at: Option<Instant>,
    pollers: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    ticks: u64,
    busy: u64,
    share: f64,
}

impl BusyShares {
    pub(crate) fn new(pollers: usize) -> Self {
        Self { at: None, pollers: vec![Sample::default(); pollers] }
    }

    /// Takes a sample, at most one a second.
    pub(crate) fn sample(&mut self, handles: &[PollerHandle], now: Instant) {
        if self.at.is_some_and(|at| now.duration_since(at) < Duration::from_secs(1)) {
            return;
        }
        self.at = Some(now);
        for (sample, handle) in self.pollers.iter_mut().zip(handles) {
            let (ticks, busy) = (handle.stats.ticks.get(), handle.stats.busy_ticks.get());
            let passed = ticks.wrapping_sub(sample.ticks);
            let share = if passed == 0 {
                0.0
            } else {
                (busy.wrapping_sub(sample.busy) as f64 / passed as f64).min(1.0)
            };
            *sample = Sample { ticks, busy, share };
        }
    }
}

/// What the requests of a session slot came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    accepted: u64,
    completed: u64,
    failed: u64,
    bytes: u64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(before.accepted),
            completed: self.completed.saturating_sub(before.completed),
            failed: self.failed.saturating_sub(before.failed),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

impl Server {
    /// How everything is now.
    #[must_use]
    pub fn report(&self) -> StatusReport {
        let handles = self.pollers.handles();
        let mut devices: Vec<DeviceReport> = handles.iter().flat_map(devices_of).collect();
        devices.sort_by_key(|device| device.index);
        let sessions = self.sessions.values();
        let attached = sessions.filter(|session| !matches!(session.phase, Phase::Greeting { .. }));
        let mut notes = self.config.notes.clone();
        notes.extend(self.memory_notes.iter().map(|(what, why)| format!("{what}: {why}")));
        StatusReport {
            sidecar: self.report_sidecar(),
            pollers: (0..handles.len()).map(|poller| self.report_poller(poller)).collect(),
            devices,
            volumes: self.volumes.iter().map(report_volume).collect(),
            gpus: (0..self.config.gpus.len()).map(|at| self.report_gpu(at)).collect(),
            sessions: attached.map(|session| self.report_session(session)).collect(),
            regions: self.report_regions(),
            notes,
        }
    }

    fn report_sidecar(&self) -> SidecarReport {
        SidecarReport {
            pid: std::process::id(),
            epoch: self.config.identity.epoch.0,
            version: self.config.identity.version.clone(),
            uptime_s: self.started.elapsed().as_secs(),
            socket: self.config.socket.display().to_string(),
            state: self.stage.shown(),
            refused: self.refused,
            sessions_max: narrow(self.limits.sessions),
            sessions_per_uid: narrow(self.limits.sessions_per_uid),
            closing: narrow(self.maker.waiting()),
        }
    }

    fn report_poller(&self, poller: usize) -> PollerReport {
        let handle = &self.pollers.handles()[poller];
        let stats = &handle.stats;
        let beat_ns = stats.beat_ns.get();
        let lanes: usize = self.sessions.values().map(|session| session.queues.len()).sum();
        PollerReport {
            index: handle.index.0,
            cpu: handle.cpu,
            heartbeat_age_ns: MonotonicClock.now_ns().saturating_sub(beat_ns),
            ticks: stats.ticks.get(),
            busy_share: self.busy.pollers[poller].share,
            sleeps: stats.sleeps.get(),
            bells: stats.bells.get(),
            allocations: stats.allocations.get(),
            lanes: narrow(lanes),
            devices: handle.devices.iter().map(|(index, _)| index.0).collect(),
            stalled: self
                .watch
                .stall(poller)
                .map(|stall| StallReport { for_s: stall.seconds(), kernel: stall.kernel.clone() }),
        }
    }

    fn report_session(&self, session: &Session) -> SessionReport {
        let counted = session.slot.map(|slot| self.counted(slot)).unwrap_or_default();
        let counts = counted.since(session.counted_before);
        let (gpu_regions, gpu_bytes) = session.gpu_regions(None);
        let state = match &session.phase {
            Phase::Greeting { .. } => "greeting".into(),
            Phase::Attached => "attached".into(),
            Phase::Reclaiming { reason, waiting } => match self.watch.words(*waiting) {
                words if words.is_empty() => format!("reclaiming: {reason}"),
                words => format!("reclaiming: {reason}; waiting for {words}"),
            },
        };
        SessionReport {
            id: session.id,
            pid: session.peer.pid,
            uid: session.peer.uid,
            gid: session.peer.gid,
            name: session.name.clone(),
            library: session.library.clone(),
            arenas: narrow(session.arena_count()),
            arena_bytes: session.arena_bytes(),
            gpu_regions: narrow(gpu_regions),
            gpu_bytes,
            queues: narrow(session.queues.len()),
            woken_by: match session.waking.as_ref().map(|waking| waking.by()) {
                Some(WokenBy::Ringer) => Waker::Ringer,
                Some(WokenBy::Poller) | None => Waker::Poller,
            },
            accepted: counts.accepted,
            completed: counts.completed,
            failed: counts.failed,
            bytes: counts.bytes,
            state,
            since_s: session.since.elapsed().as_secs(),
        }
    }

    /// What all pollers counted in a slot since they started.
    pub(crate) fn counted(&self, slot: SessionSlot) -> Counts {
        let handles = self.pollers.handles().iter();
        let slots = handles.filter_map(|handle| handle.stats.sessions.get(usize::from(slot.0)));
        slots.fold(Counts::default(), |sum, stats| Counts {
            accepted: sum.accepted + stats.accepted.get(),
            completed: sum.completed + stats.completed.get(),
            failed: sum.failed + stats.failed.get(),
            bytes: sum.bytes + stats.bytes.get(),
        })
    }

    fn report_regions(&self) -> RegionsReport {
        let held = || self.sessions.values().filter(|session| session.is_reclaiming());
        let with_arenas = held().filter(|session| !session.arenas.is_empty());
        RegionsReport {
            arenas: narrow(self.regions.used()),
            bytes: self.regions.bytes(),
            quarantined: narrow(held().map(Session::arena_count).sum()),
            quarantined_bytes: held().map(Session::arena_bytes).sum(),
            quarantined_oldest_s: with_arenas
                .map(|session| session.since.elapsed().as_secs())
                .max()
                .unwrap_or(0),
            limit_bytes: self.limits.arena_bytes_total,
        }
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn latency(latencies: &Latencies) -> LatencyReport {
    LatencyReport {
        p50_ns: latencies.quantile_ns(0.5),
        p99_ns: latencies.quantile_ns(0.99),
        p999_ns: latencies.quantile_ns(0.999),
    }
}

fn devices_of(handle: &PollerHandle) -> Vec<DeviceReport> {
    let described = handle.devices.iter().zip(&handle.stats.devices);
    described
        .map(|((index, description), stats)| {
            report_device((index.0, handle.index.0), description, stats)
        })
        .collect()
}

fn report_device(
    (index, poller): (u16, u16),
    description: &Description,
    stats: &DeviceStats,
) -> DeviceReport {
    let count = |operations: &Counter, bytes: &Counter| IoCounts {
        operations: operations.get(),
        bytes: bytes.get(),
    };
    DeviceReport {
        index,
        poller,
        name: description.name.clone(),
        kind: description.kind.clone(),
        state: if stats.gone.get() == 0 { DeviceState::Serving } else { DeviceState::Gone },
        mode: description.mode.clone(),
        reason: description.reason.clone(),
        features: description.features.clone(),
        io: description.io.clone(),
        capacity_bytes: description.capacity_bytes,
        logical_block: description.logical_block,
        depth: description.depth,
        in_flight: stats.in_flight.get(),
        in_flight_bytes: stats.in_flight_bytes_limit.get(),
        waiting: stats.waiting.get(),
        reads: count(&stats.reads, &stats.read_bytes),
        writes: count(&stats.writes, &stats.write_bytes),
        others: stats.others.get(),
        errors: stats.errors.get(),
        late: stats.late.get(),
        overdue: stats.overdue.get(),
        oldest_ms: match stats.oldest_ns.get() {
            0 => 0,
            since_ns => MonotonicClock.now_ns().saturating_sub(since_ns) / 1_000_000,
        },
        device_latency: latency(&stats.device_latency),
        queue_latency: latency(&stats.queue_latency),
    }
}

fn report_volume(volume: &VolumeInfo) -> VolumeReport {
    let geometry = &volume.geometry;
    VolumeReport {
        name: volume.name.clone(),
        uuid: volume.uuid,
        members: volume.members.clone(),
        capacity_bytes: geometry.member_bytes * u64::from(geometry.members),
        stripe_bytes: geometry.stripe_bytes,
        logical_block: geometry.logical_block,
    }
}
