//! Removing labels.

mod common;

use common::{assert_says, directory, make, new_volume, open_any, poke, refusal, two_files};
use kvrail_volume::{Content, NewVolume, Overwrite, inspect, wipe};

#[test]
fn wiping_needs_the_right_name_and_frees_the_file_for_reuse() {
    let directory = directory();
    let members = two_files(directory.path());
    let wrong = wipe(&"other".parse().unwrap(), &members);
    assert_says(&refusal(wrong), &["\"kv0\"", "\"other\""]);
    open_any(&members).unwrap();
    let name = "kv0".parse().unwrap();
    let labels = wipe(&name, &members).unwrap();
    assert_eq!(labels.len(), 2);
    assert_says(&refusal(open_any(&members)), &["no kvrail label"]);
    assert_says(&refusal(wipe(&name, &members)), &["no kvrail label"]);
    // The volume's data is still there.
    assert_says(&refusal(make(&new_volume(&members))), &["unknown data", "--force"]);
    make(&NewVolume { overwrite: Overwrite::Foreign, ..new_volume(&members) }).unwrap();
}

#[test]
fn a_wipe_that_was_cut_short_can_be_repeated() {
    let directory = directory();
    let members = two_files(directory.path());
    let name = "kv0".parse().unwrap();
    wipe(&name, &members[..1]).unwrap();
    let labels = wipe(&name, &members).unwrap();
    assert_eq!(labels.len(), 1, "the other one carried none any more");
    assert_eq!(inspect(&members[1]).unwrap().content, Content::Blank);
    assert_says(&refusal(wipe(&name, &members)), &["a: ", "no kvrail label"]);
}

#[test]
fn wiping_takes_a_torn_label_and_nothing_foreign() {
    let directory = directory();
    let members = two_files(directory.path());
    let name = "kv0".parse().unwrap();
    poke(&members[0], 100, b"x");
    poke(&members[1], 0, &vec![0; 1 << 20]);
    poke(&members[1], 0, b"LUKS\xba\xbe");
    // The foreign one is second: the first is not wiped before all are verified.
    assert_says(&refusal(wipe(&name, &members)), &["b: ", "LUKS"]);
    assert!(matches!(inspect(&members[0]).unwrap().content, Content::Damaged(_)));
    wipe(&name, &members[..1]).unwrap();
    assert_eq!(inspect(&members[0]).unwrap().content, Content::Blank);
}
