//! Places the pages of a region on a NUMA node.
#![expect(unsafe_code, reason = "mbind has no safe wrapper")]
// UNSAFETY: the kernel moves pages of a borrowed region; their bytes stay what they are.

use rustix::io::Errno;

use crate::error::MemoryError;
use crate::mapping::last_errno;
use crate::pinned::Pinned;
use crate::region::Region;
use crate::topology::Topology;

/// Nodes a mask can name here; Linux stops at `MAX_NUMNODES` = 1024.
const NODES_MAX: u32 = 1024;
/// Nodes per word of a mask.
const WORD_BITS: u32 = u64::BITS;

/// From linux/mempolicy.h; libc has the policies and not the flags.
const MPOL_MF_STRICT: libc::c_long = 1;
/// As above.
const MPOL_MF_MOVE: libc::c_long = 2;

/// The result of placing a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaPlacement {
    /// The machine has one node, or the kernel reports none; there is nothing to choose.
    OneNode,
    /// The pages are on this node, and pages faulted in later prefer it.
    OnNode(u32),
}

/// Moves the pages of a region to a node and makes the node its preference. For regions just
/// made: pages already registered with a device cannot move.
///
/// # Errors
/// `Place` names the node and the kernel's error, for instance that some pages could not move.
pub fn place(
    region: &Region,
    node: u32,
    topology: &Topology,
) -> Result<NumaPlacement, MemoryError> {
    if topology.nodes().len() <= 1 {
        return Ok(NumaPlacement::OneNode);
    }
    if !topology.nodes().contains_key(&node) {
        let nodes = topology.nodes().keys().map(u32::to_string).collect::<Vec<_>>().join(", ");
        return Err(MemoryError::NoNode { node, nodes });
    }
    bind(region, node).map_err(|errno| MemoryError::Place { node, errno })?;
    Ok(NumaPlacement::OnNode(node))
}

/// `mbind(2)`; neither rustix nor libc has a function for it.
fn bind(region: &Region, node: u32) -> Result<(), Errno> {
    let mut mask = [0_u64; NODES_MAX.div_ceil(WORD_BITS) as usize];
    let word = usize::try_from(node / WORD_BITS).map_err(|_| Errno::INVAL)?;
    *mask.get_mut(word).ok_or(Errno::INVAL)? = 1 << (node % WORD_BITS);
    // STRICT with MOVE makes the kernel return EIO when a page stays elsewhere.
    let flags = MPOL_MF_MOVE | MPOL_MF_STRICT;
    // The kernel uses one bit less than the argument (get_nodes in mm/mempolicy.c).
    let bits = NODES_MAX + 1;
    // SAFETY: the range is the region's own mapping, borrowed and so alive; the call changes where
    // its pages are and never what they hold. The mask outlives the call and has as many readable
    // bits as the argument states, less the one that the kernel drops.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            region.base().as_ptr(),
            region.bytes(),
            libc::c_long::from(libc::MPOL_PREFERRED),
            mask.as_ptr(),
            u64::from(bits),
            flags,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::bind;
    use crate::{PageSize, Region};
    use rustix::io::Errno;

    #[test]
    fn the_call_works_on_node_0_and_refuses_a_node_that_is_not() {
        let region = Region::create("numa", 1 << 16, PageSize::Base).unwrap();
        match bind(&region, 0) {
            Err(Errno::NOSYS) => println!("skipped: this kernel is built without NUMA"),
            placed => {
                assert_eq!(placed, Ok(()));
                assert_eq!(bind(&region, 1023), Err(Errno::INVAL));
                assert_eq!(bind(&region, 1024), Err(Errno::INVAL));
            }
        }
    }
}
