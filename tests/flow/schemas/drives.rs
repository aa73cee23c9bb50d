//! `kvrail devices`: of this host, and of drives as the product's own types write them.

use kvrail_nvme::{
    Controller, ControllerFacts, Drive, Endurance, LbaFormat, Link, Namespace, NamespaceFacts,
    Queue, SmartLog, Unseen,
};
use serde_json::{Value, json};

use super::{Outputs, command};
use crate::rig::Place;

/// What lies on a drive is an item of `kvrail volume inspect`.
pub(super) fn of_drives(outputs: &mut Outputs, place: &Place) {
    outputs.take("devices", &mut command(&["devices"], place));
    let inspected = outputs.0["volume-inspect"][0][0].clone();
    assert!(inspected.is_object(), "{inspected}");
    let listed = [(full(), inspected.clone()), (silent(), inspected), (bare(), Value::Null)].map(
        |(drive, holds)| {
            let mut listed = json!(drive);
            listed["holds"] = holds;
            listed
        },
    );
    outputs.0.entry("devices").or_default().push(json!(listed));
}

fn namespace() -> Namespace {
    let controller = Controller {
        name: "nvme0".into(),
        transport: "pcie".into(),
        pci: Some("0000:3b:00.0".parse().expect("an address")),
        address: "0000:3b:00.0".into(),
        serial: "S6CKNE0T".into(),
        model: "Example Drive".into(),
        firmware: "1.0".into(),
        subsystem: "nqn.2014-08.org.example:S6CKNE0T".into(),
        state: "live".into(),
    };
    Namespace {
        name: "nvme0n1".into(),
        nsid: 1,
        wwids: vec!["eui.0025385c2140c1e5".into()],
        block_node: Some("/dev/nvme0n1".into()),
        char_node: Some("/dev/ng0n1".into()),
        controllers: vec![controller],
    }
}

/// A drive that reports everything.
fn full() -> Drive {
    let format =
        LbaFormat { index: 0, block_bytes: 4096, metadata_bytes: 0, relative_performance: 0 };
    Drive {
        namespace: namespace(),
        size_bytes: 1 << 40,
        queue: Some(queue()),
        links: vec![link()],
        controller: Some(ControllerFacts {
            transfer_bytes_max: Some(1 << 20),
            volatile_write_cache: false,
            atomic_blocks: 1,
            atomic_blocks_power_fail: 1,
            warning_celsius: Some(70),
            critical_celsius: Some(80),
            discard: true,
            verify: true,
        }),
        formats: Some(NamespaceFacts {
            format,
            formats: vec![format],
            protection: Some(1),
            protections: vec![1],
            metadata_in_data: false,
            atomic_blocks_power_fail: Some(1),
            endurance_group: Some(1),
        }),
        health: Some(SmartLog {
            warnings: vec!["media read-only"],
            celsius: 40,
            spare_percent: 99,
            spare_threshold_percent: 10,
            used_percent: 3,
            read_bytes: 1,
            written_bytes: 1,
            power_cycles: 1,
            power_on_hours: 1,
            unsafe_shutdowns: 1,
            media_errors: 0,
        }),
        endurance: Some(Endurance {
            life_bytes: 1 << 50,
            written_bytes: 1 << 40,
            media_written_bytes: Some(1 << 41),
        }),
        unseen: Vec::new(),
    }
}

fn queue() -> Queue {
    Queue {
        logical_block: Some(4096),
        metadata_bytes: Some(0),
        request_bytes_max: Some(1 << 20),
        segments_max: Some(127),
        write_cache: Some("write through".into()),
        fua: Some(true),
        polled: Some(true),
        atomic_write_bytes: Some(4096),
    }
}

fn link() -> Link {
    Link {
        controller: "nvme0".into(),
        numa_node: Some(0),
        speed: Some("16.0 GT/s PCIe".into()),
        lanes: Some(4),
        speed_max: Some("16.0 GT/s PCIe".into()),
        lanes_max: Some(4),
        queues: Some(64),
        poll_queues: Some(2),
        memory_buffer_bytes: Some(64 << 20),
    }
}

/// A drive that leaves out what it may.
fn silent() -> Drive {
    let mut drive = full();
    let controller = drive.controller.as_mut().expect("a full one");
    controller.transfer_bytes_max = None;
    (controller.warning_celsius, controller.critical_celsius) = (None, None);
    let formats = drive.formats.as_mut().expect("a full one");
    (formats.protection, formats.endurance_group) = (None, None);
    formats.atomic_blocks_power_fail = None;
    drive.endurance.as_mut().expect("a full one").media_written_bytes = None;
    drive
}

/// A drive of a fabric of which little is known.
fn bare() -> Drive {
    let mut drive = full();
    (drive.namespace.block_node, drive.namespace.char_node) = (None, None);
    drive.namespace.controllers[0].pci = None;
    drive.queue = Some(Queue {
        logical_block: None,
        metadata_bytes: None,
        request_bytes_max: None,
        segments_max: None,
        write_cache: None,
        fua: None,
        polled: None,
        atomic_write_bytes: None,
    });
    drive.links[0] = Link {
        numa_node: None,
        speed: None,
        lanes: None,
        speed_max: None,
        lanes_max: None,
        queues: None,
        poll_queues: None,
        memory_buffer_bytes: None,
        ..link()
    };
    (drive.controller, drive.formats, drive.health) = (None, None, None);
    drive.endurance = None;
    drive.unseen = vec![Unseen { what: "health", why: "no right".into() }];
    drive
}
