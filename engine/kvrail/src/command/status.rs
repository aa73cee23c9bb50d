//! `kvrail status`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kvrail_client::{AttachOptions, Client};
use kvrail_protocol::{DeviceReport, DeviceState, GpuState, LatencyReport, StatusReport, Waker};

use super::silent::explain;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, human_bytes, print_json, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail status
  kvrail status --socket /tmp/kvrail.sock --format json";

/// Longest wait for a sidecar, which answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Arguments of `kvrail status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// The sidecar's socket [default: sidecar.socket of the configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Shows what a running sidecar is doing.
///
/// # Errors
/// `Failure` with status 4 when no sidecar answers.
pub(crate) fn run(args: StatusArgs, context: &Context) -> Result<(), Failure> {
    let socket = match args.socket {
        Some(socket) => socket,
        None => context.config()?.config.sidecar.socket,
    };
    let options = AttachOptions { timeout: PATIENCE, ..AttachOptions::default() };
    let report = Client::attach_with(&socket, &options)
        .and_then(|client| client.status())
        .map_err(|error| explain(&error, &socket))?;
    match context.format {
        Format::Json => print_json(&report),
        Format::Human => print_text(&text(&report)),
    }
}

fn text(report: &StatusReport) -> String {
    let sections = [
        sidecar(report),
        volumes(report),
        devices(report),
        gpus(report),
        latencies(report),
        pollers(report),
        sessions(report),
        notes(report),
    ];
    sections.into_iter().filter(|section| !section.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn sidecar(report: &StatusReport) -> String {
    let it = &report.sidecar;
    let regions = &report.regions;
    let mut text = format!(
        "kvrail {} pid {} {:?} for {} s on {} (epoch {})\n{} arenas, {} of {} shared; \
         {} sessions at most, {} of one user",
        it.version,
        it.pid,
        it.state,
        it.uptime_s,
        it.socket,
        it.epoch,
        regions.arenas,
        human_bytes(regions.bytes),
        human_bytes(regions.limit_bytes),
        it.sessions_max,
        it.sessions_per_uid,
    );
    if regions.quarantined > 0 {
        text += &format!(
            "\n{} arenas of dead clients ({}) wait for their devices, the oldest for {} s",
            regions.quarantined,
            human_bytes(regions.quarantined_bytes),
            regions.quarantined_oldest_s
        );
    }
    if it.closing > 0 {
        text += &format!(
            "\n{} ended connections wait for what their clients had sent to be closed",
            it.closing
        );
    }
    if it.refused > 0 {
        text += &format!("\n{} connections were refused", it.refused);
    }
    text
}

fn volumes(report: &StatusReport) -> String {
    let mut rows = table(&["VOLUME", "UUID", "CAPACITY", "STRIPE", "BLOCK", "MEMBERS"]);
    for volume in &report.volumes {
        rows.add_row([
            volume.name.clone(),
            volume.uuid.to_string(),
            human_bytes(volume.capacity_bytes),
            human_bytes(volume.stripe_bytes),
            format!("{} B", volume.logical_block),
            volume.members.join(" "),
        ]);
    }
    trimmed(&rows)
}

fn devices(report: &StatusReport) -> String {
    let mut rows = table(&[
        "DEVICE", "NAME", "MODE", "I/O", "DEPTH", "BYTES", "NOW", "WAIT", "READS", "READ",
        "WRITES", "WRITTEN", "ERRORS", "LATE",
    ]);
    for device in &report.devices {
        rows.add_row([
            device.index.to_string(),
            device.name.clone(),
            match device.state {
                DeviceState::Serving => device.mode.clone(),
                DeviceState::Gone => "gone".into(),
            },
            device.io.clone(),
            device.depth.to_string(),
            human_bytes(device.in_flight_bytes),
            device.in_flight.to_string(),
            device.waiting.to_string(),
            device.reads.operations.to_string(),
            human_bytes(device.reads.bytes),
            device.writes.operations.to_string(),
            human_bytes(device.writes.bytes),
            device.errors.to_string(),
            device.late.to_string(),
        ]);
    }
    let why = report.devices.iter().map(|device| {
        let features = device.features.join(", ");
        format!("  {}: {}; {features}", device.index, device.reason)
    });
    let overdue = report.devices.iter().filter(|device| device.overdue > 0).map(|device| {
        let (index, count, age) = (device.index, device.overdue, device.oldest_ms / 1000);
        format!("  {index}: {count} requests are too old, the oldest {age} s: it does not answer")
    });
    format!("{}\n{}", trimmed(&rows), why.chain(overdue).collect::<Vec<_>>().join("\n"))
}

fn gpus(report: &StatusReport) -> String {
    if report.gpus.is_empty() {
        return String::new();
    }
    let mut rows = table(&[
        "GPU", "UUID", "STATE", "CPU", "REGIONS", "SLOTS", "LAUNCHES", "MOVES", "TO GPU",
        "FROM GPU", "DIRECT", "FAILED",
    ]);
    let mut lines = Vec::new();
    for it in &report.gpus {
        rows.add_row([
            it.gpu.index.to_string(),
            it.gpu.uuid.clone(),
            match it.state {
                GpuState::Serving => "serving".into(),
                GpuState::Failed => "failed".into(),
            },
            it.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string()),
            format!("{} ({})", it.regions, human_bytes(it.region_bytes)),
            format!("{} of {}", it.staging.taken, it.staging.slots),
            it.launches.to_string(),
            it.moves.to_string(),
            human_bytes(it.scattered_bytes),
            human_bytes(it.gathered_bytes),
            human_bytes(it.direct_bytes),
            it.failed.to_string(),
        ]);
        lines.extend(it.failure.iter().map(|why| format!("  {}: {why}", it.gpu.index)));
        lines.extend(it.routes.iter().map(|route| {
            let volume = report.volumes.get(usize::from(route.volume));
            let volume = volume.map_or("?", |volume| volume.name.as_str());
            let (mechanism, reason) = (route.mechanism, &route.reason);
            format!("  {}: volume {volume} is {mechanism}: {reason}", it.gpu.index)
        }));
    }
    format!("{}\n{}", trimmed(&rows), lines.join("\n"))
}

fn latencies(report: &StatusReport) -> String {
    let busy = |device: &&DeviceReport| device.device_latency.p50_ns > 0;
    if !report.devices.iter().any(|device| busy(&device)) {
        return String::new();
    }
    let mut rows = table(&["LATENCY", "", "P50", "P99", "P99.9"]);
    for device in report.devices.iter().filter(busy) {
        let line = |what: &str, latency: &LatencyReport| {
            [
                device.index.to_string(),
                what.to_owned(),
                micros(latency.p50_ns),
                micros(latency.p99_ns),
                micros(latency.p999_ns),
            ]
        };
        rows.add_row(line("at the device", &device.device_latency));
        rows.add_row(line("before it", &device.queue_latency));
    }
    trimmed(&rows)
}

fn pollers(report: &StatusReport) -> String {
    let mut rows = table(&["POLLER", "CPU", "BUSY", "SLEEPS", "BELLS", "LANES", "BEAT", "DEVICES"]);
    for poller in &report.pollers {
        let devices: Vec<_> = poller.devices.iter().map(ToString::to_string).collect();
        rows.add_row([
            poller.index.to_string(),
            poller.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string()),
            format!("{:.1} %", poller.busy_share * 100.0),
            poller.sleeps.to_string(),
            poller.bells.to_string(),
            poller.lanes.to_string(),
            match &poller.stalled {
                None => format!("{} ms ago", poller.heartbeat_age_ns / 1_000_000),
                Some(stall) => format!("STALLED {} s", stall.for_s),
            },
            devices.join(" "),
        ]);
    }
    let stalled = report.pollers.iter().filter_map(|poller| {
        let kernel = &poller.stalled.as_ref()?.kernel;
        Some(format!("\n  {} is stalled, a device keeps it: {kernel}", poller.index))
    });
    trimmed(&rows) + &stalled.collect::<String>()
}

