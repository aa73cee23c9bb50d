//! The command as a whole: run, print, write the files, judge.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::error::BenchError;
use crate::gpu;
use crate::harness::Harness;
use crate::options::BenchOptions;
use crate::report::{table, write_log};
use crate::run::run;
use crate::runner::BenchmarkResults;
use crate::serving;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// A table for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// Whether everything that was read was right and every operation ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RunVerdict {
    /// No error, no wrong byte.
    Clean,
    /// Every byte that was read is right, but operations failed; the report lists them.
    Failed,
    /// At least one wrong byte; the report lists it.
    WrongData,
}

/// Runs the benchmark, prints it on `out`, writes the requested files.
///
/// # Errors
/// As `run`; a `BenchError` for wrong options, files that cannot be written included, and when
/// `out` is closed. The files are written then all the same.
pub fn command(
    options: &BenchOptions,
    harness: &mut dyn Harness,
    format: OutputFormat,
    out: &mut dyn Write,
) -> Result<RunVerdict> {
    options.check_files().map_err(BenchError::Options)?;
    if options.trace.is_some() {
        return serve(options, harness, format, out);
    }
    let results = match options.gpu {
        Some(index) => gpu::run(options, index)?,
        None => run(options, harness)?,
    };
    let report = &results.report;
    let printed = match format {
        OutputFormat::Table => print(out, &table(report)),
        OutputFormat::Json => print(out, &format!("{}\n", report.json()?)),
    };
    write_files(options, &results)?;
    printed?;
    Ok(verdict(report.verify_failures(), report.errors()))
}

fn verdict(wrong: u64, errors: u64) -> RunVerdict {
    match (wrong, errors) {
        (0, 0) => RunVerdict::Clean,
        (0, _) => RunVerdict::Failed,
        _ => RunVerdict::WrongData,
    }
}

/// Plays a trace of requests.
fn serve(
    options: &BenchOptions,
    harness: &mut dyn Harness,
    format: OutputFormat,
    out: &mut dyn Write,
) -> Result<RunVerdict> {
    let served = serving::play(options, harness)?;
    let json = serde_json::to_string_pretty(&served)?;
    let printed = match format {
        OutputFormat::Table => print(out, &serving::table(&served)),
        OutputFormat::Json => print(out, &format!("{json}\n")),
    };
    if let Some(path) = &options.json {
        write_file(path, |out| Ok(writeln!(out, "{json}")?))?;
    }
    printed?;
    Ok(verdict(served.wrong(), served.errors()))
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), BenchError> {
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

fn write_files(options: &BenchOptions, results: &BenchmarkResults) -> Result<()> {
    if let Some(path) = &options.json {
        let json = results.report.json()?;
        write_file(path, |out| Ok(writeln!(out, "{json}")?))?;
    }
    if let Some(path) = &options.hdr_log {
        write_file(path, |out| write_log(out, results.begun, &results.log))?;
    }
    Ok(())
}

fn write_file(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let named = || format!("{}: cannot be written", path.display());
    let mut out = BufWriter::new(File::create(path).with_context(named)?);
    fill(&mut out).with_context(named)?;
    out.flush().with_context(named)
}
