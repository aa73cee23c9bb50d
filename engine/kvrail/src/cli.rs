//! The command line as a whole; each command's own arguments stand beside its body.

use clap::{Parser, Subcommand};

use crate::command;
use kvrail_cli::context::Globals;
use kvrail_cli::failure::EXIT_HELP;

const EXAMPLES: &str = "\
Examples:
  kvrail bench                                       measure this machine, a minute and a half
  kvrail volume create kv0 /data/kv0.img --size 64GiB
  kvrail serve --set 'volume=[{name=\"kv0\", members=[\"/data/kv0.img\"]}]'
  kvrail status
";

/// User-space storage dataplane for LLM KV-cache blocks.
#[derive(Debug, Parser)]
#[command(name = "kvrail", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = format!("{EXAMPLES}\n{EXIT_HELP}"))]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the sidecar: serve the configured volumes to local clients
    Serve(command::serve::ServeArgs),
    /// Measure: embedded volume, sidecar and clients, verified, against bare io_uring
    Bench(Box<command::bench::BenchArgs>),
    /// Make, look at and remove volumes
    #[command(subcommand)]
    Volume(command::volume::VolumeCommand),
    /// Look at the keyed stores of a running sidecar, and their namespaces
    #[command(subcommand)]
    Store(command::store::StoreCommand),
    /// Export drives to other hosts (NVMe over Fabrics): plan, apply, look, tear down
    #[command(subcommand)]
    Target(command::target::TargetCommand),
    /// Show the NVMe namespaces of this host, and which ring mode suits them
    Devices(command::devices::DevicesArgs),
    /// Show the engines of a Python, how they are configured, and try them
    Engines(command::engines::EnginesArgs),
    /// Look for what makes kvrail slow or impossible on this host, with remedies
    Check(command::check::CheckArgs),
    /// Draw drives, NICs, GPUs and CPUs, and what lies between them
    Topology(command::topology::TopologyArgs),
    /// Show what a running sidecar is doing
    Status(command::status::StatusArgs),
    /// Have a running sidecar read its configuration again
    Reload(command::reload::ReloadArgs),
    /// Show what a running sidecar does, live: pollers, devices, stores, sessions
    Top(command::top::TopArgs),
    /// Show which requests of a running sidecar are slow, and where their time goes
    Trace(command::trace::TraceArgs),
    /// Collect what others need to help: configuration, status, checks, log; without secrets
    SupportBundle(command::support_bundle::BundleArgs),
    /// Check, show and explain the configuration
    #[command(subcommand)]
    Config(command::config::ConfigCommand),
    /// Print a completion script for a shell
    Completions(command::completions::CompletionsArgs),
    /// Write a manual page for each command
    #[command(hide = true)]
    Man(command::man::ManArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Every command shows how it is used, the ones that only hold others too.
    #[test]
    fn every_command_has_examples() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{path} has no examples");
            let below = command.get_subcommands().filter(|below| below.get_name() != "help");
            below.for_each(|below| walk(below, &path));
        }
        walk(&Cli::command(), "");
    }

    /// Each command's JSON has a schema, or docs/json.md says why not.
    #[test]
    fn every_command_is_on_the_page_of_json() {
        const PAGE: &str = include_str!("../../../docs/json.md");
        fn walk(command: &clap::Command, path: &str, lost: &mut Vec<String>) {
            let below: Vec<_> =
                command.get_subcommands().filter(|below| below.get_name() != "help").collect();
            for one in &below {
                walk(one, format!("{path} {}", one.get_name()).trim(), lost);
            }
            let itself = below.is_empty() || !command.is_subcommand_required_set();
            if itself && !is_named(PAGE, path) {
                lost.push(path.to_owned());
            }
        }
        let mut lost = Vec::new();
        walk(&Cli::command(), "", &mut lost);
        assert!(lost.is_empty(), "docs/json.md lacks {lost:?}");
        assert!(!is_named(PAGE, "store stat"));
    }

    /// Whether a page has a command as code, alone or behind `kvrail`.
    fn is_named(page: &str, path: &str) -> bool {
        page.replace('\n', " ").split('`').skip(1).step_by(2).any(|code| {
            let code = code.strip_prefix("kvrail ").unwrap_or(code);
            code.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(" --"))
        })
    }
}
