//! `kvrail target status`.

use clap::Args;
use kvrail_memory::Root;
use kvrail_target::Step;
use serde::Serialize;

use super::show::outcome;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail target status
  kvrail target status >/dev/null || kvrail target apply
  kvrail target status --format json | jq .as_planned

Exit status: 0 when it is as planned, 8 when not; 1, 2 or 3 when there can be no plan, as of
`kvrail target plan`. The readable part is shown in any case.";

/// Arguments of `kvrail target status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TargetStatusArgs {}

#[derive(Serialize)]
struct TargetStatus<'a> {
    as_planned: bool,
    interrupted: Option<&'a str>,
    made: Vec<&'a str>,
    subsystems: Vec<kvrail_target::Outcome>,
    missing: Vec<Step>,
    problem: Option<String>,
}

/// Looks and shows.
///
/// # Errors
/// `Failure` after the report, when the target is not as planned.
pub(super) fn run(_args: &TargetStatusArgs, context: &Context) -> Result<(), Failure> {
    let wanted = context.config()?.config.target;
    let target = super::seen(&wanted, None)?;
    let planned = target.plan(&wanted.wish(), &Root::default());
    let (subsystems, missing, problem) = match planned {
        Ok((plan, steps)) => (plan.outcomes, steps, None),
        Err(error) => (Vec::new(), Vec::new(), Some(error)),
    };
    let status = TargetStatus {
        as_planned: problem.is_none() && missing.is_empty(),
        interrupted: target.interrupted(),
        made: target.owned(),
        subsystems,
        missing,
        problem: problem.as_ref().map(ToString::to_string),
    };
    match context.format {
        Format::Json => print_json(&status)?,
        Format::Human => print_text(&words(&status))?,
    }
    match problem {
        Some(error) => Err(error.into()),
        None if status.as_planned => Ok(()),
        None => {
            let words = format!("target: not as planned, {} step(s) missing", status.missing.len());
            let remedy = "kvrail target apply; `kvrail serve` does it by itself";
            Err(Failure::new(Exit::Differs, words).with_remedy(remedy))
        }
    }
}

fn words(status: &TargetStatus<'_>) -> String {
    let mut lines: Vec<String> = status.subsystems.iter().map(outcome).collect();
    lines.push(format!("made by kvrail: {} object(s) and link(s)", status.made.len()));
    lines.extend(status.made.iter().map(|path| format!("  {path}")));
    lines.extend(status.interrupted.map(|step| format!("interrupted at: {step}")));
    if !status.missing.is_empty() {
        lines.push("missing:".into());
        lines.extend(status.missing.iter().map(|step| format!("  {step}")));
    }
    if status.as_planned {
        lines.push("as planned".into());
    }
    lines.join("\n")
}
