//! A connection with polled queues serves a ring that polls.

use std::fs;

use super::nvme_cli::{connect, disconnect, namespace};
use super::target::{RDMA, TCP, Target, Wish};
use super::volume_on;
use crate::rig::Sidecar;

#[test]
fn polled_queues_serve_a_polled_ring() {
    let Some(target) = Target::ready() else { return };
    target.apply(&Wish::default());
    for way in [RDMA, TCP] {
        connect(way, &["--nr-poll-queues=1", "--queue-size=64"]).expect(0, &[]);
        let device = namespace();
        let name = device.file_name().expect("a node has a name").to_string_lossy();
        let polled = fs::read_to_string(format!("/sys/class/block/{name}/queue/io_poll"));
        assert_eq!(polled.expect("a queue").trim(), "1", "{way}");
        let place = volume_on(&device, 32 << 20);
        let mut command = place.serve();
        command.args(["--set", "device.mode=\"iopoll\"", "--set", "device.direct=\"required\""]);
        let sidecar = Sidecar::start_as(&place, command);
        assert_eq!(sidecar.status().devices[0].mode, "iopoll");
        sidecar.stop();
        disconnect();
    }
    target.undo();
}
