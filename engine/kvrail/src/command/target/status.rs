//! `kvrail target status`.

use clap::Args;
use kvrail_memory::Root;
use kvrail_target::Step;
use serde::Serialize;

use super::show::outcome;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail target status
  kvrail target status --format json | jq .as_planned

Exit status 0 means that it could be looked at, not that it is as planned.";

/// Arguments of `kvrail target status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {}

#[derive(Serialize)]
struct Status<'a> {
    as_planned: bool,
    interrupted: Option<&'a str>,
    made: Vec<&'a str>,
    subsystems: Vec<kvrail_target::Outcome>,
    missing: Vec<Step>,
    problem: Option<String>,
}

/// Looks and shows.
pub(super) fn run(_args: &StatusArgs, context: &Context) -> Result<(), Failure> {
    let config = context.config()?.config;
    let target = super::seen(&config, None)?;
    let planned = target.plan(&config.target.wish(), &Root::default());
    let (subsystems, missing, problem) = match planned {
        Ok((plan, steps)) => (plan.outcomes, steps, None),
        Err(error) => (Vec::new(), Vec::new(), Some(error.to_string())),
    };
    let status = Status {
        as_planned: problem.is_none() && missing.is_empty(),
        interrupted: target.interrupted(),
        made: target.owned(),
        subsystems,
        missing,
        problem,
    };
    if context.format == Format::Json {
        return print_json(&status);
    }
    print_text(&words(&status))
}

fn words(status: &Status<'_>) -> String {
    let mut lines: Vec<String> = status.subsystems.iter().map(outcome).collect();
    lines.push(format!("made by kvrail: {} object(s) and link(s)", status.made.len()));
    lines.extend(status.made.iter().map(|path| format!("  {path}")));
    lines.extend(status.interrupted.map(|step| format!("interrupted at: {step}")));
    lines.extend(status.problem.iter().map(|problem| format!("problem: {problem}")));
    if !status.missing.is_empty() {
        lines.push(format!("not as planned, {} step(s) missing:", status.missing.len()));
        lines.extend(status.missing.iter().map(|step| format!("  {step}")));
    } else if status.as_planned {
        lines.push("as planned".into());
    }
    lines.join("\n")
}
