//! Words for what members hold.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::HumanDuration;
use kvrail_units::Size;
use kvrail_volume::{Content, Inspection, Label, Purpose};

use kvrail_cli::output::human_bytes;

/// One line about what a member holds.
pub(crate) fn content(content: &Content) -> String {
    match content {
        Content::Blank => "blank".into(),
        Content::Ours(label) => format!(
            "member {} of {} of {} {}",
            label.member_index,
            label.member_count(),
            match label.purpose {
                Purpose::Raw => "volume",
                Purpose::Store(_) => "store",
            },
            label.volume_name
        ),
        Content::Damaged(damage) => format!("damaged kvrail label: {damage}"),
        Content::OtherVersion { found } => format!("kvrail label of format {found}"),
        Content::Foreign { signature } => signature.to_string(),
        Content::Unknown { offset } => format!("unknown data from byte {offset} on"),
    }
}

/// The fields of a label, as pairs of words.
pub(crate) fn label(label: &Label) -> Vec<(&'static str, String)> {
    let capacity = label.geometry(1).capacity();
    let mut rows = vec![
        ("volume uuid", label.volume_uuid.to_string()),
        ("member uuid", label.member_uuid().to_string()),
        ("capacity", format!("{} in all", human_bytes(capacity))),
        ("member bytes", Size::new(label.member_bytes).to_string()),
        ("made for", label.purpose.name().to_owned()),
        ("logical block", Size::new(label.logical_block.into()).to_string()),
        ("data offset", Size::new(label.data_offset).to_string()),
        ("made", age(label.created_unix_ns)),
    ];
    match label.purpose {
        Purpose::Raw => rows.push(("stripe", Size::new(label.stripe_bytes).to_string())),
        Purpose::Store(shape) => {
            rows.push(("segment", Size::new(shape.segment_bytes).to_string()));
            rows.push(("block mean", Size::new(shape.block_mean.into()).to_string()));
            rows.push(("largest block", Size::new(shape.block_bytes_max().into()).to_string()));
        }
    }
    rows
}

/// The user of a member, or `nobody`.
pub(crate) fn holders(seen: &Inspection) -> String {
    if seen.holders.is_empty() {
        return "nobody".into();
    }
    let words: Vec<String> = seen.holders.iter().map(ToString::to_string).collect();
    words.join("; ")
}

fn age(created_unix_ns: u64) -> String {
    let created = UNIX_EPOCH + Duration::from_nanos(created_unix_ns);
    match SystemTime::now().duration_since(created) {
        Ok(age) => format!("{} ago", HumanDuration(age)),
        Err(_) => "in the future; check the clock".into(),
    }
}
