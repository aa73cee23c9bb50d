//! One file per command: its arguments and its body. Words that several use lie in `describe`.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod config;
mod describe;
pub(crate) mod devices;
pub(crate) mod engines;
pub(crate) mod man;
pub(crate) mod reload;
pub(crate) mod serve;
mod silent;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod support_bundle;
pub(crate) mod target;
pub(crate) mod top;
pub(crate) mod topology;
pub(crate) mod trace;
pub(crate) mod volume;

use clap::CommandFactory;

use crate::cli::{Cli, Command};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

/// Runs a command to its end.
///
/// # Errors
/// `Failure` carries the words, the remedy and the exit status.
pub(crate) fn run(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(args, context),
        Command::Bench(args) => bench::run(*args, context),
        Command::Volume(command) => volume::run(command, context),
        Command::Store(command) => store::run(command, context),
        Command::Target(command) => target::run(command, context),
        Command::Devices(args) => devices::run(&args, context),
        Command::Engines(args) => engines::run(args, context),
        Command::Status(args) => status::run(&args, context),
        Command::Reload(args) => reload::run(&args, context),
        Command::Top(args) => top::run(&args, context),
        Command::Trace(args) => trace::run(&args, context),
        Command::SupportBundle(args) => support_bundle::run(&args, context),
        Command::Check(args) => check::run(&args, context),
        Command::Topology(args) => topology::run(&args, context),
        Command::Config(command) => config::run(command, context),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
    }
}
