//! Capabilities: those that are not needed go, for good.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use crate::error::SandboxError;

/// Keeps these at most, and returns their names. No program that this process becomes or starts
/// gets others: not by its owner (the bounding set), not by its file (`no_new_privs`).
pub(crate) fn keep(needed: CapabilitySet) -> Result<Vec<String>, SandboxError> {
    let failed = |step| move |errno: Errno| SandboxError::Kernel { step, errno };
    set_no_new_privs(true).map_err(failed("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    let held = capabilities(None).map_err(failed("capget"))?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(needed) {
            // A kernel that does not know one does not have it.
            if capability_is_in_bounding_set(capability).unwrap_or(false) {
                remove_capability_from_bounding_set(capability)
                    .map_err(failed("prctl(PR_CAPBSET_DROP)"))?;
            }
        }
    }
    clear_ambient_capability_set().map_err(failed("prctl(PR_CAP_AMBIENT)"))?;
    let kept = held.permitted & needed;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("capset"))?;
    Ok(kept.iter_names().map(|(name, _)| format!("cap_{}", name.to_lowercase())).collect())
}
