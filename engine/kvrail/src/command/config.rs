//! `kvrail config`: check, show, default.

use clap::{Args, Subcommand};
use kvrail_client::ConfigEntry;
use serde::Serialize;

use super::status::SidecarArgs;
use crate::serve::check_host;
use kvrail_cli::config::{Config, DEFAULT_FILE, Loaded, Origin};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail config default > /etc/kvrail/kvrail.toml    every key, explained and commented out
  kvrail config check                                before a restart or a SIGHUP
  kvrail config show --origin                        the values in force, and their origin";

const CHECK_EXAMPLES: &str = "\
Examples:
  kvrail config check
  kvrail config check --config ./kvrail.toml
  KVRAIL_DEVICE__MODE=iopoll kvrail config check --set limits.sessions=8";

const SHOW_EXAMPLES: &str = "\
Examples:
  kvrail config show
  kvrail config show --origin
  kvrail config show --running                       the values in force in the sidecar
  kvrail config show --format json | jq .limits";

const DEFAULT_EXAMPLES: &str = "\
Examples:
  kvrail config default > /etc/kvrail/kvrail.toml";

/// Commands on the configuration.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum ConfigCommand {
    /// Read all layers and check them, against this host's CPUs too; devices are not checked
    #[command(after_help = CHECK_EXAMPLES)]
    Check,
    /// Print the configuration in force
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Print the default configuration with every key explained and commented out
    #[command(after_help = DEFAULT_EXAMPLES)]
    Default,
}

/// Arguments of `kvrail config show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Show for each key the layer that set it
    #[arg(long)]
    origin: bool,
    /// Show the values in force in the running sidecar, with the origin of each; for root and the
    /// sidecar's user
    #[arg(long)]
    running: bool,
    #[command(flatten)]
    sidecar: SidecarArgs,
}

#[derive(Serialize)]
struct Checked {
    ok: bool,
    file: Option<String>,
    fragments: usize,
    volumes: usize,
}

#[derive(Serialize)]
struct ShownValue {
    key: String,
    value: toml::Value,
    origin: Origin,
}

/// Runs `kvrail config`.
pub(crate) fn run(command: ConfigCommand, context: &Context) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check => check(context),
        ConfigCommand::Show(args) => show(&args, context),
        ConfigCommand::Default => default(context),
    }
}

fn check(context: &Context) -> Result<(), Failure> {
    let loaded = context.config()?;
    check_host(&loaded.config)?;
    let file = context.config_file().map(|path| path.display().to_string());
    let volumes = loaded.config.volume.len();
    let fragments = context.fragments().len();
    if context.format == Format::Json {
        return print_json(&Checked { ok: true, file, fragments, volumes });
    }
    if volumes == 0 {
        context.note("`kvrail serve` needs a [[volume]]; there is none");
    }
    let mut file = file.unwrap_or_else(|| "no file, defaults".into());
    if fragments > 0 {
        file += &format!(" and {fragments} fragment(s)");
    }
    print_text(&format!("configuration ok ({file}): {volumes} volume(s)"))
}

fn show(args: &ShowArgs, context: &Context) -> Result<(), Failure> {
    if args.running {
        return show_running(args, context);
    }
    let loaded = context.config()?;
    match (context.format, args.origin) {
        (Format::Json, false) => print_json(&loaded.config),
        (Format::Human, false) => print_text(&as_toml(&loaded.config)?),
        (Format::Json, true) => print_json(&entries(&loaded)),
        (Format::Human, true) => print_entries(entries(&loaded)),
    }
}

/// What is in force may differ from what the next start would read.
fn show_running(args: &ShowArgs, context: &Context) -> Result<(), Failure> {
    let mut looker = args.sidecar.looker(context);
    let running = looker.ask(kvrail_client::Client::running_config)?;
    if context.format == Format::Json {
        return print_json(&running);
    }
    let pending = looker.report()?.config.pending();
    let entries: Result<Vec<_>, _> = running.into_iter().map(ShownValue::of_running).collect();
    let unknown = |error: serde_json::Error| {
        Failure::new(Exit::Failed, format!("the sidecar's configuration is not readable: {error}"))
            .with_remedy("use the kvrail of the sidecar's release")
    };
    print_entries(entries.map_err(unknown)?)?;
    pending.iter().for_each(|line| context.note(line));
    Ok(())
}

impl ShownValue {
    fn of_running(entry: ConfigEntry) -> Result<Self, serde_json::Error> {
        let ConfigEntry { key, value, origin } = entry;
        Ok(Self {
            key,
            value: serde_json::from_value(value)?,
            origin: serde_json::from_value(origin)?,
        })
    }
}

fn print_entries(entries: Vec<ShownValue>) -> Result<(), Failure> {
    let mut table = table(&["KEY", "VALUE", "ORIGIN"]);
    for entry in entries {
        table.add_row([entry.key, entry.value.to_string(), entry.origin.to_string()]);
    }
    print_table(&table)
}

fn default(context: &Context) -> Result<(), Failure> {
    match context.format {
        Format::Human => print_text(&commented(DEFAULT_FILE)),
        Format::Json => print_json(&Config::default()),
    }
}

/// The same with every table and key commented out. A table may stand only once in a file: so what
/// is pasted below this one is all that there is.
fn commented(file: &str) -> String {
    let line = |line: &str| match line.is_empty() || line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("#{line}\n"),
    };
    file.lines().map(line).collect()
}

fn entries(loaded: &Loaded) -> Vec<ShownValue> {
    let entry = |(key, value, origin)| ShownValue { key, value, origin };
    loaded.entries().into_iter().map(entry).collect()
}

fn as_toml(config: &Config) -> Result<String, Failure> {
    toml::to_string(config)
        .map_err(|error| Failure::new(Exit::Failed, format!("showing the configuration: {error}")))
}
