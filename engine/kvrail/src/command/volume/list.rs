//! `kvrail volume list`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;
use kvrail_nvme::Selector;
use kvrail_volume::{Content, Inspection, Label, Purpose, block_devices, inspect};
use serde::Serialize;

use crate::command::describe;
use crate::members::locate;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail volume list
  kvrail volume list /data/*.img            also volumes on these files
  kvrail volume list --format json";

/// Arguments of `kvrail volume list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VolumeListArgs {
    /// More files or devices to look at, as for `create`
    #[arg(value_name = "MEMBER")]
    members: Vec<Selector>,
}

/// A volume according to its labels.
#[derive(Debug, Serialize)]
struct FoundVolume {
    name: String,
    uuid: String,
    purpose: Purpose,
    capacity_bytes: u64,
    stripe_bytes: u64,
    member_count: u16,
    state: VolumeState,
    members: Vec<FoundMember>,
}

#[derive(Debug, Serialize)]
struct FoundMember {
    index: u16,
    path: PathBuf,
    used: bool,
    healthy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum VolumeState {
    /// All members are here and unused.
    Ready,
    /// Somebody uses a member: a sidecar, as a rule.
    InUse,
    /// Members are missing.
    Incomplete,
    /// A member's label is damaged.
    Damaged,
    /// Two members claim one index: a copy lies around.
    Duplicate,
}

/// A configured member that carries no label, or could not be read.
#[derive(Debug, Serialize)]
struct Odd {
    path: PathBuf,
    what: String,
}

#[derive(Debug, Serialize)]
struct VolumeListing {
    volumes: Vec<FoundVolume>,
    /// Configured or named, and no member of a volume.
    odd: Vec<Odd>,
    /// Block devices of this host that could not be looked at.
    unreadable: Vec<Odd>,
}

/// Reads every label there is; claims nothing.
pub(super) fn run(args: &VolumeListArgs, context: &Context) -> Result<(), Failure> {
    let config = context.config()?.config;
    let configured = config.volume.into_iter().flat_map(|volume| volume.members);
    let (mut named, mut absent) = (BTreeSet::new(), Vec::new());
    for member in configured.chain(args.members.iter().cloned()) {
        match locate(&member) {
            Ok(found) => {
                named.insert(found.path);
            }
            Err(failure) => {
                absent.push(Odd { path: member.to_string().into(), what: failure.log_text() })
            }
        }
    }
    let mut listing = survey(&named);
    listing.odd.extend(absent);
    match context.format {
        Format::Json => print_json(&listing),
        Format::Human => show(&listing, context),
    }
}

/// Looks at the named paths and all block devices, each device once.
fn survey(named: &BTreeSet<PathBuf>) -> VolumeListing {
    let mut seen_nodes = BTreeSet::new();
    let mut labels: BTreeMap<String, Vec<Inspection>> = BTreeMap::new();
    let (mut odd, mut unreadable) = (Vec::new(), Vec::new());
    let all = named.iter().cloned().map(|path| (path, true));
    for (path, is_named) in all.chain(block_devices().into_iter().map(|path| (path, false))) {
        let node = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        if !seen_nodes.insert(node) {
            continue;
        }
        match inspect(&path) {
            Ok(seen) => match label_of(&seen) {
                Some(uuid) => labels.entry(uuid).or_default().push(seen),
                None if is_named => {
                    odd.push(Odd { path, what: describe::content(&seen.content) });
                }
                None => {}
            },
            Err(error) => {
                let list = if is_named { &mut odd } else { &mut unreadable };
                list.push(Odd { path, what: error.reason.to_string() });
            }
        }
    }
    VolumeListing { volumes: labels.into_values().map(found).collect(), odd, unreadable }
}

fn whole_or_surviving(seen: &Inspection) -> Option<&Label> {
    match &seen.content {
        Content::Ours(label) => Some(label),
        Content::Damaged(damage) => damage.surviving.as_deref(),
        _ => None,
    }
}

fn label_of(seen: &Inspection) -> Option<String> {
    whole_or_surviving(seen).map(|label| label.volume_uuid.to_string())
}

/// Whether a volume's newest label names the member of another one: it was not retired.
fn is_named(newest: &Label, label: &Label) -> bool {
    newest.member_uuids.get(usize::from(label.member_index)) == Some(&label.member_uuid())
}

/// One volume out of the members that name it; there is at least one.
fn found(seen: Vec<Inspection>) -> FoundVolume {
    let labels = seen.iter().filter_map(whole_or_surviving);
    let label = labels.max_by_key(|label| label.changes).expect("a label led here");
    let mut members: Vec<FoundMember> = seen
        .iter()
        .filter_map(|one| {
            whole_or_surviving(one).filter(|own| is_named(label, own)).map(|label| FoundMember {
                index: label.member_index,
                path: one.path.clone(),
                used: !one.holders.is_empty(),
                healthy: matches!(one.content, Content::Ours(_)),
            })
        })
        .collect();
    members.sort_by_key(|member| member.index);
    FoundVolume {
        name: label.volume_name.to_string(),
        uuid: label.volume_uuid.to_string(),
        purpose: label.purpose,
        capacity_bytes: label.geometry(1).capacity(),
        stripe_bytes: label.stripe_bytes,
        member_count: label.member_count(),
        state: state(&members, label.member_count()),
        members,
    }
}

fn state(members: &[FoundMember], count: u16) -> VolumeState {
    let indices: BTreeSet<u16> = members.iter().map(|member| member.index).collect();
    if indices.len() < members.len() {
        VolumeState::Duplicate
    } else if members.iter().any(|member| !member.healthy) {
        VolumeState::Damaged
    } else if members.len() < usize::from(count) {
        VolumeState::Incomplete
    } else if members.iter().any(|member| member.used) {
        VolumeState::InUse
    } else {
        VolumeState::Ready
    }
}

fn show(listing: &VolumeListing, context: &Context) -> Result<(), Failure> {
    for odd in &listing.odd {
        context.note(&format!("{}: {}", odd.path.display(), odd.what));
    }
    if !listing.unreadable.is_empty() {
        let count = listing.unreadable.len();
        let first = &listing.unreadable[0];
        let (path, what) = (first.path.display(), &first.what);
        context.note(&format!("{count} block device(s) could not be read: {path}: {what}"));
    }
    if listing.volumes.is_empty() {
        return print_text("no volumes found");
    }
    let mut table = table(&["VOLUME", "KIND", "STATE", "CAPACITY", "MEMBERS", "UUID", "PATHS"]);
    for volume in &listing.volumes {
        let paths: Vec<String> =
            volume.members.iter().map(|member| member.path.display().to_string()).collect();
        table.add_row([
            volume.name.clone(),
            volume.purpose.name().into(),
            words(volume.state).into(),
            human_bytes(volume.capacity_bytes),
            format!("{}/{}", volume.members.len(), volume.member_count),
            volume.uuid.clone(),
            paths.join(" "),
        ]);
    }
    print_table(&table)
}

fn words(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Ready => "ready",
        VolumeState::InUse => "in use",
        VolumeState::Incomplete => "incomplete",
        VolumeState::Damaged => "damaged",
        VolumeState::Duplicate => "duplicate",
    }
}
