//! The command as a whole: run, print, write the files, judge.

use std::io::Write;

use anyhow::Result;

use crate::error::BenchError;
use crate::gpu;
use crate::harness::Harness;
use crate::options::BenchOptions;
use crate::output::{Format, Verdict, print, write_file};
use crate::report::{html, table, write_log};
use crate::run::{Results, run};

/// Runs the benchmark, prints it on `out`, writes the files that were asked for.
///
/// # Errors
/// As `run`; a `BenchError` for wrong options, files that cannot be written included, and when
/// nobody takes the results. The files are written then all the same.
pub fn command(
    options: &BenchOptions,
    harness: &mut dyn Harness,
    format: Format,
    out: &mut dyn Write,
) -> Result<Verdict> {
    options.check_files().map_err(BenchError::Options)?;
    if let Some(index) = options.gpu {
        return gpu::run(options, index, format, out);
    }
    let results = run(options, harness)?;
    let report = &results.report;
    let printed = match format {
        Format::Table => print(out, &table(report)),
        Format::Json => print(out, &format!("{}\n", report.json()?)),
    };
    write_files(options, &results)?;
    printed?;
    Ok(match (report.verify_failures(), report.errors()) {
        (0, 0) => Verdict::Clean,
        (0, _) => Verdict::Failed,
        _ => Verdict::WrongData,
    })
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
