//! Content of a member: nothing, a label of ours, a damaged one, or foreign bytes.

use std::fmt;

use serde::Serialize;

use crate::label::{COPIES_AT, COPY_BYTES, LABEL_LENGTH, Label, LabelCopy, read_copy};
use crate::signature::{Signature, identify};

/// Content of a member's first MiB (and, for foreign formats, of its end).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Content {
    /// The first MiB is all zero, and neither it nor the end has a known signature. The bytes
    /// between are surveyed before a volume is made there.
    Blank,
    /// A whole label: both copies, and nothing between them.
    Ours(Label),
    /// A label of ours that something has written into.
    Damaged(Damage),
    /// A whole label of another format version.
    OtherVersion {
        /// The version in the label.
        found: u32,
    },
    /// Something known.
    Foreign {
        /// The format.
        signature: Signature,
    },
    /// Bytes of an unknown format.
    Unknown {
        /// The first byte that is not zero.
        offset: u64,
    },
}

/// How a label is damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The damage, in words.
    pub what: String,
    /// The label in the copy that is still whole.
    pub surviving: Option<Box<Label>>,
    /// The copy that alone is damaged, 0 or 1: it can be restored from the other one. None where
    /// something else was written too, or a stranger moved in.
    pub lost_copy: Option<usize>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.surviving {
            Some(label) => write!(f, " (the other copy is of volume {})", label.volume_name),
            None => Ok(()),
        }
    }
}

/// Judges the first bytes (`HEAD_BYTES`, fewer on a smaller device) and the last ones.
pub(crate) fn judge(head: &[u8], tail: &[u8], device_bytes: u64) -> Content {
    if let Some(area) = head.first_chunk::<LABEL_LENGTH>()
        && let Some(content) = judge_label(area, head, tail, device_bytes)
    {
        return content;
    }
    if let Some(signature) = identify(head, tail, device_bytes) {
        return Content::Foreign { signature };
    }
    // Behind the first MiB may lie data, a volume's own when it was wiped: `survey` looks there.
    let label_area = &head[..head.len().min(LABEL_LENGTH)];
    match first_nonzero(label_area, 0) {
        None => Content::Blank,
        Some(at) => Content::Unknown { offset: at as u64 },
    }
}

/// None where neither copy is there.
fn judge_label(
    area: &[u8; LABEL_LENGTH],
    head: &[u8],
    tail: &[u8],
    device_bytes: u64,
) -> Option<Content> {
    let copies = [read_copy(area, 0), read_copy(area, 1)];
    let damaged = |what: String, surviving| {
        Some(Content::Damaged(Damage { what, surviving, lost_copy: None }))
    };
    // Nothing but the one copy: neither bytes between them nor a foreign signature.
    let torn = |bad: &LabelCopy, index: usize, surviving, stranger: Option<Signature>| {
        let alone = stray(area).is_none() && identify(head, tail, device_bytes).is_none();
        let same_format = !matches!(bad, LabelCopy::OtherVersion(_));
        let lost_copy = (alone && same_format).then_some(index);
        let what = words(bad, index, stranger);
        Some(Content::Damaged(Damage { what, surviving: Some(surviving), lost_copy }))
    };
    match copies {
        [LabelCopy::Absent, LabelCopy::Absent] => None,
        [LabelCopy::Whole(first), LabelCopy::Whole(second)] if first == second => match stray(area)
        {
            None => Some(Content::Ours(*first)),
            Some(at) => {
                // The label's own bytes hide nothing of what came later.
                let by = identify(head, &[], device_bytes).map_or("something", Signature::name);
                damaged(format!("{by} was written over it at byte {at}"), Some(first))
            }
        },
        // Members were being added or retired: the copies are written one after the other.
        [LabelCopy::Whole(first), LabelCopy::Whole(second)]
            if first.changes != second.changes
                && first.with_members_of(&second) == *second
                && stray(area).is_none() =>
        {
            Some(Content::Ours(if first.changes > second.changes { *first } else { *second }))
        }
        [LabelCopy::Whole(first), LabelCopy::Whole(_)] => {
            damaged("its two copies disagree: it was being rewritten".into(), Some(first))
        }
        [LabelCopy::OtherVersion(found), LabelCopy::OtherVersion(second)] if found == second => {
            Some(Content::OtherVersion { found })
        }
        [LabelCopy::Whole(label), bad] => torn(&bad, 1, label, None),
        [bad, LabelCopy::Whole(label)] => torn(&bad, 0, label, identify(head, tail, device_bytes)),
        [bad, _] => damaged(words(&bad, 0, identify(head, tail, device_bytes)), None),
    }
}

fn words(copy: &LabelCopy, index: usize, stranger: Option<Signature>) -> String {
    let at = COPIES_AT[index];
    match (copy, stranger) {
        (LabelCopy::Torn, _) => format!("the copy at byte {at} is torn (checksum)"),
        (LabelCopy::Impossible, _) => format!("the copy at byte {at} has impossible values"),
        (LabelCopy::OtherVersion(found), _) => format!("the copy at byte {at} has format {found}"),
        (_, Some(stranger)) => format!("the copy at byte {at} is gone; {stranger} is there"),
        (_, None) => format!("the copy at byte {at} is gone"),
    }
}

