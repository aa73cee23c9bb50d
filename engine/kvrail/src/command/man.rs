//! `kvrail man`: a manual page for each command, from the command line's own definitions.

use std::path::{Path, PathBuf};

use clap::{Args, Command};

use kvrail_cli::failure::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  kvrail man /usr/local/share/man/man1";

/// Arguments of `kvrail man`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder that the pages go to; it is there
    folder: PathBuf,
}

/// Writes the pages.
///
/// # Errors
/// `Failure` with status 1 when a page cannot be written.
pub(crate) fn run(args: &ManArgs, whole: Command) -> Result<(), Failure> {
    let ManArgs { folder } = args;
    clap_mangen::generate_to(whole, folder).map_err(|error| {
        let what = format!("manual pages in {}: {error}", Path::new(folder).display());
        Failure::new(Exit::Failed, what).with_remedy("name a folder that is there and writable")
    })
}
