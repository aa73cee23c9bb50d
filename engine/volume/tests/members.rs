//! Members of a store that come and go.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{MIB, assert_says, directory, go_on, make, new_volume, open_any, poke, refusal};
use kvrail_store::Members;
use kvrail_volume::{
    DirectIo, Fill, NewMember, NewVolume, Overwrite, Present, Volume, VolumeError, VolumeLayout,
    VolumeToOpen, add, adopt, open_present, prepare, retire, retire_served,
};

const LABEL: usize = 1 << 20;
/// Where the copies of a label lie.
const COPIES: [usize; 2] = [0, LABEL / 2];

fn store_of(members: &[PathBuf]) {
    let layout = VolumeLayout::Store { segment_bytes: None, block_mean: Some(64 << 10) };
    let capacity_bytes = Some(4 * MIB * members.len() as u64);
    let new = NewVolume { layout, capacity_bytes, fill: Fill::Nothing, ..new_volume(members) };
    make(&new).unwrap();
}

fn open(members: &[PathBuf]) -> Result<Present, VolumeError> {
    let name = &"kv0".parse().unwrap();
    open_present(&VolumeToOpen { members, unfound: 0, name, direct: DirectIo::Optional })
}

fn present(members: &[PathBuf]) -> Result<(Volume, Vec<String>), VolumeError> {
    open(members).map(|opened| (opened.volume, opened.remarks))
}

fn adding(members: &[PathBuf], path: &Path) -> NewMember {
    NewMember {
        name: "kv0".parse().unwrap(),
        members: members.to_vec(),
        path: path.to_owned(),
        fill: Fill::Nothing,
        overwrite: Overwrite::Foreign,
        direct: DirectIo::Optional,
    }
}

fn without(members: &[PathBuf], numbers: &[u16]) -> Result<Volume, VolumeError> {
    retire(&"kv0".parse().unwrap(), members, numbers, DirectIo::Optional)
}

fn label(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()[..LABEL].to_vec()
}

/// A change of labels: for each member, what its label was and what it became, in the order in
/// which they are written.
struct Change(Vec<(PathBuf, Vec<u8>, Vec<u8>)>);

impl Change {
    /// The label writes of an act on these members.
    fn of(members: &[PathBuf], act: impl FnOnce()) -> Self {
        let before: Vec<_> = members.iter().map(|path| label(path)).collect();
        act();
        let both = members.iter().zip(before);
        Self(both.map(|(path, before)| (path.clone(), before, label(path))).collect())
    }

    /// Gives the medium the state after a kill behind `writes` writes.
    fn cut_after(&self, writes: usize) {
        for (at, (path, before, after)) in self.0.iter().enumerate() {
            poke(path, 0, before);
            for (copy, from) in COPIES.into_iter().enumerate() {
                if 2 * at + copy < writes {
                    poke(path, from as u64, &after[from..from + 4096]);
                }
            }
        }
    }
}

fn three() -> (common::Directory, Vec<PathBuf>) {
    let directory = directory();
    let members = ["a", "b", "c"].map(|name| directory.path().join(name)).to_vec();
    store_of(&members);
    (directory, members)
}

#[test]
fn an_add_that_is_cut_after_any_write_starts_and_goes_on() {
    let (directory, three) = three();
    let new = directory.path().join("d");
    let four = [&three[..], std::slice::from_ref(&new)].concat();
    fs::write(&new, vec![0; LABEL]).unwrap();
    let order = [std::slice::from_ref(&new), &three[..]].concat();
    let change = Change::of(&order, || {
        let added = add(&adding(&three, &new), &mut go_on).unwrap();
        assert_eq!((added.present, added.members.len()), (Members::first(4), 4));
    });
    for writes in [0].into_iter().chain(2..=8) {
        change.cut_after(writes);
        let (old, remarks) = present(&three).unwrap();
        assert_eq!(old.present, Members::first(3), "after {writes}: {remarks:?}");
        assert_eq!(remarks.is_empty(), writes < 3, "after {writes}: {remarks:?}");
        drop(old);
        let (all, remarks) = present(&four).unwrap();
        let count = if writes == 0 { 3 } else { 4 };
        assert_eq!(all.present, Members::first(count), "after {writes}: {remarks:?}");
        drop(all);
        drop(add(&adding(&three, &new), &mut go_on).unwrap());
        assert_eq!(open_any(&four).unwrap().present, Members::first(4));
        // Once more does nothing.
        drop(add(&adding(&four, &new), &mut go_on).unwrap());
        assert_eq!(open_any(&four).unwrap().expected, Members::first(4));
    }
}

