//! `kvrail store namespaces`.

use clap::Args;
use comfy_table::Table;
use kvrail_protocol::{NamespaceInfo, printable};
use serde::Serialize;

use super::target::TargetArgs;
use crate::command::status::{age, bytes, count};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store namespaces
  kvrail store namespaces --store cache --format json

The second table is about gets that reached the store or were served from memory, since the start
of the sidecar or the namespace's last clear, and about the memory tier: LATE blocks there are not
on a drive, UNWRITTEN are the bytes of those that left it so.";

/// Characters of an identity that a table shows.
const IDENTITY_CHARS: usize = 60;
/// Characters of a name that the table of gets shows.
const NAME_CHARS: usize = 18;

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
    for store in &all {
        print_text(&format!("\n{}:", store.store))?;
        print_table(&levels(&store.namespaces))?;
    }
    Ok(())
}

/// Where each namespace's gets found their blocks, and what it has in memory: 100 columns at most.
fn levels(all: &[NamespaceInfo]) -> Table {
    let heads = ["NAMESPACE", "FROM MEMORY", "FROM DRIVE", "MISSED", "IN MEMORY", "MEAN AGE"];
    let mut table = table(&[&heads[..], &["LATE", "UNWRITTEN"]].concat());
    table.add_rows(all.iter().map(|space| {
        let memory = space.memory;
        [
            shortened_name(&space.name),
            count(space.memory_hits),
            count(space.hits),
            count(space.misses),
            bytes(memory.map(|memory| memory.bytes)),
            age(memory.and_then(|memory| memory.mean_age_s)),
            count(memory.map(|memory| memory.late_blocks)),
            bytes(memory.map(|memory| memory.never_written_bytes)),
        ]
    }));
    table
}

/// A name without its middle: names of one model differ at their ends.
fn shortened_name(name: &str) -> String {
    let letters: Vec<char> = printable(name).chars().collect();
    if letters.len() <= NAME_CHARS {
        return letters.into_iter().collect();
    }
    let (first, last) = (NAME_CHARS / 2, NAME_CHARS - NAME_CHARS / 2 - 1);
    let parts = [&letters[..first], &['…'], &letters[letters.len() - last..]];
    parts.concat().into_iter().collect()
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
    use kvrail_protocol::{NamespaceInfo, NamespaceMemory};

    use super::{levels, shortened};

    #[test]
    fn gets_and_memory_fit_100_columns_and_an_earlier_sidecar_sends_none() {
        let memory = NamespaceMemory {
            blocks: 7,
            bytes: 999 << 30,
            mean_age_s: Some(59 * 60),
            late_blocks: 1_400_000,
            never_written_bytes: 999 << 40,
        };
        let space = NamespaceInfo {
            name: "vllm llama-3-70b fp8 a-long-name tp1".into(),
            hits: Some(14_000_000),
            memory_hits: Some(14_000_000),
            misses: Some(14_000_000),
            memory: Some(memory),
            ..NamespaceInfo::default()
        };
        let earlier = NamespaceInfo { name: "earlier".into(), ..NamespaceInfo::default() };
        let text = levels(&[space, earlier]).to_string();
        assert!(text.contains("vllm llam…name tp1"), "{text}");
        assert!(text.contains("59 minutes") && text.contains("999.00 TiB"), "{text}");
        assert!(text.lines().all(|line| line.trim_end().chars().count() <= 100), "{text}");
        let last: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["earlier", "-", "-", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn identities_are_cut_for_people() {
        assert_eq!(shortened("{\"a\":\u{202e}1}"), "{\"a\":\\u{202e}1}");
        assert_eq!(shortened(&"ä".repeat(61)).chars().count(), 63);
    }
}
