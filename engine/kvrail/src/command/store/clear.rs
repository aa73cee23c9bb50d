//! `kvrail store clear`.

use clap::Args;
use serde::Serialize;

use super::target::NamespaceArgs;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail store clear llama-70b                    asks for the name once more
  kvrail store clear llama-70b --yes llama-70b    from a script

The blocks become unreachable at once, for all clients, by one write on each member. A client that
has the namespace open gets STALE and opens it again.";

/// Arguments of `kvrail store clear`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClearArgs {
    #[command(flatten)]
    of: NamespaceArgs,
}

#[derive(Serialize)]
struct Cleared<'a> {
    store: &'a str,
    namespace: &'a str,
    uid: u64,
}

/// Clears.
pub(super) fn run(args: &ClearArgs, context: &Context) -> Result<(), Failure> {
    let NamespaceArgs { name, target, .. } = &args.of;
    let session = target.attach(context)?;
    let store = session.store(target.store())?;
    let what = format!("all blocks of namespace {name:?} of {} become misses", store.name());
    args.of.confirm(&what)?;
    let uid = session.ask(|client| client.store(store.name())?.clear(name))?;
    if context.format == Format::Json {
        return print_json(&Cleared { store: store.name(), namespace: name, uid });
    }
    print_text(&format!("cleared namespace {name} of {}", store.name()))
}
