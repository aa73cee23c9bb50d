//! The start report: what the sidecar found, what it chose, and why.

use std::fmt::Write;

use kvrail_poller::{InFlightBytes, PollerHandle};
use kvrail_protocol::{VolumeContent, VolumeInfo};
use kvrail_ring::{DeviceIndex, Geometry};
use kvrail_session::ServedGpu;

use super::plan::Plan;
use kvrail_cli::config::Config;
use kvrail_cli::output::human_bytes;

/// The start report.
pub(super) fn text(
    config: &Config,
    plan: &Plan,
    pollers: &[PollerHandle],
    volumes: &[VolumeInfo],
    memory: &str,
) -> String {
    let mut text = format!(
        "kvrail {} ready on {}\n",
        env!("CARGO_PKG_VERSION"),
        config.sidecar.socket.display()
    );
    for volume in volumes {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}", volume_line(volume));
    }
    for poller in pollers {
        let place = poller.cpu.map_or("unpinned".into(), |cpu| format!("CPU {cpu}"));
        let spin_us = plan.spin_ns / 1000;
        let _ = writeln!(text, "  poller {} on {place}, spins up to {spin_us} us", poller.index);
        for (index, device) in &poller.devices {
            let _ = writeln!(
                text,
                "    device {index} {}: {} {}, {} I/O, depth {}, {} in flight, {} B blocks\n\
                 \x20     mode: {}\n\
                 \x20     ring: {}",
                device.name,
                device.kind,
                device.mode,
                device.io,
                device.depth,
                in_flight(poller, *index, plan),
                device.logical_block,
                device.reason,
                device.features.join(", ")
            );
        }
    }
    // As for all lines here: writing to a String cannot fail.
    let _ = writeln!(text, "  memory: {memory}");
    for note in plan.notes.iter().cloned().chain(kvrail_session::unregistered(pollers)) {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// How much a device is given at once, and why.
fn in_flight(poller: &PollerHandle, index: DeviceIndex, plan: &Plan) -> String {
    let at = poller.devices.iter().position(|(device, _)| *device == index);
    let limit = at.map_or(0, |at| poller.stats.devices[at].counters.in_flight_bytes.get());
    let why = match plan.budget(index).bytes {
        InFlightBytes::Fixed(_) => "configured",
        InFlightBytes::Followed => "auto: 2 ms of it, 4 for one client alone, followed",
    };
    format!("{} ({why})", human_bytes(limit))
}

/// The report's part on GPUs.
pub(super) fn gpus(gpus: &[ServedGpu], volumes: &[VolumeInfo]) -> String {
    let mut text = String::new();
    for it in gpus {
        let identity = it.gpu.identity();
        let place = it.cpu.map_or("not pinned".into(), |cpu| format!("on CPU {cpu}"));
        let options = it.staging.options();
        let _ = writeln!(
            text,
            "  GPU {} {} ({}), poller {place}, {} staging slots of {} in {} pages",
            identity.index,
            identity.uuid,
            identity.name,
            options.slots,
            human_bytes(u64::from(options.slot_bytes)),
            human_bytes(it.staging.region().page().bytes() as u64),
        );
        for route in &it.routes {
            let volume = &volumes[usize::from(route.volume)].name;
            let _ = writeln!(text, "    volume {volume}: {} ({})", route.mechanism, route.reason);
        }
        if let Some(remark) = it.staging.remark() {
            let _ = writeln!(text, "    note: staging memory: {remark}");
        }
    }
    text
}

fn volume_line(volume: &VolumeInfo) -> String {
    let capacity = Geometry::try_from(volume.geometry).map_or(0, |geometry| geometry.capacity());
    let (kind, cut) = match volume.content {
        VolumeContent::Raw => ("volume", ("stripe", volume.geometry.stripe_bytes)),
        VolumeContent::Store(store) => ("store", ("segments of", store.segment_bytes)),
    };
    format!(
        "{kind} {} ({}): {} on {} member(s), {} {}",
        volume.name,
        volume.uuid,
        human_bytes(capacity),
        volume.members.len(),
        cut.0,
        human_bytes(cut.1)
    )
}
