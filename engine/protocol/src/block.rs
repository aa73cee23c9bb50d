//! Blocks of a store as listings, feeds and explanations show them.

use serde::{Deserialize, Serialize};

/// Where a listing goes on: the end of the page before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListCursor {
    /// Place of the member in its store: members are listed one after the other.
    pub member: u16,
    /// Of the member's segment.
    pub epoch: u64,
    /// Of the segment's pages.
    pub page: u32,
    /// Records of the page that were seen.
    pub record: u16,
}

/// A block that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockInfo {
    /// Its key: 128 bits, as 32 hexadecimal digits, the most significant first.
    #[serde(with = "key_text")]
    pub key: u128,
    /// Its bytes.
    pub length: u32,
    /// How deep in its chain it is; 0 is the head of a prompt.
    pub depth: u16,
    /// Seconds since 1970 when it was put.
    pub put_unix_s: u32,
    /// CRC-64/NVME of its payload, folded with uid, key and length.
    pub check: u64,
    /// Place of its member in the store.
    pub member: u16,
    /// Its first byte on the member's area; 2^64 - 1: only the memory tier has it.
    pub offset: u64,
    /// Its metadata, as hexadecimal digits.
    #[serde(with = "hex")]
    pub metadata: Vec<u8>,
}

/// Some blocks of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPage {
    /// Blocks that were there when the page was made; often few, or none.
    pub blocks: Vec<BlockInfo>,
    /// Where the next page begins; nothing: this was the last one.
    pub next: Option<ListCursor>,
    /// Pages of records that could not be read: their blocks are there and are not listed.
    pub unreadable: u32,
    /// Events below this position are older than the page, all others newer.
    pub position: u64,
}

/// Why a block is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Its segment was reclaimed.
    Evicted,
    /// It was dropped. Its metadata is not known.
    Dropped,
    /// Its namespace was cleared or removed: one event for all its blocks, with key 0.
    Cleared,
}

/// A block that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Its position in the feed; they grow by one.
    pub position: u64,
    /// Uid of its namespace.
    pub uid: u64,
    /// Its key.
    #[serde(with = "key_text")]
    pub key: u128,
    /// Its bytes.
    pub length: u32,
    /// Why.
    pub kind: EventKind,
    /// Its metadata, as hexadecimal digits.
    #[serde(with = "hex")]
    pub metadata: Vec<u8>,
}

/// Some of what is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// In the order of their positions.
    pub events: Vec<EventInfo>,
    /// Events since the requested position that were lost: list again.
    pub lost: u64,
    /// The position of the next request.
    pub next: u64,
    /// Whether there are more already.
    pub more: bool,
}

/// The explanation of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyReport {
    /// Place of its member in the store, whether it is there or not.
    pub member: u16,
    /// The member's device.
    pub device: u16,
    /// Its state.
    pub state: KeyState,
    /// Clients can copy it from the member's memory tier. With `KeyState::Putting` it is written
    /// later.
    #[serde(default)]
    pub in_memory: bool,
    /// For how many seconds they can.
    #[serde(default)]
    pub memory_age_s: Option<u32>,
    /// The latest event about it among those the sidecar remembers, and the seconds since.
    pub event: Option<(EventInfo, u64)>,
    /// How long the sidecar remembers keys that went.
    #[serde(default)]
    pub remembered: Remembered,
}

/// How long a sidecar remembers keys that went: evicted, dropped or cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Every key of the store, in seconds.
    pub all_s: u64,
    /// The key of the report, in seconds: longer where it is one of the sample.
    pub this_s: u64,
    /// One key in this number is in the sample, which reaches back an hour; chosen by the key, so
    /// that a key is in it always or never.
    pub one_in: u32,
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// Its block can be got.
    There(KeyBlock),
    /// A put of it is in flight.
    Putting {
        /// Bytes of the block.
        length: u32,
        /// Bytes of it that are written.
        written: u32,
    },
    /// It is not there: never put, dropped, or evicted.
    Absent,
    /// It was dropped, or a put of it was given up, while recovery goes on.
    Dropped,
    /// It may yet turn up: recovery has not seen everything.
    Warming,
    /// Its segment is not trusted: durable drops are missing in or behind it.
    Distrusted,
}

/// A block in the index of its member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyBlock {
    /// Segment of the ring.
    pub segment: u32,
    /// The segment's epoch.
    pub epoch: u64,
    /// Seconds since 1970 when the segment was made ready: the block is no older than that.
    pub opened_unix_s: u32,
    /// Segments that are reclaimed before it.
    pub segments_ahead: u32,
    /// Its first byte on the member's area.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    /// Its check.
    pub check: u64,
    /// How much it is worth beside others that were used at the same time.
    pub worth: KeyWorth,
    /// Seconds since 1970 from which on it is worth nothing, where the sidecar has room to know.
    #[serde(default)]
    pub worth_until_unix_s: Option<u32>,
    /// How long ago it counts as used: the percentage of the store's bytes used since. What
    /// was demoted counts as used a turn (100) before the coldest blocks.
    #[serde(default)]
    pub age_percent: Option<u32>,
    /// The same for the coldest blocks of its pool in the mean: some of them go next.
    #[serde(default)]
    pub coldest_age_percent: Option<u32>,
    /// Milliseconds until its last hold ends.
    pub held_ms: Option<u64>,
    /// A reader reported it as corrupt, and it is not verified yet.
    pub suspect: bool,
    /// Clients can copy it from the member's memory tier.
    #[serde(default)]
    pub in_memory: bool,
    /// Reclaim's treatment of it now.
    pub next: KeyFate,
}

/// How much a block is worth beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyWorth {
    /// Less: it was put with that worth.
    Low,
    /// Same priority as a block without a hint.
    Normal,
    /// More: it is retained or pinned.
    High,
    /// Nothing: the time that it was to be kept for is over.
    Over,
}

/// Reclaim's treatment of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyFate {
    /// It moves, because it was hit or is held, as far as what may move suffices for all such.
    Moved,
    /// It goes.
    Evicted,
}

/// Keys as text.
pub(crate) mod key_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(key: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&hex::encode(key.to_be_bytes()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        let mut bytes = [0; 16];
        let wrong = |_| D::Error::custom("a key has 32 hexadecimal digits");
        hex::decode_to_slice(text, &mut bytes).map_err(wrong)?;
        Ok(u128::from_be_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockInfo, EventKind};

    #[test]
    fn keys_and_metadata_are_text() {
        let block = BlockInfo {
            key: 0xab,
            length: 1,
            depth: 2,
            put_unix_s: 3,
            check: 4,
            member: 0,
            offset: 5,
            metadata: vec![0, 255],
        };
        let text = serde_json::to_string(&block).unwrap();
        assert!(text.contains(r#""key":"000000000000000000000000000000ab""#), "{text}");
        assert!(text.contains(r#""metadata":"00ff""#), "{text}");
        assert_eq!(serde_json::from_str::<BlockInfo>(&text).unwrap(), block);
        for wrong in ["ab", "+00000000000000000000000000000ab"] {
            let wrong = text.replace("000000000000000000000000000000ab", wrong);
            assert!(serde_json::from_str::<BlockInfo>(&wrong).is_err(), "{wrong}");
        }
        assert_eq!(serde_json::to_string(&EventKind::Evicted).unwrap(), r#""evicted""#);
    }
}