#[test]
fn a_retirement_that_is_cut_after_any_write_starts_and_goes_on() {
    let (_directory, three) = three();
    let stay = [three[0].clone(), three[2].clone()];
    let change = Change::of(&stay, || drop(without(&three, &[1]).unwrap()));
    for writes in 0..=4 {
        change.cut_after(writes);
        let (all, remarks) = present(&three).unwrap();
        let retired = writes > 0;
        assert_eq!(all.present.has(1), !retired, "after {writes}: {remarks:?}");
        assert_eq!(remarks.len(), usize::from(retired));
        drop(all);
        drop(without(&stay, &[1]).unwrap());
        let left = open_any(&stay).unwrap();
        assert_eq!((left.present.bits(), left.geometry.members), (0b101, 2));
        drop(left);
        assert_says(&refusal(open_any(&three)), &["/b", "member 1", "retired", "volume wipe"]);
    }
}

/// The same while a process serves the members: it has them claimed.
#[test]
fn a_retirement_while_the_store_is_served_is_the_same() {
    let (_directory, three) = three();
    let (name, stay) = ("kv0".parse().unwrap(), [three[0].clone(), three[2].clone()]);
    let change = Change::of(&stay, || {
        let served = present(&three).unwrap().0;
        let of =
            |numbers: &[usize]| numbers.iter().map(|at| &served.members[*at]).collect::<Vec<_>>();
        let retire = |stay: &[usize], numbers: &[u16]| {
            retire_served(&name, &of(stay), numbers, Members::NONE)
        };
        assert_says(&refusal(retire(&[0, 2], &[7])), &["no member 7"]);
        assert_says(&refusal(retire(&[], &[0, 1, 2])), &["no member would be left"]);
        assert_says(&refusal(retire(&[0], &[1])), &["missing: 2"]);
        assert_eq!(retire(&[0, 2], &[1]).unwrap().bits(), 0b101);
        assert_eq!(retire(&[0, 2], &[1]).unwrap().bits(), 0b101, "once more does nothing");
    });
    for writes in 0..=4 {
        change.cut_after(writes);
        let (all, remarks) = present(&three).unwrap();
        assert_eq!(all.present.has(1), writes == 0, "after {writes}: {remarks:?}");
        let of = [&all.members[0], all.members.last().unwrap()];
        assert_eq!(retire_served(&name, &of, &[1], Members::NONE).unwrap().bits(), 0b101);
        drop(all);
        assert_eq!(open_any(&stay).unwrap().present.bits(), 0b101);
    }
}

/// The new member is made by one process, the labels of the others are written by the one that
/// serves them.
#[test]
fn an_add_to_a_served_store_that_is_cut_after_any_write_starts_and_goes_on() {
    let (directory, three) = three();
    let (name, new) = ("kv0".parse().unwrap(), directory.path().join("d"));
    let four = [&three[..], std::slice::from_ref(&new)].concat();
    let join = || {
        let served = present(&three).unwrap().0;
        let joining = prepare(&adding(&three, &new), &mut go_on).unwrap();
        let all: Vec<_> = served.members.iter().collect();
        let other = kvrail_volume::JoinedMember { changes: 9, ..joining.member() };
        let is_old = !joining.is_listed();
        let adopted = adopt(&name, &all, joining.member(), Members::NONE);
        assert_eq!(adopted.unwrap(), Members::first(4));
        assert!(joining.is_listed());
        let again = adopt(&name, &all, joining.member(), Members::NONE);
        assert_eq!(again.unwrap(), Members::first(4), "once more does nothing");
        let stranger = kvrail_volume::JoinedMember { uuid: uuid::Uuid::new_v4(), ..other };
        let refused = adopt(&name, &all, stranger, Members::NONE);
        assert_says(&refusal(refused), &["changed since", "repeat the command"]);
        joining.keep().unwrap();
        is_old
    };
    fs::write(&new, vec![0; LABEL]).unwrap();
    let order = [std::slice::from_ref(&new), &three[..]].concat();
    let change = Change::of(&order, || assert!(join()));
    for writes in [0].into_iter().chain(2..=8) {
        change.cut_after(writes);
        let (old, remarks) = present(&three).unwrap();
        assert_eq!(old.present, Members::first(3), "after {writes}: {remarks:?}");
        drop(old);
        let (all, _) = present(&four).unwrap();
        assert_eq!(all.present, Members::first(if writes == 0 { 3 } else { 4 }), "{writes}");
        drop(all);
        assert_eq!(join(), writes < 3, "after {writes}");
        assert_eq!(open_any(&four).unwrap().present, Members::first(4));
    }
}

/// Nothing of a new member that the others do not list is left.
#[test]
fn a_member_that_is_not_taken_is_put_back() {
    let (directory, three) = three();
    let new = directory.path().join("d");
    let served = present(&three).unwrap().0;
    drop(prepare(&adding(&three, &new), &mut go_on).unwrap());
    assert!(!new.exists());
    let busy = adding(&three[..2], &three[2]);
    assert_says(&refusal(prepare(&busy, &mut go_on)), &["in use"]);
    drop(served);
}

