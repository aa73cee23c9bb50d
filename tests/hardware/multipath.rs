//! The machine's drivers with native multipath: the suite's other tests run without.

use crate::machine::{self, tool};
use crate::rig::eventually;

/// Multipath is on until this is dropped.
pub(crate) struct Multipath;

impl Multipath {
    pub(crate) fn on() -> Self {
        reload("Y");
        Self
    }
}

impl Drop for Multipath {
    fn drop(&mut self) {
        reload("N");
    }
}

fn reload(multipath: &str) {
    // The drivers that are loaded; the target uses the core too.
    tool(
        "for m in nvme-loop nvmet-rdma nvmet-tcp nvmet nvme-rdma nvme-tcp nvme nvme-fabrics; do \
         modprobe -rq $m || :; done",
    );
    tool(&format!("modprobe -r nvme-core && modprobe nvme_core multipath={multipath}"));
    tool("modprobe nvme poll_queues=2");
    eventually("the machine's own drives are back", || {
        ["kvr-main", "kvr-pull", "kvr-fault", "kvr-slow", "kvr-format"]
            .iter()
            .all(|serial| machine::find(serial, 1).is_some())
    });
}
