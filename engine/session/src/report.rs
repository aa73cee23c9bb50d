//! Pollers, devices, volumes and regions in the report of `kvrail status`.

use std::time::{Duration, Instant};

use kvrail_device::{Clock, Description, MonotonicClock};
use kvrail_memory::{PinLimit, pin_remedy};
use kvrail_poller::{
    Counter, DeviceStats, IoLatencies, LatencyCounts, OperationKind, PollerHandle,
};
use kvrail_protocol::{
    DeviceReport, DeviceState, HistogramReport, IoCounts, IoLatencyReport, LatencyReport,
    PollerReport, RegionsReport, StallReport, VolumeInfo, VolumeReport,
};
use kvrail_ring::Class;

use crate::regions::AttachedRegions;
use crate::sessions::Sessions;
use crate::watch::Watch;

/// Share of busy ticks, sampled now and then.
#[derive(Debug)]
pub(crate) struct BusyShares {
    at: Option<Instant>,
    pollers: Vec<BusySample>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BusySample {
    ticks: u64,
    busy: u64,
    share: f64,
}

impl BusyShares {
    pub(crate) fn new(pollers: usize) -> Self {
        Self { at: None, pollers: vec![BusySample::default(); pollers] }
    }

    /// Takes a sample, at most one a second.
    pub(crate) fn sample(&mut self, handles: &[PollerHandle], now: Instant) {
        if self.at.is_some_and(|at| now.duration_since(at) < Duration::from_secs(1)) {
            return;
        }
        self.at = Some(now);
        for (sample, handle) in self.pollers.iter_mut().zip(handles) {
            let (ticks, busy) =
                (handle.stats.counters.ticks.get(), handle.stats.counters.busy_ticks.get());
            let passed = ticks.wrapping_sub(sample.ticks);
            let share = if passed == 0 {
                0.0
            } else {
                (busy.wrapping_sub(sample.busy) as f64 / passed as f64).min(1.0)
            };
            *sample = BusySample { ticks, busy, share };
        }
    }
}

/// How a poller is. All lanes of all sessions are one for each poller.
pub(crate) fn poller(
    handle: &PollerHandle,
    (at, lanes): (usize, usize),
    busy: &BusyShares,
    watch: &Watch,
) -> PollerReport {
    let stats = &handle.stats;
    PollerReport {
        index: handle.index.0,
        cpu: handle.cpu,
        heartbeat_age_ns: MonotonicClock.now_ns().saturating_sub(stats.beat_ns.get()),
        counters: stats.counters.map(|counter| Some(counter.get())),
        busy_share: busy.pollers[at].share,
        lanes: narrow(lanes),
        devices: handle.devices.iter().map(|(index, _)| index.0).collect(),
        stalled: watch
            .stall(at)
            .map(|stall| StallReport { for_s: stall.seconds(), kernel: stall.kernel.clone() }),
    }
}

/// The table of arenas; those of ended sessions are quarantined.
pub(crate) fn regions(
    sessions: &Sessions,
    regions: &AttachedRegions,
    limit_bytes: u64,
) -> RegionsReport {
    let ended = sessions.iter().filter(|session| session.is_reclaiming());
    let held = ended.map(|session| (session.age().as_secs(), regions.used_by(session.id())));
    let held: Vec<_> = held.collect();
    let oldest = held.iter().filter(|(_, used)| used.arenas + used.gpu_regions > 0);
    RegionsReport {
        arenas: narrow(regions.table().used()),
        bytes: regions.table().bytes(),
        quarantined: narrow(held.iter().map(|(_, used)| used.arenas).sum()),
        quarantined_bytes: held.iter().map(|(_, used)| used.arena_bytes).sum(),
        quarantined_oldest_s: oldest.map(|(age_s, _)| *age_s).max().unwrap_or(0),
        limit_bytes,
    }
}

/// All devices, by number.
pub(crate) fn devices(handles: &[PollerHandle]) -> Vec<DeviceReport> {
    let mut devices: Vec<DeviceReport> = handles.iter().flat_map(devices_of).collect();
    devices.sort_by_key(|device| device.index);
    devices
}

pub(crate) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

pub(crate) fn quantiles(counted: &LatencyCounts) -> LatencyReport {
    LatencyReport {
        p50_ns: counted.quantile_ns(0.5),
        p99_ns: counted.quantile_ns(0.99),
        p999_ns: counted.quantile_ns(0.999),
    }
}

pub(crate) fn histogram(counted: &LatencyCounts) -> HistogramReport {
    HistogramReport { sum_ns: counted.sum_ns(), buckets: counted.buckets().collect() }
}

/// Latencies of a device by kind and class, and all of them together: at the device, and before.
fn latencies(stats: &DeviceStats) -> (Vec<IoLatencyReport>, [LatencyReport; 2]) {
    let (mut apart, mut all) = (Vec::new(), [LatencyCounts::default(), LatencyCounts::default()]);
    for kind in OperationKind::ALL {
        let operation = match kind {
            OperationKind::Read => "read",
            OperationKind::Write => "write",
            OperationKind::Other => "other",
        };
        for class in Class::ALL {
            let IoLatencies { device, queue } = stats.latencies(kind, class);
            let (device, queue) = (device.counted(), queue.counted());
            all[0].add(&device);
            all[1].add(&queue);
            let (device, queue) = (histogram(&device), histogram(&queue));
            if !device.buckets.is_empty() {
                let class = class.name().to_owned();
                apart.push(IoLatencyReport { operation: operation.into(), class, device, queue });
            }
        }
    }
    (apart, all.map(|counted| quantiles(&counted)))
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
    let (latencies, [device_latency, queue_latency]) = latencies(stats);
    DeviceReport {
        index,
        poller,
        name: description.name.clone(),
        volume: String::new(),
        member: String::new(),
        drive: None,
        kind: description.kind.clone(),
        state: if stats.gone.get() == 0 { DeviceState::Serving } else { DeviceState::Gone },
        retired: stats.retired.get() != 0,
        mode: description.mode.clone(),
        reason: description.reason.clone(),
        features: description.features.clone(),
        io: description.io.clone(),
        capacity_bytes: description.capacity_bytes,
        logical_block: description.logical_block,
        depth: description.depth,
        counters: stats.counters.map(|counter| Some(counter.get())),
        reads: count(&stats.reads, &stats.read_bytes),
        writes: count(&stats.writes, &stats.write_bytes),
        others: stats.others.get(),
        oldest_ms: match stats.oldest_ns.get() {
            0 => 0,
            since_ns => MonotonicClock.now_ns().saturating_sub(since_ns) / 1_000_000,
        },
        recent_ns: 0,
        device_latency,
        queue_latency,
        latencies,
    }
}

/// How much memory is not registered with rings, why, and what to do about that.
#[must_use]
pub fn unregistered(handles: &[PollerHandle]) -> Option<String> {
    let devices = || handles.iter().flat_map(|handle| &handle.stats.devices);
    let addressed: u64 = devices().map(|stats| stats.counters.unregistered_bytes.get()).sum();
    let registered = devices().map(|stats| stats.counters.registered_bytes.get());
    let all = addressed + registered.sum::<u64>();
    let (limit, remedy) = (PinLimit::of_this_process(), pin_remedy(all));
    (addressed > 0).then(|| {
        format!(
            "memory: {addressed} of {all} bytes are not registered with the rings, because this \
             user may pin {limit}: the kernel pins pages again for each request, which is slower; \
             {remedy}"
        )
    })
}

pub(crate) fn volume(volume: &VolumeInfo) -> VolumeReport {
    let geometry = &volume.geometry;
    VolumeReport {
        name: volume.name.clone(),
        uuid: volume.uuid,
        members: volume.members.clone(),
        missing: Vec::new(),
        capacity_bytes: geometry.member_bytes * u64::from(geometry.members),
        stripe_bytes: geometry.stripe_bytes,
        logical_block: geometry.logical_block,
    }
}
