//! The command as a whole: run, print, write the files, judge.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::gpu;
use crate::harness::Harness;
use crate::options::BenchOptions;
use crate::report::{html, table, write_log};
use crate::run::{Results, run};

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
    /// At least one; the report says which. The process should exit with a code other than 0.
    Failed,
}

/// Runs the benchmark, prints it on `out`, writes the files that were asked for.
///
/// # Errors
/// As `run`, and when something cannot be written. What was measured is printed before that.
pub fn command(
    options: &BenchOptions,
    harness: &mut dyn Harness,
    format: Format,
    out: &mut dyn Write,
) -> Result<Verdict> {
    if let Some(index) = options.gpu {
        return gpu::run(options, index, format, out);
    }
    let results = run(options, harness)?;
    let report = &results.report;
    match format {
        Format::Table => write!(out, "{}", table(report)),
        Format::Json => writeln!(out, "{}", report.json()?),
    }
    .context("printing the results")?;
    out.flush().context("printing the results")?;
    write_files(options, &results)?;
    let failed = report.errors() > 0 || report.verify_failures() > 0;
    Ok(if failed { Verdict::Failed } else { Verdict::Clean })
}

fn write_files(options: &BenchOptions, results: &Results) -> Result<()> {
    if let Some(path) = &options.json {
        let json = results.report.json()?;
        write_file(path, |out| Ok(writeln!(out, "{json}")?))?;
    }
    if let Some(path) = &options.html {
        let page = html(&results.report)?;
        write_file(path, |out| Ok(out.write_all(page.as_bytes())?))?;
    }
    if let Some(path) = &options.hdr_log {
        write_file(path, |out| write_log(out, results.begun, &results.log))?;
    }
    Ok(())
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
