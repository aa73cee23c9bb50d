//! `kvrail target apply`.

use clap::Args;
use kvrail_memory::Root;
use kvrail_target::Claims;

use super::show::{Steps, StepsReport};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail target apply
  kvrail target apply --dry-run                the same as `kvrail target plan`
  kvrail target apply --config ./kvrail.toml --format json

A step that fails reverts the ones before it. After a crash, apply again or tear down: both read the
record of the steps. This command holds the exported drives only while it runs; `kvrail serve` holds
them while it serves.";

/// Arguments of `kvrail target apply`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ApplyArgs {
    /// Show the steps and do none
    #[arg(long)]
    dry_run: bool,
    /// List every step
    #[arg(short, long)]
    verbose: bool,
}

/// Makes it so.
pub(super) fn run(args: &ApplyArgs, context: &Context) -> Result<(), Failure> {
    let wanted = context.config()?.config.target;
    let wish = wanted.wish();
    if wish.is_empty() {
        return Err(super::nothing_wished());
    }
    let root = Root::default();
    if args.dry_run {
        let (plan, steps) = super::seen(&wanted, None)?.plan(&wish, &root)?;
        return StepsReport::new("planned", &plan, &steps).print(context, Steps::Listed);
    }
    let mut target = super::locked(&wanted)?;
    if let Some(step) = target.interrupted() {
        context.note(&format!("an earlier change was interrupted at: {step}; going on from there"));
    }
    let mut claims = Claims::default();
    let applied = target.bring(&wish, &root, &mut claims)?;
    let mut report = StepsReport::new("applied", &applied.plan, &applied.steps);
    report.notes.extend(claims.notes);
    report.print(context, if args.verbose { Steps::Listed } else { Steps::Counted })
}