#[test]
fn the_number_of_a_retired_member_goes_to_the_next_one() {
    let (directory, three) = three();
    let stay = [three[0].clone(), three[2].clone()];
    drop(without(&three, &[1]).unwrap());
    let new = directory.path().join("d");
    drop(add(&adding(&stay, &new), &mut go_on).unwrap());
    let all = [&stay[..], std::slice::from_ref(&new)].concat();
    let opened = open_any(&all).unwrap();
    assert_eq!(opened.members[1].path(), new);
    assert_eq!(opened.present, Members::first(3));
    drop(opened);
    let old = [&stay[..], std::slice::from_ref(&three[1])].concat();
    assert_says(&refusal(open_any(&old)), &["/b", "retired"]);
    let (some, remarks) = present(&[&all[..], std::slice::from_ref(&three[1])].concat()).unwrap();
    assert_eq!(some.present, Members::first(3));
    assert_says(&remarks.join(""), &["/b", "retired"]);
    drop(some);
    let other = refusal(add(&adding(&all, &three[1]), &mut go_on));
    assert_says(&other, &["/b", "belongs to the kvrail volume kv0", "volume wipe"]);
    assert_says(&refusal(without(&all, &[9])), &["no member 9", "volume list"]);
    assert_says(&refusal(without(&all, &[0, 1, 2])), &["no member would be left"]);
}

#[test]
fn a_store_starts_with_more_than_half_of_its_members() {
    let (_directory, three) = three();
    fs::rename(&three[1], three[1].with_extension("away")).unwrap();
    let (two, remarks) = present(&three).unwrap();
    assert_eq!((two.present.bits(), two.expected), (0b101, Members::first(3)));
    assert_says(&remarks.join("\n"), &["/b: cannot be opened", "member 1 is not there"]);
    drop(two);
    assert_says(&refusal(open_any(&three)), &["/b"]);
    let unnamed = [three[0].clone(), three[2].clone()];
    assert_says(&refusal(present(&unnamed)), &["3 members these are missing: 1"]);
    assert_says(&refusal(without(&three, &[2])), &["these are missing: 1"]);
    fs::rename(&three[2], three[2].with_extension("away")).unwrap();
    let few = refusal(present(&three));
    assert_says(&few, &["1 of its 3 members", "/b: cannot", "/c: cannot", "volume retire"]);
    drop(without(&three, &[1, 2]).unwrap());
    assert_eq!(present(&three[..1]).unwrap().0.present, Members::first(1));
}

#[test]
fn one_torn_copy_of_a_label_does_not_keep_a_store_from_its_start() {
    let (_directory, three) = three();
    poke(&three[1], 100, &[0xff; 8]);
    let (all, remarks) = present(&three).unwrap();
    assert_eq!(all.present, Members::first(3));
    assert_says(&remarks.join(""), &["/b: its kvrail label is damaged", "volume repair"]);
    drop(all);
    poke(&three[1], LABEL as u64 / 2 + 100, &[0xff; 8]);
    let (two, remarks) = present(&three).unwrap();
    assert_eq!(two.present.bits(), 0b101);
    assert_says(&remarks.join("\n"), &["/b: its kvrail label is damaged", "member 1 is not there"]);
}

/// A drive that has other content, or less of it, is a lost one.
#[test]
fn a_member_that_was_overwritten_or_cut_off_is_done_without() {
    type Wrong = fn(&Path);
    let wrongs: [(&str, Wrong); 4] = [
        ("neither super", |path| poke(path, LABEL as u64, &[7; 64 << 10])),
        ("unknown data", |path| fs::write(path, vec![7; 6 << 20]).unwrap()),
        ("swap", |path| poke(path, 0, &[&[0; 4086], &b"SWAPSPACE2"[..]].concat())),
        ("truncated", |path| {
            fs::File::options().write(true).open(path).unwrap().set_len(2 << 20).unwrap()
        }),
    ];
    for (said, wrong) in wrongs {
        let (_directory, three) = three();
        wrong(&three[1]);
        let before = fs::read(&three[1]).unwrap();
        let (two, remarks) = present(&three).unwrap();
        assert_eq!((two.present.bits(), two.expected), (0b101, Members::first(3)));
        assert_says(&remarks.join("\n"), &["/b: ", said, "member 1 is not there"]);
        assert_eq!(fs::read(&three[1]).unwrap(), before, "it was written to");
        drop(two);
        wrong(&three[2]);
        assert_says(&refusal(present(&three)), &["1 of its 3 members", said]);
        wrong(&three[0]);
        assert_says(&refusal(present(&three)), &["/a: ", said]);
    }
}

#[test]
fn a_raw_volume_needs_and_keeps_all_its_members() {
    let directory = directory();
    let members = common::two_files(directory.path());
    let new = directory.path().join("c");
    assert_says(&refusal(add(&adding(&members, &new), &mut go_on)), &["raw volume"]);
    assert!(!new.exists());
    assert_says(&refusal(without(&members, &[1])), &["raw volume"]);
    fs::remove_file(&members[1]).unwrap();
    assert_says(&refusal(present(&members)), &["/b: cannot be opened"]);
}
