//! `kvrail volume create`.

use clap::{Args, ValueEnum};
use kvrail_nvme::Selector;
use kvrail_poller::SESSIONS_MAX;
use kvrail_store::Sizing;
use kvrail_units::Size;
use kvrail_volume::{
    DirectIo, Fill, Label, NewVolume, Overwrite, Purpose, StoreMember, StoreShape, Volume,
    VolumeLayout, VolumeName, create,
};
use serde::Serialize;

use super::existing::existing;
use crate::members::members;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_text};
use kvrail_cli::progress::writing;

const EXAMPLES: &str = "\
Examples:
  kvrail volume create kv0 /data/kv0.img --size 64GiB
  kvrail volume create kv0 /dev/nvme1n1 /dev/nvme2n1 --stripe 1098KiB
  kvrail volume create cache /dev/nvme1n1 /dev/nvme2n1 --kind store
  kvrail volume create kv0 pci:0000:3b:00.0 serial:S6CKNE0T/1 wwid:eui.0025385b71b0a1b2
  kvrail volume create kv0 --force          members as configured, foreign data overwritten
  kvrail volume create kv0 --if-blank       at each boot: makes it once, and never a second time";

/// Bytes of a stripe unless another is named.
const STRIPE_BYTES: u64 = 256 << 10;

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
    /// Content of the volume: raw ranges or keyed blocks
    #[arg(long, value_enum, default_value_t)]
    kind: KindArg,
    /// Raw: bytes on one member before the next one's turn; one KV block is a good choice
    /// [default: 256KiB]
    #[arg(long)]
    stripe: Option<Size>,
    /// Store: bytes that are reclaimed at once, a power of two from 64KiB to 16GiB; a block takes
    /// half of it at most [default: 256MiB, less where members are small]
    #[arg(long)]
    segment: Option<Size>,
    /// Store: mean length of its blocks; the index in memory is made for as many as fit
    /// [default: 64KiB]
    #[arg(long)]
    block_mean: Option<Size>,
    /// File that is written once from end to end, so that later writes allocate nothing
    #[arg(long, value_enum, default_value_t)]
    fill: FillArg,
    /// How members are opened
    #[arg(long, value_enum, default_value_t)]
    direct: DirectArg,
    /// Overwrite data that is there, of a wiped volume too; never what is in use, never another
    /// kvrail volume
    #[arg(long)]
    force: bool,
    /// Do nothing and succeed if one of the members has the label of this volume; else all of them
    /// must be there and blank
    #[arg(long, conflicts_with = "force")]
    if_blank: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// Places: a volume of bytes
    #[default]
    Raw,
    /// Keys: a keyed block store, one shard on each member
    Store,
}

