//! Members that come back: the same one, a copy, another one, a damaged one, a shorter one.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use common::{assert_says, directory, refusal, two_files};
use kvrail_volume::{DirectIo, open};

#[test]
fn only_the_same_member_comes_back() {
    let directory = directory();
    let members = two_files(directory.path());
    let volume = open(&members, None, DirectIo::Optional).unwrap();
    let first = &volume.members[0];
    let again = |path: &std::path::Path| first.claim_again(path, volume.uuid, DirectIo::Optional);

    let elsewhere = directory.path().join("elsewhere");
    fs::copy(first.path(), &elsewhere).unwrap();
    assert_eq!(again(&elsewhere).unwrap().path(), elsewhere);

    let other = directory.path().join("other");
    fs::copy(volume.members[1].path(), &other).unwrap();
    assert_says(&refusal(again(&other)), &["was there before", "put the drive back"]);
    let file = OpenOptions::new().write(true).open(&elsewhere).unwrap();
    file.set_len(2 << 20).unwrap();
    assert_says(&refusal(again(&elsewhere)), &["it was truncated"]);
    file.write_all_at(&[0x5a; 8192], 0).unwrap();
    file.write_all_at(&[0x5a; 8192], 512 << 10).unwrap();
    assert_says(&refusal(again(&elsewhere)), &["elsewhere"]);
    assert_says(&refusal(again(&directory.path().join("nothing"))), &["cannot be opened"]);
}

#[test]
fn a_file_that_lost_bytes_does_not_come_back() {
    let directory = directory();
    let members = two_files(directory.path());
    let volume = open(&members, None, DirectIo::Optional).unwrap();
    let first = &volume.members[0];
    let file = OpenOptions::new().write(true).open(first.path()).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(2 << 20).unwrap();
    let again = || first.claim_again(first.path(), volume.uuid, DirectIo::Optional);
    assert_says(&refusal(again()), &["was truncated"]);
    file.set_len(bytes).unwrap();
    assert_says(&refusal(again()), &["was truncated", "reads as zeros", "copy of the whole file"]);
}
