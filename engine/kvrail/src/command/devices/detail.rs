//! Everything known about one namespace.

use comfy_table::Table;
use kvrail_nvme::{ControllerFacts, Drive, Endurance, Link, NamespaceFacts, Queue, SmartLog};

use super::device::ListedDevice;
use super::overview;
use crate::command::describe;
use kvrail_cli::output::{human_bytes, table as bare};

/// Unknown facts have no line.
pub(super) fn table(device: &ListedDevice) -> Table {
    let drive = &device.drive;
    let namespace = &drive.namespace;
    let mut rows = DetailRows(bare(&[]));
    rows.add("device", &namespace.name);
    for selector in namespace.selectors() {
        rows.add("named", selector);
    }
    for controller in &namespace.controllers {
        rows.add("model", format!("{}, firmware {}", controller.model, controller.firmware));
        rows.add(
            "controller",
            format!("{} ({}, {})", controller.name, controller.transport, controller.state),
        );
    }
    drive.links.iter().for_each(|link| rows.link(link));
    rows.add("size", format!("{} ({} bytes)", human_bytes(drive.size_bytes), drive.size_bytes));
    rows.maybe("block", overview::block(drive));
    if let Some(facts) = &drive.formats {
        rows.formats(facts);
    }
    if let Some(facts) = &drive.controller {
        rows.controller(facts);
    }
    rows.maybe("write cache", overview::cache(drive));
    let atomic = atomic_blocks(drive).map(|blocks| format!("{blocks} block(s), power cut or not"));
    rows.maybe("atomic writes", atomic);
    if let Some(queue) = &drive.queue {
        rows.queue(queue);
    }
    if let Some(health) = &drive.health {
        rows.health(health);
    }
    if let Some(endurance) = &drive.endurance {
        rows.endurance(endurance, drive.size_bytes);
    }
    if let Some(seen) = &device.holds {
        rows.add("holds", describe::content(&seen.content));
        if !seen.partitions.is_empty() {
            rows.add("partitions", seen.partitions.join(", "));
        }
        rows.add("used by", describe::holders(seen));
    }
    rows.0
}

struct DetailRows(Table);

impl DetailRows {
    fn add(&mut self, name: &str, value: impl ToString) {
        self.0.add_row([name.to_owned(), value.to_string()]);
    }

    fn maybe(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    fn link(&mut self, link: &Link) {
        let width = |lanes: Option<u32>| lanes.map(|lanes| format!(" x{lanes}"));
        if let Some(speed) = &link.speed {
            let best = link.speed_max.as_ref().map(|speed| {
                let lanes = width(link.lanes_max).unwrap_or_default();
                format!(", {speed}{lanes} at best")
            });
            let (lanes, best) = (width(link.lanes).unwrap_or_default(), best.unwrap_or_default());
            self.add("link", format!("{speed}{lanes}{best}"));
        }
        self.maybe("NUMA node", link.numa_node);
        self.maybe("I/O queues", link.queues);
        self.maybe("poll queues", link.poll_queues);
        self.maybe("memory buffer", link.memory_buffer_bytes.map(human_bytes));
    }

    fn formats(&mut self, facts: &NamespaceFacts) {
        let all = facts.formats.iter().map(|format| {
            let now = if *format == facts.format { " (now)" } else { "" };
            format!("{}: {}+{}{now}", format.index, format.block_bytes, format.metadata_bytes)
        });
        self.add("formats", all.collect::<Vec<_>>().join(", "));
        let kinds: Vec<_> = facts.protections.iter().map(|kind| format!("type {kind}")).collect();
        if !kinds.is_empty() {
            self.add("protection", kinds.join(", "));
        }
    }

    fn controller(&mut self, facts: &ControllerFacts) {
        let transfer = facts.transfer_bytes_max;
        self.add("largest command", transfer.map_or_else(|| "no limit".into(), human_bytes));
        self.add("discard", if facts.discard { "yes" } else { "no" });
    }

    fn queue(&mut self, queue: &Queue) {
        self.maybe("largest request", queue.request_bytes_max.map(human_bytes));
        self.maybe("segments", queue.segments_max);
        self.maybe("kernel's cache", queue.write_cache.as_ref());
        self.maybe("kernel's atomic", queue.atomic_write_bytes.map(human_bytes));
    }

    fn endurance(&mut self, endurance: &Endurance, size_bytes: u64) {
        let thousandths = endurance.drive_writes_a_day(size_bytes);
        let (life, left) = (bytes(endurance.life_bytes), bytes(endurance.left_bytes()));
        let (whole, part) = (thousandths / 1000, thousandths % 1000);
        let daily = format!("{whole}.{part:03} drive writes a day for five years");
        self.add("bears", format!("{life} in all, {left} of them left; {daily}"));
    }

    fn health(&mut self, health: &SmartLog) {
        self.add("temperature", format!("{} C", health.celsius));
        self.add("life used", format!("{} %", health.used_percent));
        let (left, least) = (health.spare_percent, health.spare_threshold_percent);
        self.add("spare", format!("{left} % (warns below {least} %)"));
        self.add("read", bytes(health.read_bytes));
        self.add("written", bytes(health.written_bytes));
        self.add("media errors", health.media_errors);
        self.add("unsafe stops", health.unsafe_shutdowns);
        self.add("on", format!("{} h, {} times", health.power_on_hours, health.power_cycles));
        for warning in &health.warnings {
            self.add("WARNING", warning);
        }
    }
}

/// Blocks that stay whole when the power fails: the namespace's own word before the controller's.
fn atomic_blocks(drive: &Drive) -> Option<u32> {
    let own = drive.formats.as_ref().and_then(|facts| facts.atomic_blocks_power_fail);
    own.or_else(|| drive.controller.as_ref().map(|facts| facts.atomic_blocks_power_fail))
}

fn bytes(count: u128) -> String {
    human_bytes(u64::try_from(count).unwrap_or(u64::MAX))
}
