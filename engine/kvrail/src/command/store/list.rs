//! `kvrail store list`.

use clap::Args;
use comfy_table::Table;
use kvrail_client::ListedBlock;
use serde::Serialize;

use super::target::{TargetArgs, ago};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, table};

const EXAMPLES: &str = "\
Examples:
  kvrail store list llama-70b
  kvrail store list llama-70b --limit 20 --metadata
  kvrail store list llama-70b --limit 0 --format json      all of them

Blocks come member by member, while the store serves: first those that only memory has yet
(memory_tier.write_late), with `memory` for their place, then from the oldest segments on. One that
is written or moved meanwhile may come twice. Key and metadata are hexadecimal.";

/// Arguments of `kvrail store list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StoreListArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    target: TargetArgs,
    /// List at most this number of blocks; 0 lists all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// Show what was put with each block
    #[arg(long)]
    metadata: bool,
}

#[derive(Serialize)]
struct ShownListing<'a> {
    store: &'a str,
    namespace: &'a str,
    blocks: Vec<ListRow>,
    /// Whether there are more behind the limit.
    more: bool,
}

#[derive(Serialize)]
struct ListRow {
    key: String,
    length: u32,
    depth: u16,
    put_unix_s: u32,
    member: u16,
    /// None: only memory has it yet.
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
}

/// Lists.
pub(super) fn run(args: &StoreListArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let store = session.store(args.target.store())?;
    let namespace = session.namespace(store, &args.namespace)?;
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let mut listing = namespace.list();
    let mut blocks = Vec::new();
    while blocks.len() < limit
        && let Some(block) = listing.next()
    {
        let block = session.ask(|_| block)?;
        blocks.push(shown(block, args.metadata));
    }
    let more = blocks.len() == limit && listing.next().is_some();
    let shown = ShownListing { store: store.name(), namespace: &args.namespace, blocks, more };
    if context.format == Format::Json {
        return print_json(&shown);
    }
    print_table(&rows(&shown.blocks, args.metadata))?;
    if shown.more {
        eprintln!("there are more than {limit}: raise --limit, or 0 for all");
    }
    Ok(())
}

fn shown(block: ListedBlock, metadata: bool) -> ListRow {
    let ListedBlock { key, length, depth, put_unix_s, member, offset, .. } = block;
    let metadata = metadata.then(|| hex::encode(&block.metadata));
    ListRow { key: key.to_string(), length, depth, put_unix_s, member, offset, metadata }
}

fn rows(blocks: &[ListRow], metadata: bool) -> Table {
    let mut heads = vec!["KEY", "LENGTH", "DEPTH", "PUT", "MEMBER", "OFFSET"];
    if metadata {
        heads.push("METADATA");
    }
    let mut table = table(&heads);
    for it in blocks {
        let mut row = vec![
            it.key.clone(),
            human_bytes(it.length.into()),
            it.depth.to_string(),
            format!("{} ago", ago(it.put_unix_s)),
            it.member.to_string(),
            it.offset.map_or_else(|| "memory".to_owned(), |offset| offset.to_string()),
        ];
        row.extend(it.metadata.clone());
        table.add_row(row);
    }
    table
}