/// The first byte outside the copies that is not zero.
fn stray(area: &[u8; LABEL_LENGTH]) -> Option<usize> {
    let [first, second] = COPIES_AT.map(|at| at + COPY_BYTES);
    first_nonzero(&area[first..COPIES_AT[1]], first)
        .or_else(|| first_nonzero(&area[second..], second))
}

fn first_nonzero(bytes: &[u8], base: usize) -> Option<usize> {
    bytes.iter().position(|&byte| byte != 0).map(|at| base + at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

    use super::{Content, judge};
    use crate::label::{COPIES_AT, LABEL_LENGTH, reseal, sample};
    use crate::signature::{HEAD_BYTES, TAIL_BYTES};

    const DEVICE_BYTES: u64 = 64 << 20;

    fn head() -> Vec<u8> {
        let mut head = sample().encode();
        // Data behind the label never matters.
        head.resize(HEAD_BYTES, 0xa5);
        head
    }

    fn see(head: &[u8]) -> Content {
        judge(head, &[0x5a; TAIL_BYTES], DEVICE_BYTES)
    }

    #[test]
    fn a_whole_label_is_ours_whatever_the_data_behind_it() {
        assert_eq!(see(&head()), Content::Ours(sample()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Any change of any bytes in the first MiB is seen, and never as another label.
        #[test]
        fn flips_are_always_detected(
            flips in proptest::collection::vec(
                (prop_position(), 1_u8..), 1..8),
        ) {
            let whole = head();
            let mut head = whole.clone();
            for (at, mask) in flips {
                head[at] ^= mask;
            }
            if head != whole {
                let seen = see(&head);
                prop_assert!(!matches!(seen, Content::Ours(_) | Content::Blank), "{:?}", seen);
            }
        }

        /// A write torn at any 512-byte border, old label or zeros behind it, is seen.
        #[test]
        fn torn_writes_are_detected(sector in 1_usize..LABEL_LENGTH / 512, old in any::<bool>()) {
            let mut before = sample();
            before.volume_uuid = uuid::Uuid::from_u128(99);
            let whole = head();
            let mut head = whole.clone();
            let from = sector * 512;
            if old {
                head[from..LABEL_LENGTH].copy_from_slice(&before.encode()[from..]);
            } else {
                head[from..LABEL_LENGTH].fill(0);
            }
            let seen = see(&head);
            let second_copy_new = from >= COPIES_AT[1] + 4096;
            match seen {
                Content::Ours(label) => prop_assert!(second_copy_new && label == sample()),
                Content::Damaged(_) => prop_assert!(!second_copy_new),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        /// Garbage never panics and is never ours.
        #[test]
        fn garbage_is_never_ours(seed in any::<[u8; 32]>(), length in 0_usize..HEAD_BYTES) {
            let head: Vec<u8> = seed.iter().copied().cycle().take(length).collect();
            let seen = judge(&head, &seed, length as u64);
            prop_assert!(!matches!(seen, Content::Ours(_) | Content::Damaged(_)), "{:?}", seen);
        }
    }

    /// Half of the positions in the copies, where a flip is hardest to see.
    fn prop_position() -> impl proptest::strategy::Strategy<Value = usize> {
        proptest::prop_oneof![0..4096_usize, COPIES_AT[1]..COPIES_AT[1] + 4096, 0..LABEL_LENGTH,]
    }

    #[test]
    fn a_torn_label_keeps_what_the_other_copy_says() {
        for at in COPIES_AT {
            let mut head = head();
            head[at + 200] ^= 1;
            let Content::Damaged(damage) = see(&head) else { panic!("not damaged") };
            assert_eq!(damage.surviving.as_deref(), Some(&sample()));
            assert!(damage.to_string().contains("torn"), "{damage}");
        }
    }

    #[test]
    fn a_stranger_over_the_first_copy_is_named() {
        let mut head = head();
        head[..4096].fill(0);
        head[0x438..0x43a].copy_from_slice(b"\x53\xef");
        let Content::Damaged(damage) = see(&head) else { panic!("not damaged") };
        assert!(damage.to_string().contains("ext2/3/4"), "{damage}");
        assert!(damage.to_string().contains("kv0"), "{damage}");
    }

    #[test]
    fn a_stranger_between_the_copies_is_named() {
        let mut head = head();
        head[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
        let Content::Damaged(damage) = see(&head) else { panic!("not damaged") };
        assert!(damage.to_string().contains("btrfs"), "{damage}");
    }

    #[test]
    fn another_version_is_named() {
        let mut head = head();
        for at in COPIES_AT {
            head[at + 16] = 4;
        }
        reseal(&mut head);
        assert_eq!(see(&head), Content::OtherVersion { found: 4 });
    }

    #[test]
    fn blank_unknown_and_foreign_are_told_apart() {
        let mut head = vec![0; HEAD_BYTES];
        assert_eq!(see(&head), Content::Blank);
        head[77_777] = 1;
        assert_eq!(see(&head), Content::Unknown { offset: 77_777 });
        head[..4].copy_from_slice(b"XFSB");
        assert!(matches!(see(&head), Content::Foreign { .. }));
        assert_eq!(judge(&[], &[], 0), Content::Blank);
        assert_eq!(judge(&[0, 1], &[0, 1], 2), Content::Unknown { offset: 1 });
    }
}
