//! `kvrail devices`: the NVMe namespaces of this host.

mod calibrate;
mod detail;
mod device;
mod overview;
mod show;

use clap::Args;
use kvrail_nvme::Selector;

use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail devices
  kvrail devices --verbose serial:S6CKNE0T
  kvrail devices --format json | jq '.[].health'
  kvrail devices --calibrate pci:0000:3b:00.0 /data/kv0.img

Name a device by an identity that is stable between boots, pci:ADDRESS[/NSID], serial:SERIAL[/NSID]
or wwid:ID (--verbose shows all of them), or by a path; in the configuration and in every command.
Root sees most; unreadable facts are listed. Calibration reads for a quarter of a second in each
ring mode that works; it never writes.";

/// Arguments of `kvrail devices`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevicesArgs {
    /// Namespaces to show [default: all]; files and other block devices too with --calibrate
    #[arg(value_name = "DEVICE")]
    devices: Vec<Selector>,
    /// Time the ring modes and show the one that `auto` takes
    #[arg(long, conflicts_with = "verbose")]
    calibrate: bool,
    /// Everything that is known
    #[arg(short, long)]
    verbose: bool,
}

/// Shows or calibrates.
///
/// # Errors
/// `Failure` names a device that cannot be found or calibrated.
pub(crate) fn run(args: &DevicesArgs, context: &Context) -> Result<(), Failure> {
    if args.calibrate {
        return calibrate::run(&args.devices, context);
    }
    show::run(&args.devices, args.verbose, context)
}
