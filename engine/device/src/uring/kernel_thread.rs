//! The kernel thread of a ring that has one.

/// The kernel thread of a ring that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelThread {
    /// The CPU it is bound to; any, if none.
    pub cpu: Option<u32>,
    /// How long it spins without work before it sleeps, in milliseconds.
    pub idle_ms: u32,
}

impl Default for KernelThread {
    /// Unbound; sleeps after 50 ms.
    fn default() -> Self {
        Self { cpu: None, idle_ms: 50 }
    }
}