impl KindArg {
    /// As labels have it.
    const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Store => "store",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Raw => Self::Store,
            Self::Store => Self::Raw,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum FillArg {
    /// Files are written, devices only labelled
    #[default]
    Files,
    /// Devices are written too
    Everything,
    /// Files are preallocated only: faster, and slower at the first write of each block
    Nothing,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(super) enum DirectArg {
    /// Members without O_DIRECT are refused
    #[default]
    Required,
    /// O_DIRECT where there is any
    Optional,
    /// Through the page cache
    Off,
}

#[derive(Serialize)]
struct CreatedVolume {
    name: String,
    uuid: String,
    capacity_bytes: u64,
    stripe_bytes: u64,
    logical_block: u32,
    members: Vec<String>,
    kind: &'static str,
    store: Option<MadeStore>,
    made: bool,
}

/// The size of a store, on all its members.
#[derive(Serialize)]
struct MadeStore {
    segment_bytes: u64,
    block_mean: u32,
    block_bytes_max: u32,
    segments: u64,
    blocks: u64,
    content_bytes: u64,
    index_bytes: u64,
    table_bytes: u64,
    pool_bytes: u64,
}

/// A volume that was there before.
#[derive(Serialize)]
struct ExistingVolume {
    name: String,
    uuid: String,
    kind: &'static str,
    made: bool,
}

/// Makes the volume.
pub(super) fn run(args: &CreateArgs, context: &Context) -> Result<(), Failure> {
    let layout = layout(args)?;
    if args.if_blank
        && let Some(label) = existing(&args.name, args.kind.name(), &args.members, context)?
    {
        return report_existing(&label, context);
    }
    let new = NewVolume {
        name: args.name.clone(),
        members: members(&args.name, &args.members, context)?,
        capacity_bytes: args.size.map(Size::bytes),
        layout,
        fill: args.fill.into(),
        overwrite: if args.force { Overwrite::Foreign } else { Overwrite::Nothing },
        direct: args.direct.into(),
    };
    let made = writing(context, |progress| create(&new, progress))?;
    report(&made?, context)
}

/// Which layout the arguments mean; those of the other kind are refused.
fn layout(args: &CreateArgs) -> Result<VolumeLayout, Failure> {
    let foreign = match args.kind {
        KindArg::Raw => [("--segment", args.segment), ("--block-mean", args.block_mean)],
        KindArg::Store => [("--stripe", args.stripe), ("", None)],
    };
    let (kind, other) = (args.kind.name(), args.kind.other().name());
    if let Some((key, Some(value))) = foreign.into_iter().find(|(_, value)| value.is_some()) {
        let what = format!("{key} {value}: a {kind} volume has none");
        let remedy = format!("leave it out, or make a volume of --kind {other}");
        return Err(Failure::new(Exit::Usage, what).with_remedy(remedy));
    }
    Ok(match args.kind {
        KindArg::Raw => {
            VolumeLayout::Raw { stripe_bytes: args.stripe.map_or(STRIPE_BYTES, Size::bytes) }
        }
        KindArg::Store => VolumeLayout::Store {
            segment_bytes: args.segment.map(Size::bytes),
            block_mean: args.block_mean.map(Size::bytes),
        },
    })
}

/// The memory of the store once it is served: members are alike.
fn sizing(volume: &Volume, shape: StoreShape) -> Option<Sizing> {
    let owners = u16::try_from(SESSIONS_MAX + 1).expect("sessions are few");
    let geometry = volume.geometry;
    let member = StoreMember::new(geometry.member_bytes, geometry.logical_block);
    Sizing::of(&shape.config(member, owners)).ok()
}

fn made_store(shape: StoreShape, one: &Sizing, members: u16) -> MadeStore {
    let all = |of_one: u64| of_one * u64::from(members);
    MadeStore {
        segment_bytes: shape.segment_bytes,
        block_mean: shape.block_mean,
        block_bytes_max: shape.block_bytes_max(),
        segments: all(one.segments.into()),
        blocks: all(one.blocks),
        content_bytes: all(one.capacity_bytes),
        index_bytes: all(one.index_bytes),
        table_bytes: all(one.table_bytes),
        pool_bytes: all(one.pool_bytes),
    }
}

fn report_existing(label: &Label, context: &Context) -> Result<(), Failure> {
    let existing = ExistingVolume {
        name: label.volume_name.to_string(),
        uuid: label.volume_uuid.to_string(),
        kind: label.purpose.name(),
        made: false,
    };
    if context.format == Format::Json {
        return print_json(&existing);
    }
    print_text(&format!("{} ({}) is there: nothing was made", existing.name, existing.uuid))
}

fn report(volume: &Volume, context: &Context) -> Result<(), Failure> {
    let geometry = volume.geometry;
    let shape = volume.purpose.store();
    let sizes = shape.and_then(|shape| Some((shape, sizing(volume, shape)?)));
    let members = volume.members.iter().map(|member| member.path().display().to_string());
    let made = CreatedVolume {
        name: volume.name.to_string(),
        uuid: volume.uuid.to_string(),
        capacity_bytes: geometry.capacity(),
        stripe_bytes: geometry.stripe_bytes,
        logical_block: geometry.logical_block,
        members: members.collect(),
        kind: volume.purpose.name(),
        store: sizes.map(|(shape, one)| made_store(shape, &one, geometry.members)),
        made: true,
    };
    if context.format == Format::Json {
        return print_json(&made);
    }
    let (kind, cut) = match volume.purpose {
        Purpose::Raw => ("volume", format!("stripe {}", human_bytes(made.stripe_bytes))),
        Purpose::Store(shape) => {
            ("store", format!("segments of {}", human_bytes(shape.segment_bytes)))
        }
    };
    let mut text = format!(
        "made {kind} {} ({}): {} on {} member(s), {cut}",
        made.name,
        made.uuid,
        human_bytes(made.capacity_bytes),
        made.members.len(),
    );
    if let Some((shape, one)) = sizes {
        let largest = human_bytes(shape.block_bytes_max().into());
        text += &format!("\n  each member: {one}; blocks up to {largest}");
    }
    print_text(&text)
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
