//! `kvrail volume inspect`.

use std::path::PathBuf;

use clap::Args;
use kvrail_nvme::{BadSelector, Selector};
use kvrail_volume::{Content, Inspection, VolumeName, inspect};

use crate::command::describe;
use crate::members::{locate, paths};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, table};

const EXAMPLES: &str = "\
Examples:
  kvrail volume inspect /dev/nvme1n1 serial:S6CKNE0T
  kvrail volume inspect /data/*.img --format json
  kvrail volume inspect kv0                 the members configured for kv0";

/// Arguments of `kvrail volume inspect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Files or devices (as for `create`), or names of configured volumes
    #[arg(value_name = "MEMBER|NAME", required = true)]
    what: Vec<String>,
}

/// Reads and shows; claims nothing.
pub(super) fn run(args: &InspectArgs, context: &Context) -> Result<(), Failure> {
    let mut paths = Vec::new();
    for word in &args.what {
        paths.extend(resolve(word, context)?);
    }
    let seen: Vec<Inspection> = paths.iter().map(|path| inspect(path)).collect::<Result<_, _>>()?;
    if context.format == Format::Json {
        return print_json(&seen);
    }
    for one in &seen {
        print_table(&rows(one))?;
    }
    Ok(())
}

/// A name that is no path, has a slash or exists is a member; everything else is a volume of the
/// configuration.
fn resolve(word: &str, context: &Context) -> Result<Vec<PathBuf>, Failure> {
    let selector: Selector =
        word.parse().map_err(|error: BadSelector| Failure::new(Exit::Usage, error.to_string()))?;
    if selector.path().is_none_or(|path| word.contains('/') || path.exists()) {
        return Ok(vec![locate(&selector)?.path]);
    }
    let name: Option<VolumeName> = word.parse().ok();
    let config = context.config()?.config;
    let volume = config.volume.into_iter().find(|volume| Some(&volume.name) == name.as_ref());
    let volume = volume.ok_or_else(|| {
        let words = format!("{word}: neither a file here nor a configured volume");
        Failure::new(Exit::Usage, words).with_remedy("check the path, or the configuration")
    })?;
    paths(&volume.members)
}

fn rows(seen: &Inspection) -> comfy_table::Table {
    let mut table = table(&[]);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("path", seen.path.display().to_string());
    let kind = serde_json::to_value(seen.kind).ok();
    let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("?").to_owned();
    row("kind", kind);
    row("size", format!("{} ({} bytes)", human_bytes(seen.bytes), seen.bytes));
    row("content", describe::content(&seen.content));
    if !seen.partitions.is_empty() {
        row("partitions", seen.partitions.join(", "));
    }
    row("used by", describe::holders(seen));
    let label = match &seen.content {
        Content::Ours(label) => Some(label),
        Content::Damaged(damage) => damage.surviving.as_deref(),
        _ => None,
    };
    for (name, value) in label.map(describe::label).unwrap_or_default() {
        row(name, value);
    }
    table
}
