//! The description of drives: all values of sysfs, and by name those that could not be read.

use kvrail_nvme::{Drive, drives};

use crate::fake::{Fake, Slot};

const A: Slot<'_> = Slot { name: "nvme0", pci: "0000:3b:00.0", serial: "S6A" };
const DISK: &str = "sys/devices/pci0000:00/0000:3b:00.0/nvme/nvme0/nvme0n1";
const PCI: &str = "sys/devices/pci0000:00/0000:3b:00.0";

fn host() -> Fake {
    let fake = Fake::new();
    fake.controller(A);
    fake.namespace(A, "nvme0n1", 1, "eui.00");
    for (file, text) in [
        ("size", "8"),
        ("metadata_bytes", "8"),
        ("queue/logical_block_size", "4096"),
        ("queue/max_hw_sectors_kb", "512"),
        ("queue/max_segments", "127"),
        ("queue/write_cache", "write back"),
        ("queue/fua", "1"),
        ("queue/io_poll", "1"),
        ("queue/atomic_write_unit_max_bytes", "16384"),
    ] {
        fake.put(&format!("{DISK}/{file}"), &format!("{text}\n"));
    }
    for (file, text) in [
        ("current_link_speed", "8.0 GT/s PCIe"),
        ("current_link_width", "4"),
        ("max_link_speed", "Unknown"),
        ("max_link_width", "255"),
        ("nvme/nvme0/cmb", "cmbloc : 0x00000002\ncmbsz  : 0x0004021f"),
    ] {
        fake.put(&format!("{PCI}/{file}"), &format!("{text}\n"));
    }
    fake.put("sys/module/nvme/parameters/poll_queues", "2\n");
    fake
}

fn only(fake: &Fake) -> Drive {
    let mut drives = drives(&fake.root()).unwrap();
    assert_eq!(drives.len(), 1);
    drives.remove(0)
}

#[test]
fn sysfs_is_read_and_a_silent_drive_is_named() {
    let drive = only(&host());
    assert_eq!((drive.size_bytes, drive.namespace.nsid), (4096, 1));
    let queue = drive.queue.unwrap();
    assert_eq!((queue.logical_block, queue.metadata_bytes), (Some(4096), Some(8)));
    assert_eq!((queue.request_bytes_max, queue.segments_max), (Some(512 << 10), Some(127)));
    assert_eq!(queue.write_cache.as_deref(), Some("write back"));
    assert_eq!((queue.fua, queue.polled), (Some(true), Some(true)));
    assert_eq!(queue.atomic_write_bytes, Some(16384));
    let [link] = &drive.links[..] else { panic!("{:?}", drive.links) };
    assert_eq!((link.speed.as_deref(), link.lanes), (Some("8.0 GT/s PCIe"), Some(4)));
    assert_eq!((&link.speed_max, link.lanes_max), (&None, None));
    assert_eq!((link.numa_node, link.queues, link.poll_queues), (Some(1), Some(8), Some(2)));
    assert_eq!(link.memory_buffer_bytes, Some(64 << 20));
    // The made-up node is a file: every command is refused, and reported as such.
    let missed: Vec<_> = drive.unseen.iter().map(|unseen| unseen.what).collect();
    assert_eq!(missed, ["identity", "formats", "health"]);
    assert!(drive.unseen[0].why.contains("no NVMe controller"), "{:?}", drive.unseen);
    assert!(drive.controller.is_none() && drive.formats.is_none() && drive.health.is_none());
}

#[test]
fn queues_that_cannot_be_polled_and_peer_memory_are_seen() {
    let fake = host();
    fake.put(&format!("{DISK}/queue/io_poll"), "0\n");
    fake.put(&format!("{PCI}/nvme/nvme0/cmb"), "");
    fake.put(&format!("{PCI}/p2pmem/size"), "1048576\n");
    let drive = only(&fake);
    assert_eq!(drive.links[0].poll_queues, Some(0));
    assert_eq!(drive.links[0].memory_buffer_bytes, Some(1 << 20));
}

#[test]
fn a_controller_that_is_not_live_is_not_asked() {
    let fake = host();
    fake.put(&format!("{PCI}/nvme/nvme0/state"), "resetting\n");
    let drive = only(&fake);
    assert_eq!(drive.unseen.len(), 1);
    assert!(drive.unseen[0].why.contains("nvme0 is resetting"), "{:?}", drive.unseen);
}

#[test]
fn what_sysfs_garbles_is_named_and_the_rest_is_there() {
    let fake = host();
    fake.put(&format!("{DISK}/queue/fua"), "maybe\n");
    fake.put(&format!("{PCI}/nvme/nvme0/numa_node"), "here\n");
    let drive = only(&fake);
    let of = |what: &str| drive.unseen.iter().find(|unseen| unseen.what == what);
    assert!(of("queue").unwrap().why.contains("queue/fua: `maybe`"));
    assert!(of("link").unwrap().why.contains("numa_node: `here`"));
    assert_eq!((drive.size_bytes, drive.queue, drive.links.len()), (4096, None, 0));
}
