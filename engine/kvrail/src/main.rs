//! `kvrail`: the sidecar and everything an operator does with it, in one binary.
//!
//! Owns the command line and the wiring of the rooms. Holds no data path: what
//! moves blocks lies in the rooms below.
#![forbid(unsafe_code)]

mod cli;
mod command;
mod embedded;
mod members;
mod serve;

use std::process::ExitCode;

use clap::Parser;
use kvrail_cli::context::{Context, PORTER};
use kvrail_cli::failure::{self, Failure};
use kvrail_cli::output::{Format, say_failure};
use kvrail_cli::stop::outlive_file_limit;
use kvrail_memory::CountingAllocator;

use crate::cli::Cli;

/// Pollers must not touch the heap after start; `kvrail status` and `kvrail bench` show whether
/// they do.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    // Before all else: this one has no signals to catch and nothing to configure.
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == PORTER) {
        return kvrail_session::porter(&words.next().unwrap_or_default().to_string_lossy());
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error),
    };
    let context = Context::new(cli.globals);
    match outlive_file_limit().and_then(|()| command::run(cli.command, &context)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, context.format),
    }
}

fn report(failure: &Failure, format: Format) -> ExitCode {
    // The reader of our standard output went away (`kvrail ... | head`): nothing is wrong.
    if failure.is_closed_pipe() {
        return ExitCode::SUCCESS;
    }
    say_failure(&failure.text(format));
    failure.exit().into()
}
