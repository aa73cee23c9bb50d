//! Software RDMA on an interface without a peer; `lo` takes no RDMA connection.

use std::fs;
use std::process::Command;

use crate::rig::eventually;

/// Address of the machine on that interface.
pub(super) const ADDRESS: &str = "192.0.2.1";

/// A second one, for a second path.
pub(super) const OTHER: &str = "192.0.2.2";

/// Its GID of IPv4 form.
const GID: &str = "0000:0000:0000:0000:0000:ffff:c000:0202";

/// Runs a program and expects success.
pub(super) fn must(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let status = Command::new(words[0]).args(&words[1..]).status();
    assert!(status.expect("the program starts").success(), "{line}");
}

/// The interface with its RDMA device; gone with the value.
pub(super) struct Network;

impl Network {
    pub(super) fn up() -> Self {
        must("modprobe -a rdma_rxe ib_uverbs nvmet-rdma nvmet-tcp nvme-loop nvme-rdma nvme-tcp");
        must("ip link add dum0 type dummy");
        must(&format!("ip address add {ADDRESS}/24 dev dum0"));
        must(&format!("ip address add {OTHER}/24 dev dum0"));
        must("ip link set dum0 mtu 4200 up");
        must("rdma link add rxe0 type rxe netdev dum0");
        // Binding and connecting fail until the device knows the address.
        eventually("the RDMA device knows its addresses", || {
            let gids = fs::read_dir("/sys/class/infiniband/rxe0/ports/1/gids").expect("rxe0");
            gids.flatten().any(|gid| {
                fs::read_to_string(gid.path()).is_ok_and(|text| text.trim() == GID)
            })
        });
        Self
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for line in ["rdma link del rxe0", "ip link del dum0"] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let _ = Command::new(words[0]).args(&words[1..]).status();
        }
    }
}
