//! The errors that a program which starts the benchmark distinguishes. All others are text.

use thiserror::Error;

/// Found in the error that `command` returns, where it is one of these.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The options cannot be followed; nothing was touched.
    #[error("{0:#}")]
    Options(anyhow::Error),
    /// The results could not be printed; the files were written.
    #[error("printing the results: {0}")]
    Output(#[from] std::io::Error),
}
