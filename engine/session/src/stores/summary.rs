//! Namespaces as the members of a store have them, added up.

use std::collections::BTreeMap;

use kvrail_poller::SpaceRecord;
use kvrail_protocol::NamespaceInfo;
use kvrail_ring::TIER_PAGE_BYTES;

/// All namespaces that any member has, with the gets that memory has served of each.
pub(super) fn list<'a>(
    spaces: impl Iterator<Item = &'a SpaceRecord>,
    memory_hits: impl Fn(&str) -> u64,
) -> Vec<NamespaceInfo> {
    let mut all: BTreeMap<&str, (NamespaceInfo, u64)> = BTreeMap::new();
    for space in spaces {
        let (info, ages_s) = all.entry(&space.name).or_insert_with(|| {
            let identity = String::from_utf8_lossy(&space.document).into_owned();
            let (name, memory_hits) = (space.name.clone(), Some(memory_hits(&space.name)));
            (NamespaceInfo { name, identity, memory_hits, ..NamespaceInfo::default() }, 0)
        });
        info.uid = info.uid.max(space.uid);
        info.blocks += space.blocks;
        info.bytes += space.bytes;
        *info.hits.get_or_insert(0) += space.gets.hits;
        *info.misses.get_or_insert(0) += space.gets.misses;
        let (memory, tier) = (info.memory.get_or_insert_default(), space.tier);
        memory.blocks += tier.blocks;
        memory.bytes += tier.pages * u64::from(TIER_PAGE_BYTES);
        memory.late_blocks += tier.late_blocks;
        memory.never_written_bytes += tier.late_dropped_pages * u64::from(TIER_PAGE_BYTES);
        *ages_s += tier.ages_s;
        memory.mean_age_s = ages_s.checked_div(memory.blocks);
    }
    all.into_values().map(|(space, _)| space).collect()
}

#[cfg(test)]
mod tests {
    use kvrail_poller::SpaceRecord;
    use kvrail_store::{SpaceGets, TierShare};

    use super::list;

    fn record(name: &str, uid: u64, blocks: u64, tier: TierShare) -> SpaceRecord {
        let gets = SpaceGets { hits: 10 * blocks, misses: blocks };
        let (name, document) = (name.into(), b"{}".to_vec());
        SpaceRecord {
            name,
            document,
            uid,
            blocks,
            bytes: 7 * blocks,
            gets,
            tier,
            ..SpaceRecord::empty()
        }
    }

    /// A member that was replaced has a namespace later than others, and one may have no memory.
    #[test]
    fn what_members_have_of_a_namespace_is_added_up() {
        let tier =
            TierShare { blocks: 3, pages: 5, late_blocks: 2, late_dropped_pages: 4, ages_s: 20 };
        let more = TierShare { blocks: 1, pages: 1, ages_s: 5, ..TierShare::default() };
        let members = [
            vec![record("a", 4, 2, tier), record("b", 5, 1, TierShare::default())],
            vec![record("a", 9, 3, more)],
        ];
        let all = list(members.iter().flatten(), |name| u64::from(name == "a") * 6);
        let [a, b] = &all[..] else { panic!("{all:?}") };
        assert_eq!((a.name.as_str(), a.uid, a.blocks, a.bytes), ("a", 9, 5, 35));
        assert_eq!((a.hits, a.misses, a.memory_hits), (Some(50), Some(5), Some(6)));
        let memory = a.memory.as_ref().unwrap();
        assert_eq!((memory.blocks, memory.bytes, memory.late_blocks), (4, 6 * 4096, 2));
        assert_eq!((memory.never_written_bytes, memory.mean_age_s), (4 * 4096, Some(25 / 4)));
        assert_eq!((b.name.as_str(), b.hits, b.memory_hits), ("b", Some(10), Some(0)));
        let memory = b.memory.as_ref().unwrap();
        assert_eq!((memory.blocks, memory.bytes, memory.mean_age_s), (0, 0, None));
    }
}
