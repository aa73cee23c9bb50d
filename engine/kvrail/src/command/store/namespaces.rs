//! `kvrail store namespaces`.

use clap::Args;
use comfy_table::Table;
use kvrail_protocol::{NamespaceInfo, printable};
use serde::Serialize;

use super::target::TargetArgs;
use crate::command::status::{age, short};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store namespaces
  kvrail store namespaces --store cache --format json

The second table is about gets since the sidecar's start, and about the memory tier: LATE blocks
there are not on a drive, and UNWRITTEN ones left it and never were.";

/// Characters of an identity that a table shows.
const IDENTITY_CHARS: usize = 60;

/// Arguments of `kvrail store namespaces`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NamespacesArgs {
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
struct NamespaceListing {
    store: String,
    namespaces: Vec<NamespaceInfo>,
}

/// Lists.
pub(super) fn run(args: &NamespacesArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let mut all = Vec::new();
    for store in session.stores(args.target.store())? {
        let namespaces = session.ask(|client| client.store(store.name())?.namespaces())?;
        all.push(NamespaceListing { store: store.name().to_owned(), namespaces });
    }
    if context.format == Format::Json {
        return print_json(&all);
    }
    if all.iter().all(|store| store.namespaces.is_empty()) {
        return print_text("no namespaces");
    }
    let mut table = table(&["STORE", "NAMESPACE", "BLOCKS", "BYTES", "IDENTITY"]);
    for (store, space) in
        all.iter().flat_map(|store| store.namespaces.iter().map(move |s| (&store.store, s)))
    {
        table.add_row([
            store.clone(),
            printable(&space.name),
            space.blocks.to_string(),
            human_bytes(space.bytes),
            shortened(&space.identity),
        ]);
    }
    print_table(&table)?;
    print_text("")?;
    print_table(&levels(&all))
}

/// Where each namespace's gets found their blocks, and what it has in memory.
fn levels(all: &[NamespaceListing]) -> Table {
    let heads = ["STORE", "NAMESPACE", "FROM MEMORY", "FROM DRIVE", "MISSED", "IN MEMORY"];
    let mut table = table(&[&heads[..], &["MEAN AGE", "LATE", "UNWRITTEN"]].concat());
    for store in all {
        table.add_rows(store.namespaces.iter().map(|space| {
            [
                short(store.store.clone()),
                short(printable(&space.name)),
                space.memory_hits.to_string(),
                space.hits.to_string(),
                space.misses.to_string(),
                human_bytes(space.memory.bytes),
                age(space.memory.mean_age_s),
                space.memory.late_blocks.to_string(),
                human_bytes(space.memory.never_written_bytes),
            ]
        }));
    }
    table
}

/// An identity as far as a line has room; all of it is in the JSON.
fn shortened(identity: &str) -> String {
    let plain = printable(identity);
    match plain.char_indices().nth(IDENTITY_CHARS) {
        Some((at, _)) => format!("{}...", &plain[..at]),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn identities_are_cut_for_people() {
        assert_eq!(shortened("{\"a\":\u{202e}1}"), "{\"a\":\\u{202e}1}");
        assert_eq!(shortened(&"ä".repeat(61)).chars().count(), 63);
    }
}
