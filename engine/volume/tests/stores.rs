//! Volumes that are stores: made with them, distinguished from raw ones, refused when they are
//! damaged.

mod common;

use common::{MIB, assert_says, damage, directory, make, new_volume, open_any, poke, refusal};
use kvrail_store::{SUPER_AT, Super};
use kvrail_volume::{LABEL_BYTES, NewVolume, Purpose, StoreShape, Volume, VolumeLayout};

const STORE: VolumeLayout = VolumeLayout::Store { segment_bytes: None, block_mean: Some(64 << 10) };

fn new_store(members: &[std::path::PathBuf]) -> NewVolume {
    NewVolume { layout: STORE, capacity_bytes: Some(16 * MIB), ..new_volume(members) }
}

fn read(volume: &Volume) -> Result<Vec<Super>, kvrail_volume::VolumeError> {
    let members: Vec<_> = volume.members.iter().map(|member| &member.claim).collect();
    let shape = volume.purpose.store().expect("a store");
    kvrail_volume::supers(&members, (volume.uuid, &volume.geometry, volume.present), shape)
}

fn supers(volume: &Volume) -> Vec<Super> {
    read(volume).unwrap()
}

#[test]
fn a_store_is_made_on_every_member_and_says_so() {
    let directory = directory();
    let members = vec![directory.path().join("a"), directory.path().join("b")];
    let made = make(&new_store(&members)).unwrap();
    let shape = StoreShape { segment_bytes: 512 << 10, block_mean: 64 << 10 };
    assert_eq!(made.purpose, Purpose::Store(shape));
    drop(made);
    let opened = open_any(&members).unwrap();
    assert_eq!(opened.purpose, Purpose::Store(shape));
    let supers = supers(&opened);
    for (index, it) in (0..).zip(&supers) {
        assert_eq!((it.volume, it.member, it.members), (opened.uuid.as_u128(), index, 2));
        assert_eq!((it.generation, it.area_bytes), (1, opened.geometry.member_bytes));
    }
    assert_ne!(supers[0].instance, supers[1].instance);
    assert_ne!(supers[0].seed, supers[1].seed);
    let raw = directory.path().join("raw");
    assert_eq!(make(&new_volume(&[raw])).unwrap().purpose, Purpose::Raw);
}

#[test]
fn a_store_that_cannot_be_opened_is_named_with_its_member() {
    let directory = directory();
    let members = vec![directory.path().join("a"), directory.path().join("b")];
    make(&new_store(&members)).unwrap();
    let refused = || refusal(read(&open_any(&members).unwrap()));
    let at = |copy: usize| LABEL_BYTES + SUPER_AT[copy];
    // One copy is enough.
    damage(&members[1], at(0) + 30);
    assert_eq!(supers(&open_any(&members).unwrap()).len(), 2);
    damage(&members[1], at(1) + 30);
    assert_says(&refused(), &["/b: its store", "both supers are damaged", "store erase"]);
    // The store of another member.
    let whole = std::fs::read(&members[0]).unwrap();
    let bytes = |copy| usize::try_from(at(copy)).unwrap();
    for copy in [0, 1] {
        poke(&members[1], at(copy), &whole[bytes(copy)..][..4096]);
    }
    assert_says(&refused(), &["/b: its store", "of member 0 and not 1"]);
    // Those of earlier releases, and a later one's.
    for version in [1_u32, 2, 3, 9] {
        let mut other = whole[bytes(0)..][..4096].to_vec();
        other[16..20].copy_from_slice(&version.to_le_bytes());
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &other[..4088]);
        other[4088..].copy_from_slice(&crc.to_le_bytes());
        for copy in [0, 1] {
            poke(&members[1], at(copy), &other);
        }
        let named = format!("store format {version}; this release reads format 4 only");
        let remedies = ["the release that wrote it", "`kvrail store erase`"];
        assert_says(&refused(), &[&[named.as_str()], &remedies[..]].concat());
    }
    for copy in [0, 1] {
        poke(&members[1], at(copy), &[0; 4096]);
    }
    assert_says(&refused(), &["/b: its store", "no store"]);
}

#[test]
fn an_erased_store_is_a_new_one_under_its_old_label() {
    let directory = directory();
    let members = vec![directory.path().join("a"), directory.path().join("b")];
    make(&new_store(&members)).unwrap();
    let before = supers(&open_any(&members).unwrap());
    // Whatever has happened to one of them.
    for copy in [0, 1] {
        damage(&members[1], LABEL_BYTES + SUPER_AT[copy] + 30);
    }
    let volume = open_any(&members).unwrap();
    kvrail_volume::erase(&volume).unwrap();
    for (index, it) in (0..).zip(supers(&volume)) {
        assert_eq!((it.volume, it.member, it.members), (volume.uuid.as_u128(), index, 2));
        let old = &before[usize::from(index)];
        assert!(
            it.instance != old.instance && it.seed != old.seed,
            "what was there counts no more"
        );
    }
    let raw = make(&new_volume(&[directory.path().join("raw")])).unwrap();
    let refused = kvrail_volume::erase(&raw).map(|()| raw);
    assert_says(&refusal(refused), &["raw volume", "--kind store"]);
}

#[test]
fn values_that_no_store_has_are_refused_before_anything_is_made() {
    let directory = directory();
    let path = directory.path().join("a");
    let with = |segment_bytes, block_mean| {
        let layout = VolumeLayout::Store { segment_bytes, block_mean };
        let new = NewVolume { layout, ..new_store(std::slice::from_ref(&path)) };
        let said = refusal(make(&new));
        assert!(!path.exists(), "{said}");
        said
    };
    assert_says(&with(Some(3 * MIB), None), &["kv0", "3145728 bytes (--segment)", "16 GiB"]);
    assert_says(&with(Some(256 * MIB), None), &["0 segments of 268435456", "6 to 65536"]);
    assert_says(&with(None, Some(7)), &["a mean of 7 bytes (--block-mean)", "512 to 524288"]);
}
