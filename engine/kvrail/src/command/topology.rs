//! `kvrail topology`.

use std::path::PathBuf;

use clap::Args;
use kvrail_memory::Root;
use kvrail_topology::{Map, PATH_KINDS, Pair, PathKind, svg, text, tree};
use serde::Serialize;

use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail topology
  kvrail topology --svg machine.svg
  kvrail topology --format json";

/// Arguments of `kvrail topology`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopologyArgs {
    /// Also draw a picture into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Serialize)]
struct TopologyReport {
    #[serde(flatten)]
    map: Map,
    pairs: Vec<Pair>,
    warnings: Vec<String>,
}

/// Shows the tree, what lies between each pair, and what is wrong with it.
///
/// # Errors
/// sysfs cannot be read, or the picture not be written.
pub(crate) fn run(args: &TopologyArgs, context: &Context) -> Result<(), Failure> {
    let map = Map::read(&Root::default())
        .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    if let Some(path) = &args.svg {
        std::fs::write(path, svg(&map)).map_err(|why| {
            let words = format!("--svg {}: {why}", path.display());
            Failure::new(Exit::Failed, words).with_remedy("name a file that can be written")
        })?;
    }
    let (pairs, warnings) = (map.pairs(), map.warnings());
    if context.format == Format::Json {
        return print_json(&TopologyReport { map, pairs, warnings });
    }
    print_text(&text(&tree(&map)))?;
    if !pairs.is_empty() {
        print_text("")?;
        print_table(&matrix(&map))?;
        print_text(&legend(&pairs))?;
    }
    if !warnings.is_empty() {
        print_text(&format!("\nwarning: {}", warnings.join("\nwarning: ")))?;
    }
    Ok(())
}

fn matrix(map: &Map) -> comfy_table::Table {
    let names: Vec<&str> = map.devices.iter().map(|device| device.name.as_str()).collect();
    let mut rows = table(&[&["PATH"], names.as_slice()].concat());
    for a in &map.devices {
        let cells = map.devices.iter().map(|b| match map.path(a, b) {
            PathKind::Same if a.name == b.name => "-",
            path => path.name(),
        });
        rows.add_row(std::iter::once(a.name.as_str()).chain(cells));
    }
    rows
}

/// The legend of the words in use.
fn legend(pairs: &[Pair]) -> String {
    let used = PATH_KINDS.iter().filter(|kind| pairs.iter().any(|pair| pair.path == **kind));
    let lines = used.map(|kind| format!("  {:<9} {}", kind.name(), kind.words()));
    lines.collect::<Vec<_>>().join("\n")
}
