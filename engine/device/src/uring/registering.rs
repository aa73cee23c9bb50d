//! Which regions are registered with a ring.

/// Which regions a device registers with its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registering {
    /// All that this process may keep pinned.
    #[default]
    AsAllowed,
    /// None: what a process does that may pin nothing, wherever it runs.
    Never,
}
