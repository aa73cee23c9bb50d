//! `kvrail devices --calibrate`.

use kvrail_device::{Calibration, Trial, TrialResult};
use kvrail_memory::{Root, Topology};
use kvrail_nvme::{NvmeHost, Selector};

use super::show::NONE;
use crate::members::paths;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

/// Times the modes on each device named, or on every namespace.
pub(super) fn run(named: &[Selector], context: &Context) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::Failed, error.to_string());
    let cores = Topology::host().map_err(|error| failed(&error))?.usable_cores();
    let devices = if named.is_empty() {
        let host = NvmeHost::read(&Root::default()).map_err(|error| failed(&error))?;
        host.namespaces.into_iter().filter_map(|namespace| namespace.block_node).collect()
    } else {
        paths(named)?
    };
    let mut found = Vec::with_capacity(devices.len());
    for path in devices {
        let path = path.display().to_string();
        let calibrated = kvrail_device::calibrate(&path, cores);
        found.push(calibrated.map_err(|error| failed(&error))?);
    }
    if context.format == Format::Json {
        return print_json(&found);
    }
    if found.is_empty() {
        return print_text(NONE);
    }
    found.iter().try_for_each(show)
}

/// Reads a second by mode and load, and below them what does not work and why.
fn show(found: &Calibration) -> Result<(), Failure> {
    print_text(&format!("{}: auto takes {}", found.path, found.chosen))?;
    let measured = found.trials.iter().filter_map(|trial| match &trial.result {
        TrialResult::Measured { rates, .. } => Some((trial.mode, rates)),
        TrialResult::NotTried { .. } | TrialResult::Refused { .. } => None,
    });
    let measured: Vec<_> = measured.collect();
    if let Some((_, rates)) = measured.first() {
        let loads = rates
            .iter()
            .map(|rate| format!("{} x {}", human_bytes(rate.length_bytes.into()), rate.depth));
        let header: Vec<String> = std::iter::once("READS/S".into()).chain(loads).collect();
        let mut rows = table(&header.iter().map(String::as_str).collect::<Vec<_>>());
        for (mode, rates) in &measured {
            let rates = rates.iter().map(|rate| format!("{:.0}", rate.reads_per_second));
            rows.add_row(std::iter::once(mode.to_string()).chain(rates));
        }
        print_table(&rows)?;
    }
    for Trial { mode, result } in &found.trials {
        match result {
            TrialResult::Measured { .. } => {}
            TrialResult::NotTried { reason } => print_text(&format!("{mode} not tried: {reason}"))?,
            TrialResult::Refused { reason } => print_text(&format!("{mode} refused: {reason}"))?,
        }
    }
    Ok(())
}