fn sessions(report: &StatusReport) -> String {
    let mut rows = table(&[
        "SESSION",
        "PID",
        "UID",
        "NAME",
        "STATE",
        "FOR",
        "QUEUES",
        "WOKEN BY",
        "ARENAS",
        "GPU REGIONS",
        "ACCEPTED",
        "COMPLETED",
        "FAILED",
        "MOVED",
    ]);
    for session in &report.sessions {
        rows.add_row([
            session.id.to_string(),
            session.pid.to_string(),
            session.uid.to_string(),
            session.name.clone(),
            session.state.clone(),
            format!("{} s", session.since_s),
            session.queues.to_string(),
            waker(session.woken_by).to_owned(),
            format!("{} ({})", session.arenas, human_bytes(session.arena_bytes)),
            format!("{} ({})", session.gpu_regions, human_bytes(session.gpu_bytes)),
            session.accepted.to_string(),
            session.completed.to_string(),
            session.failed.to_string(),
            human_bytes(session.bytes),
        ]);
    }
    trimmed(&rows)
}

fn waker(by: Waker) -> &'static str {
    match by {
        Waker::Poller => "poller",
        Waker::Ringer => "ringer",
    }
}

fn notes(report: &StatusReport) -> String {
    report.notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>().join("\n")
}

fn micros(ns: u64) -> String {
    let tenths = ns.div_ceil(100);
    format!("{}.{} us", tenths / 10, tenths % 10)
}

fn trimmed(rows: &comfy_table::Table) -> String {
    rows.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}
