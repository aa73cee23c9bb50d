//! Which core a thread runs on.

use anyhow::Result;
use kvrail_memory::{AllowedCpu, Topology, pin_current_thread};

/// Binds the calling thread to one core, and checks that it is.
///
/// # Errors
/// When the core does not exist or this process may not use it.
pub fn pin(core: u32) -> Result<()> {
    Ok(pin_current_thread(AllowedCpu::of(core, &Topology::host()?)?)?)
}

/// The cores this process may use, lowest first.
///
/// # Errors
/// When the machine does not describe itself.
pub fn usable_cores() -> Result<Vec<u32>> {
    Ok(Topology::host()?.allowed().iter().collect())
}

#[cfg(test)]
mod tests {
    use super::{pin, usable_cores};

    #[test]
    fn pinning_is_checked() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let cores = usable_cores().unwrap();
                pin(cores[0]).unwrap();
                let now = kvrail_memory::current_affinity().unwrap();
                assert_eq!(now.iter().collect::<Vec<_>>(), [cores[0]]);
                assert!(pin(100_000).unwrap_err().to_string().contains("100000"));
            });
        });
    }
}
