//! Why there is no sandbox.

use rustix::io::Errno;
use thiserror::Error;

/// Why a process cannot be put into its sandbox.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Strict, and the kernel lacks something.
    #[error("the sandbox would not be whole: {0}")]
    Lacks(String),
    /// Landlock holds for the calling thread only.
    #[error("{0} threads run already: landlock would not hold for all of them")]
    Threads(usize),
    /// The kernel refused a step that it should know.
    #[error("{step}: {errno}")]
    Kernel {
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A rule that cannot be.
    #[error("landlock: {0}")]
    Rule(#[from] landlock::RulesetError),
}
