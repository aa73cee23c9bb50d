//! Software RDMA on an interface without a peer; `lo` takes no RDMA connection.

use std::fs;

use crate::machine::tool;
use crate::rig::eventually;

/// Address of the machine on that interface.
pub(crate) const ADDRESS: &str = "192.0.2.1";

/// A second one, for a second path.
pub(crate) const OTHER: &str = "192.0.2.2";

/// Its GID of IPv4 form.
const GID: &str = "0000:0000:0000:0000:0000:ffff:c000:0202";

/// The interface with its RDMA device; removed on drop.
pub(crate) struct Network;

impl Network {
    pub(crate) fn up() -> Self {
        tool("modprobe -a rdma_rxe ib_uverbs nvmet-rdma nvmet-tcp nvme-loop nvme-rdma nvme-tcp");
        tool("ip link add dum0 type dummy && ip link set dum0 mtu 4200");
        tool(&format!("for a in {ADDRESS} {OTHER}; do ip address add $a/24 dev dum0; done"));
        tool("ip link set dum0 up && rdma link add rxe0 type rxe netdev dum0");
        // Binding and connecting fail until the device has the address.
        eventually("the RDMA device has its addresses", || {
            let gids = fs::read_dir("/sys/class/infiniband/rxe0/ports/1/gids").expect("rxe0");
            gids.flatten()
                .any(|gid| fs::read_to_string(gid.path()).is_ok_and(|text| text.trim() == GID))
        });
        Self
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        tool("rdma link del rxe0; ip link del dum0");
    }
}
