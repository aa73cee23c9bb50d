//! `kvrail completions`: scripts for shells.

use clap::{Args, Command};
use clap_complete::Shell;

use kvrail_cli::failure::Failure;
use kvrail_cli::output::print_text;

const EXAMPLES: &str = "\
Examples:
  kvrail completions bash > /etc/bash_completion.d/kvrail
  kvrail completions zsh > \"${fpath[1]}/_kvrail\"
  kvrail completions fish > ~/.config/fish/completions/kvrail.fish";

/// Arguments of `kvrail completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for the whole command line.
pub(crate) fn run(args: CompletionsArgs, mut whole: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "kvrail", &mut script);
    print_text(&String::from_utf8_lossy(&script))
}
