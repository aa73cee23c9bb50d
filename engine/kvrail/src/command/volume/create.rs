//! `kvrail volume create`.

use std::ops::ControlFlow;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvrail_nvme::Selector;
use kvrail_units::Size;
use kvrail_volume::{DirectIo, Fill, NewVolume, Overwrite, Progress, Volume, VolumeName, create};
use serde::Serialize;

use crate::context::{Context, Verbosity};
use crate::failure::Failure;
use crate::members::members;
use crate::output::{Format, human_bytes, print_json, print_text};
use crate::stop::StopFlag;

const EXAMPLES: &str = "\
Examples:
  kvrail volume create kv0 /data/kv0.img --size 64GiB
  kvrail volume create kv0 /dev/nvme1n1 /dev/nvme2n1 --stripe 1098KiB
  kvrail volume create kv0 pci:0000:3b:00.0 serial:S6CKNE0T/1 wwid:eui.0025385b71b0a1b2
  kvrail volume create kv0 --force          members as configured, foreign data overwritten";

/// Arguments of `kvrail volume create`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CreateArgs {
    /// Name of the volume: 1 to 63 of A-Z a-z 0-9 . _ -
    name: VolumeName,
    /// Files and block devices: paths, pci:ADDRESS[/NSID], serial:SERIAL[/NSID], wwid:ID
    /// [default: the members configured for NAME]
    #[arg(value_name = "MEMBER")]
    members: Vec<Selector>,
    /// Usable size of the whole volume [default: all that its members have]
    #[arg(long)]
    size: Option<Size>,
    /// Bytes on one member before the next one's turn; one KV block is a good choice
    #[arg(long, default_value = "256KiB")]
    stripe: Size,
    /// What is written once from end to end, so that later writes allocate nothing
    #[arg(long, value_enum, default_value_t)]
    fill: FillArg,
    /// How members are opened
    #[arg(long, value_enum, default_value_t)]
    direct: DirectArg,
    /// Overwrite data that is there, of a wiped volume too; never what is in use, never another
    /// kvrail volume
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum FillArg {
    /// Files are written, devices only labelled
    #[default]
    Files,
    /// Devices are written too
    Everything,
    /// Files are preallocated only: faster, and slower at the first write of each block
    Nothing,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum DirectArg {
    /// Members without O_DIRECT are refused
    #[default]
    Required,
    /// O_DIRECT where there is any
    Optional,
    /// Through the page cache
    Off,
}

#[derive(Serialize)]
struct Made {
    name: String,
    uuid: String,
    capacity_bytes: u64,
    stripe_bytes: u64,
    logical_block: u32,
    members: Vec<String>,
}

/// Makes the volume.
pub(super) fn run(args: &CreateArgs, context: &Context) -> Result<(), Failure> {
    let new = NewVolume {
        name: args.name.clone(),
        members: members(&args.name, &args.members, context)?,
        capacity_bytes: args.size.map(Size::bytes),
        stripe_bytes: args.stripe.bytes(),
        fill: args.fill.into(),
        overwrite: if args.force { Overwrite::Foreign } else { Overwrite::Nothing },
        direct: args.direct.into(),
    };
    let stop = StopFlag::register()?;
    let bar = bar(context);
    let made = create(&new, &mut |progress: Progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    report(&made?, context)
}

/// Draws on standard error, where that is a terminal.
fn bar(context: &Context) -> ProgressBar {
    let hidden = context.verbosity == Verbosity::Quiet || context.format == Format::Json;
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let template = "writing {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} \
                    {eta} left";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(None, target).with_style(style)
}

fn report(volume: &Volume, context: &Context) -> Result<(), Failure> {
    let geometry = volume.geometry;
    let members = volume.members.iter().map(|member| member.path().display().to_string());
    let made = Made {
        name: volume.name.to_string(),
        uuid: volume.uuid.to_string(),
        capacity_bytes: geometry.capacity(),
        stripe_bytes: geometry.stripe_bytes,
        logical_block: geometry.logical_block,
        members: members.collect(),
    };
    if context.format == Format::Json {
        return print_json(&made);
    }
    print_text(&format!(
        "made volume {} ({}): {} on {} member(s), stripe {}",
        made.name,
        made.uuid,
        human_bytes(made.capacity_bytes),
        made.members.len(),
        Size::new(made.stripe_bytes),
    ))
}

impl From<FillArg> for Fill {
    fn from(fill: FillArg) -> Self {
        match fill {
            FillArg::Files => Self::Files,
            FillArg::Everything => Self::Everything,
            FillArg::Nothing => Self::Nothing,
        }
    }
}

impl From<DirectArg> for DirectIo {
    fn from(direct: DirectArg) -> Self {
        match direct {
            DirectArg::Required => Self::Required,
            DirectArg::Optional => Self::Optional,
            DirectArg::Off => Self::Off,
        }
    }
}
