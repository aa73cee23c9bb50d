//! `kvrail store`: stores of a running sidecar, their namespaces, and replays of traces.

mod clear;
mod erase;
mod explain;
mod list;
mod namespaces;
mod pools;
mod remove;
mod replay;
mod size;
mod status;
mod target;
mod verify;

use clap::Subcommand;

use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail volume create cache /data/cache.img --size 64GiB --kind store
  kvrail serve --set 'volume=[{name=\"cache\", members=[\"/data/cache.img\"]}]'
  kvrail store status
  kvrail store namespaces
  kvrail store list llama-70b --limit 20
  kvrail store verify --share 10%
  kvrail store clear llama-70b
  kvrail store replay trace.jsonl                     hits and writes before a drive is bought
  kvrail store size --layers 80 --kv-heads 8 --head-size 128 --sessions 200 --context 60000";

/// Commands on stores.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum StoreCommand {
    /// Show how full each member is, what it found, moved, wrote and declined
    Status(status::StoreStatusArgs),
    /// List the namespaces with their blocks and identities
    Namespaces(namespaces::NamespacesArgs),
    /// Show what each pool is kept and has, and what happened in it
    Pools(pools::PoolsArgs),
    /// List the blocks of a namespace: key, length, depth, age, place, metadata
    List(list::StoreListArgs),
    /// Explain a key: where its block is, what will evict it, or how it was lost
    Explain(explain::ExplainArgs),
    /// Read and check all blocks while serving, within a share of the drives
    Verify(verify::VerifyArgs),
    /// Make all blocks of a namespace unreachable, for all clients
    Clear(clear::ClearArgs),
    /// Forget a namespace and its blocks, for all clients
    Remove(remove::RemoveArgs),
    /// Make a store that is not served empty
    Erase(erase::EraseArgs),
    /// Run the store's own code over a trace of requests: hits and writes by size and policy
    Replay(replay::ReplayArgs),
    /// Compute the drives and the memory that a model's sessions or a trace take
    Size(size::SizeArgs),
}

/// Runs `kvrail store`.
pub(crate) fn run(command: StoreCommand, context: &Context) -> Result<(), Failure> {
    match command {
        StoreCommand::Status(args) => status::run(&args, context),
        StoreCommand::Namespaces(args) => namespaces::run(&args, context),
        StoreCommand::Pools(args) => pools::run(&args, context),
        StoreCommand::List(args) => list::run(&args, context),
        StoreCommand::Explain(args) => explain::run(&args, context),
        StoreCommand::Verify(args) => verify::run(&args, context),
        StoreCommand::Clear(args) => clear::run(&args, context),
        StoreCommand::Remove(args) => remove::run(&args, context),
        StoreCommand::Erase(args) => erase::run(&args, context),
        StoreCommand::Replay(args) => replay::run(&args, context),
        StoreCommand::Size(args) => size::run(&args, context),
    }
}
