//! Errors of cuFile, each with its remedy.

use thiserror::Error;

use crate::status::OpStatus;

/// A failed call, or a library that is not usable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CuFileError {
    /// The library is not there.
    #[error(
        "cuFile is not installed: none of {tried} can be loaded ({reason}); install libcufile of \
         the CUDA toolkit, or use mechanism = \"staged\""
    )]
    Missing {
        /// Names tried.
        tried: String,
        /// The loader's last message.
        reason: String,
    },
    /// The library lacks a function.
    #[error(
        "{library} has no function {symbol}; it is older than CUDA 12.2, install a newer libcufile"
    )]
    Symbol {
        /// The file loaded.
        library: String,
        /// The missing function.
        symbol: &'static str,
    },
    /// A call failed.
    #[error("{call}: {status}{}", cuda_cause(*.cuda))]
    Call {
        /// The function.
        call: &'static str,
        /// The returned status.
        status: OpStatus,
        /// The CUDA driver's error behind it; 0 is none.
        cuda: i32,
    },
}

fn cuda_cause(cuda: i32) -> String {
    if cuda == 0 { String::new() } else { format!("; the CUDA driver's error is {cuda}") }
}

impl CuFileError {
    /// The status of a failed call.
    #[must_use]
    pub const fn status(&self) -> Option<OpStatus> {
        match self {
            Self::Call { status, .. } => Some(*status),
            Self::Missing { .. } | Self::Symbol { .. } => None,
        }
    }
}
