//! `kvrail store remove`.

use clap::Args;
use serde::Serialize;

use super::target::NamespaceArgs;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail store remove llama-70b                    asks for the name once more
  kvrail store remove llama-70b --yes llama-70b    from a script

Name, identity and blocks are forgotten. The name can be used again, for another identity too.";

/// Arguments of `kvrail store remove`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    of: NamespaceArgs,
}

#[derive(Serialize)]
struct Removed<'a> {
    store: &'a str,
    namespace: &'a str,
}

/// Removes.
pub(super) fn run(args: &RemoveArgs, context: &Context) -> Result<(), Failure> {
    let NamespaceArgs { name, target, .. } = &args.of;
    let session = target.attach(context)?;
    let store = session.store(target.store())?;
    let what = format!("namespace {name:?} of {} and its blocks are forgotten", store.name());
    args.of.confirm(&what)?;
    session.ask(|client| client.store(store.name())?.remove(name))?;
    if context.format == Format::Json {
        return print_json(&Removed { store: store.name(), namespace: name });
    }
    print_text(&format!("removed namespace {name} of {}", store.name()))
}
