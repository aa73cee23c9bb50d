//! How results are printed and written.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::error::BenchError;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A table for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// Whether everything that was read was right and every operation ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// No error, no wrong byte.
    Clean,
    /// Every byte that was read is right, but operations failed; the report says which.
    Failed,
    /// At least one wrong byte; the report says which.
    WrongData,
}

pub(crate) fn print(out: &mut dyn Write, text: &str) -> Result<(), BenchError> {
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

pub(crate) fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let named = || format!("{}: cannot be written", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(named)?);
    fill(&mut out).with_context(named)?;
    out.flush().with_context(named)
}
