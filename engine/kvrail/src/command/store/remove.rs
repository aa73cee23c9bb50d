//! `kvrail store remove`.

use clap::Args;
use serde::Serialize;

use super::target::{TargetArgs, confirm};
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
    /// The namespace
    name: String,
    #[command(flatten)]
    target: TargetArgs,
    /// The name once more, instead of a question
    #[arg(long, value_name = "NAME")]
    yes: Option<String>,
}

#[derive(Serialize)]
struct Removed<'a> {
    store: &'a str,
    namespace: &'a str,
}

/// Removes.
pub(super) fn run(args: &RemoveArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let store = session.store(args.target.store())?;
    let what =
        format!("namespace {:?} of {} and its blocks are forgotten", args.name, store.name());
    confirm(&args.name, args.yes.as_deref(), &what)?;
    session.ask(|client| client.store(store.name())?.remove(&args.name))?;
    if context.format == Format::Json {
        return print_json(&Removed { store: store.name(), namespace: &args.name });
    }
    print_text(&format!("removed namespace {} of {}", args.name, store.name()))
}
