//! What a program that starts the benchmark tells apart. Everything else that goes wrong is words.

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
