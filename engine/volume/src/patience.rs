//! Waiting for what dead processes still hold.

use std::time::{Duration, Instant};

use crate::error::Reason;
use crate::identity::FileIdentity;
use crate::kernel::Kernel;

/// How long the kernel may take to let go of what a dead process had: its requests at the device
/// end first, which takes milliseconds on a healthy one.
const LAST_BREATH: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(5) };

/// Time of further tries where no holder is visible: a device that a dead process had shows no
/// holder, and neither does one that is permanently held in another namespace.
const UNSEEN: Duration = Duration::from_secs(1);

/// Time between two looks.
const LAST_LOOK: Duration = Duration::from_millis(5);

/// Tries again while only ended processes hold the member, and then names the holders: the kernel
/// takes the io_uring rings of a dead process apart after its end, and its locks and exclusive
/// opens live until then. Without this, a sidecar that is restarted at once would be refused.
pub(crate) fn outlive_the_dead<T>(
    kernel: &Kernel,
    identity: FileIdentity,
    mut attempt: impl FnMut() -> Result<T, Reason>,
) -> Result<T, Reason> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(Reason::Busy { .. }) => {}
            other => return other,
        }
        let holders = kernel.holders(identity);
        let patience = if holders.is_empty() { LAST_BREATH.min(UNSEEN) } else { LAST_BREATH };
        if !kernel.have_ended(&holders) || start.elapsed() >= patience {
            return Err(Reason::Busy { holders });
        }
        std::thread::sleep(LAST_LOOK);
    }
}

/// Tries again for a moment while the only obstacles are loop devices that are deleted at their
/// last close: a detached one goes a little later if it is being examined.
pub(crate) fn outlive_loops(
    kernel: &Kernel,
    mut attempt: impl FnMut() -> Result<(), Reason>,
) -> Result<(), Reason> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(Reason::Busy { holders })
                if kernel.are_leaving(&holders) && start.elapsed() < UNSEEN =>
            {
                std::thread::sleep(LAST_LOOK);
            }
            other => return other,
        }
    }
}
