//! Volumes on files: what is made, what is refused, what is left behind.

mod common;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::{
    MIB, assert_says, directory, go_on, make, new_volume, open_any, poke, refusal, two_files,
};
use kvrail_volume::{
    Content, DirectIo, ErrorClass, Fill, IoPath, LABEL_BYTES, MemberKind, NewVolume, Overwrite,
    Reason, Repair, VolumeLayout, create, inspect, open, repair, wipe,
};

#[test]
fn a_created_volume_opens_in_any_order_with_the_same_shape() {
    let directory = directory();
    let members = vec![directory.path().join("a"), directory.path().join("b")];
    let made = make(&new_volume(&members)).unwrap();
    let (uuid, geometry) = (made.uuid, made.geometry);
    assert_eq!(geometry.capacity(), 4 * MIB);
    assert_eq!((geometry.members, geometry.data_offset), (2, LABEL_BYTES));
    drop(made);
    let turned: Vec<PathBuf> = members.iter().rev().cloned().collect();
    let opened = open(&turned, Some(&"kv0".parse().unwrap()), DirectIo::Optional).unwrap();
    assert_eq!((opened.uuid, opened.geometry), (uuid, geometry));
    let paths: Vec<&Path> = opened.members.iter().map(kvrail_volume::Member::path).collect();
    assert_eq!(paths, members);
    assert!(opened.members.iter().all(|member| member.claim.kind() == MemberKind::File));
}

#[test]
fn a_deepseek_stripe_works() {
    let directory = directory();
    let members = vec![directory.path().join("a"), directory.path().join("b")];
    let new =
        NewVolume { layout: VolumeLayout::Raw { stripe_bytes: 1_124_352 }, ..new_volume(&members) };
    let made = make(&new);
    let block = match &made {
        Ok(made) => made.geometry.logical_block,
        Err(error) => {
            // 1,124,352 is 2,196 x 512 and no multiple of 4096.
            assert_says(&error.to_string(), &["4096-byte blocks"]);
            println!("skipped: this file system takes no 512-byte blocks with O_DIRECT");
            return;
        }
    };
    assert_eq!(block, 512);
    drop(made);
    let opened = open_any(&members).unwrap();
    assert_eq!(opened.geometry.stripe_bytes, 1_124_352);
    assert_eq!(opened.geometry.capacity(), 4 * 1_124_352);
}

#[test]
fn files_are_allocated_written_once_and_private() {
    let directory = directory();
    let members = two_files(directory.path());
    for path in &members {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!(metadata.len(), LABEL_BYTES + 2 * MIB + 4096, "a block behind the data");
        assert!(metadata.blocks() * 512 >= metadata.len(), "holes");
        assert_eq!(metadata.mode() & 0o777, 0o600);
        let data = fs::read(path).unwrap();
        let zeros = data[(1 << 20)..].iter().filter(|&&byte| byte == 0).count();
        assert!(zeros < 2 * data.len() / 256, "compressible data: {zeros} zeros");
    }
}

#[test]
fn preallocation_alone_is_possible() {
    let directory = directory();
    let members = vec![directory.path().join("a")];
    let mut calls = 0;
    let new = NewVolume { fill: Fill::Nothing, ..new_volume(&members) };
    create(&new, &mut |progress| {
        calls += 1;
        assert_eq!(progress.total_bytes, 0);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(calls, 1);
    let metadata = fs::metadata(&members[0]).unwrap();
    assert!(metadata.blocks() * 512 >= metadata.len());
}

#[test]
fn the_second_claim_is_refused_and_names_the_process() {
    let directory = directory();
    let members = two_files(directory.path());
    let held = open_any(&members).unwrap();
    let error = open_any(&members).unwrap_err();
    assert_eq!(error.reason.class(), ErrorClass::Refused);
    let pid = format!("process {}", std::process::id());
    assert_says(&error.to_string(), &["in use", &pid, "stop process"]);
    assert_says(&refusal(wipe(&held.name, &members)), &["in use"]);
    drop(held);
    open_any(&members).unwrap();
}

#[test]
fn a_duplicate_descriptor_keeps_the_claim() {
    let directory = directory();
    let members = two_files(directory.path());
    let held = open_any(&members).unwrap();
    let kept = held.members[0].claim.duplicate().unwrap();
    drop(held);
    assert_says(&refusal(open_any(&members)), &["in use"]);
    drop(kept);
    open_any(&members).unwrap();
}

#[test]
fn a_blank_file_is_refused_at_open() {
    let directory = directory();
    let path = directory.path().join("blank");
    fs::File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    assert_says(&refusal(open_any(&[path])), &["no kvrail label", "volume create"]);
}

#[test]
fn a_missing_member_is_named() {
    let directory = directory();
    let members = two_files(directory.path());
    assert_says(&refusal(open_any(&members[..1])), &["kv0", "2 members", "missing: 1", "name all"]);
    let error = open_any(&[directory.path().join("nowhere")]).unwrap_err();
    assert_eq!(error.reason.class(), ErrorClass::Failed);
    assert_says(&error.to_string(), &["nowhere", "check the path"]);
    assert_says(&refusal(open_any(&[])), &["0 members"]);
}

#[test]
fn members_of_two_volumes_are_refused() {
    let directory = directory();
    let first = two_files(directory.path());
    let other = vec![directory.path().join("c"), directory.path().join("d")];
    make(&new_volume(&other)).unwrap();
    let mixed = [first[0].clone(), other[1].clone()];
    assert_says(&refusal(open_any(&mixed)), &["belongs to volume kv0 (", "first member to"]);
}

#[test]
fn half_labelled_sets_are_refused() {
    let directory = directory();
    let members = two_files(directory.path());
    poke(&members[1], 0, &vec![0; 1 << 20]);
    assert_says(&refusal(open_any(&members)), &["b: ", "no kvrail label"]);
}

#[test]
fn a_copied_member_is_refused() {
    let directory = directory();
    let members = two_files(directory.path());
    let copy = directory.path().join("copy");
    fs::copy(&members[0], &copy).unwrap();
    let set = [members[0].clone(), copy];
    assert_says(&refusal(open_any(&set)), &["member number 0, and so has", "inspect"]);
}

#[test]
fn one_file_by_two_names_is_refused() {
    let directory = directory();
    let members = two_files(directory.path());
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&members[0], &link).unwrap();
    let hard = directory.path().join("hard");
    fs::hard_link(&members[0], &hard).unwrap();
    for other in [members[0].clone(), link, hard] {
        let error = open_any(&[members[0].clone(), other]).unwrap_err();
        assert_eq!(error.reason.class(), ErrorClass::Usage);
        assert_says(&error.to_string(), &["same device or file as"]);
    }
}

#[test]
fn the_expected_name_is_held_against_the_label() {
    let directory = directory();
    let members = two_files(directory.path());
    let outcome = open(&members, Some(&"other".parse().unwrap()), DirectIo::Optional);
    assert_says(&refusal(outcome), &["\"kv0\"", "\"other\"", "correct the name"]);
}

#[test]
fn a_torn_label_is_refused_and_told_from_a_foreign_one() {
    let directory = directory();
    let members = two_files(directory.path());
    poke(&members[0], 1000, b"x");
    assert_says(&refusal(open_any(&members)), &["damaged", "torn", "kv0"]);
    poke(&members[0], 0, &vec![0; 1 << 20]);
    poke(&members[0], 0, b"XFSB");
    assert_says(&refusal(open_any(&members)), &["holds an xfs file system"]);
    poke(&members[0], 0, b"????");
    assert_says(&refusal(open_any(&members)), &["unknown data (first at byte 0)"]);
}

#[test]
fn a_member_that_shrank_is_refused() {
    let directory = directory();
    let members = two_files(directory.path());
    let file = fs::OpenOptions::new().write(true).open(&members[1]).unwrap();
    file.set_len(2 * MIB).unwrap();
    assert_says(&refusal(open_any(&members)), &["b: ", "was truncated", "2097152"]);
    file.set_len(8 * MIB).unwrap();
    open_any(&members).unwrap();
}

#[test]
fn what_is_not_storage_is_refused() {
    let directory = directory();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let cases = [
        (directory.path().to_owned(), "a directory"),
        ("/dev/null".into(), "a character device"),
        (pipe, "a pipe"),
    ];
    for (path, what) in cases {
        let members = [path];
        assert_says(&refusal(open_any(&members)), &[what, "block device or a file"]);
        assert_says(&refusal(make(&new_volume(&members))), &[what]);
    }
}

/// Content that must survive an attempt to make a volume over it, byte for byte.
#[test]
fn creating_over_content_is_refused_and_writes_nothing() {
    let directory = directory();
    let path = directory.path().join("member");
    let marks: [(u64, &[u8], &str); 6] = [
        (0x438, b"\x53\xef", "ext2/3/4"),
        (510, b"\x55\xaa", "MBR"),
        (512, b"EFI PART", "GPT"),
        (4096, b"\xfc\x4e\x2b\xa9", "md RAID"),
        (0, b"bluestore block device\n", "BlueStore"),
        (500_000, b"?", "unknown data (first at byte 500000)"),
    ];
    for (at, magic, name) in marks {
        let _ = fs::remove_file(&path);
        fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
        poke(&path, at, magic);
        let before = fs::read(&path).unwrap();
        let error = make(&new_volume(std::slice::from_ref(&path))).unwrap_err();
        assert_eq!(error.reason.class(), ErrorClass::Refused);
        assert_says(&error.to_string(), &[name, "--force"]);
        assert!(fs::read(&path).unwrap() == before, "{name}: the file changed");
    }
}

#[test]
fn foreign_content_is_overwritten_only_when_told() {
    let directory = directory();
    let path = directory.path().join("member");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    poke(&path, 0x438, b"\x53\xef");
    poke(&path, 8 * MIB - 512, b"EFI PART");
    let members = [path.clone()];
    let new = NewVolume { overwrite: Overwrite::Foreign, ..new_volume(&members) };
    make(&new).unwrap();
    open_any(&members).unwrap();
    // The mark at the end is gone, or other tools would find it again.
    let mut end = [1; 512];
    fs::File::open(&path).unwrap().read_exact_at(&mut end, 8 * MIB - 512).unwrap();
    assert_eq!(end, [0; 512]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 * MIB);
}

/// A file may end anywhere; O_DIRECT writes whole blocks.
#[test]
fn foreign_content_that_ends_within_a_block_is_overwritten_too() {
    let directory = directory();
    let path = directory.path().join("member");
    for bytes in [1, 513, 3_000_001, 8 * MIB + 4095] {
        let _ = fs::remove_file(&path);
        fs::write(&path, vec![7; usize::try_from(bytes).unwrap()]).unwrap();
        let members = [path.clone()];
        let new = NewVolume { overwrite: Overwrite::Foreign, ..new_volume(&members) };
        make(&new).unwrap();
        open_any(&members).unwrap();
        assert!(fs::metadata(&path).unwrap().len() >= bytes);
    }
}

#[test]
fn a_volume_is_never_overwritten_even_when_told() {
    let directory = directory();
    let members = two_files(directory.path());
    for overwrite in [Overwrite::Nothing, Overwrite::Foreign] {
        let new = NewVolume { overwrite, ..new_volume(&members) };
        assert_says(&refusal(make(&new)), &["kvrail volume kv0", "volume wipe"]);
    }
    open_any(&members).unwrap();
}

#[test]
fn bad_requests_are_refused_and_leave_nothing_behind() {
    let directory = directory();
    let path = directory.path().join("member");
    let base = new_volume(std::slice::from_ref(&path));
    let raw = |stripe_bytes| VolumeLayout::Raw { stripe_bytes };
    let cases: Vec<(NewVolume, &str)> = vec![
        (NewVolume { members: vec![], ..base.clone() }, "0 members"),
        (NewVolume { members: vec![path.clone(); 65], ..base.clone() }, "65 members"),
        (NewVolume { members: vec![path.clone(); 2], ..base.clone() }, "same device or file"),
        (NewVolume { capacity_bytes: None, ..base.clone() }, "--size"),
        (NewVolume { capacity_bytes: Some(0), ..base.clone() }, "a volume of 0 bytes"),
        (NewVolume { capacity_bytes: Some(u64::MAX), ..base.clone() }, "a volume of 1844"),
        (NewVolume { capacity_bytes: Some(1 << 62), ..base.clone() }, "are free"),
        (NewVolume { layout: raw(0), ..base.clone() }, "a stripe of 0 bytes"),
        (NewVolume { layout: raw(1000), ..base.clone() }, "a stripe of 1000 bytes"),
        (NewVolume { layout: raw((1 << 30) + 4096), ..base.clone() }, "1 GiB"),
        (NewVolume { members: vec![directory.path().join("no/such")], ..base }, "mkdir -p"),
    ];
    for (new, words) in cases {
        assert_says(&refusal(make(&new)), &[words]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{words}");
    }
}

#[test]
fn an_interrupted_creation_removes_its_files() {
    let directory = directory();
    let members = vec![directory.path().join("a"), directory.path().join("b")];
    let mut seen_files = 0;
    let outcome = create(&new_volume(&members), &mut |progress| {
        seen_files = fs::read_dir(directory.path()).unwrap().count();
        if progress.done_bytes > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let error = outcome.unwrap_err();
    assert_eq!(error.reason.class(), ErrorClass::Interrupted);
    assert_eq!(seen_files, 2);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn an_interrupted_creation_leaves_existing_files_blank() {
    let directory = directory();
    let path = directory.path().join("a");
    fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    let mut new = new_volume(std::slice::from_ref(&path));
    new.capacity_bytes = None;
    let outcome = create(&new, &mut |progress| {
        if progress.done_bytes > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_says(&refusal(outcome), &["interrupted"]);
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 * MIB);
    assert_eq!(inspect(&path).unwrap().content, Content::Blank);
    // Again, and to the end: an existing file gives all it has.
    assert_eq!(make(&new).unwrap().geometry.capacity(), 7 * MIB);
}

#[test]
fn a_failure_on_the_last_member_removes_the_first() {
    let directory = directory();
    let members = [directory.path().join("a"), "/dev/null".into()];
    assert_says(&refusal(make(&new_volume(&members))), &["character device"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn inspection_sees_the_label_of_a_volume_in_use() {
    let directory = directory();
    let members = two_files(directory.path());
    let held = open_any(&members).unwrap();
    let seen = inspect(&members[1]).unwrap();
    let Content::Ours(label) = &seen.content else { panic!("{seen:?}") };
    assert_eq!((label.volume_uuid, label.member_index), (held.uuid, 1));
    assert_eq!(label.member_uuid(), held.members[1].uuid);
    assert_eq!(seen.holders.len(), 1, "{:?}", seen.holders);
}

#[test]
fn buffered_volumes_are_possible_and_say_so() {
    let directory = directory();
    let members = [directory.path().join("a")];
    let new = NewVolume { direct: DirectIo::Off, ..new_volume(&members) };
    let made = make(&new).unwrap();
    assert_eq!(made.members[0].claim.io(), IoPath::Buffered);
    assert_eq!((made.geometry.logical_block, made.geometry.memory_alignment), (512, 512));
}

#[test]
fn without_o_direct_the_refusal_says_so() {
    // procfs and friends have no O_DIRECT; of what is writable and regular, few file systems do
    // not. Where this machine offers none, there is nothing to test.
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let members = [shm.path().join("a")];
    let new = NewVolume { direct: DirectIo::Required, ..new_volume(&members) };
    match create(&new, &mut go_on) {
        Ok(made) => {
            assert_eq!(made.members[0].claim.io(), IoPath::Direct);
            println!("skipped: this kernel's tmpfs has O_DIRECT");
        }
        Err(error) => {
            assert!(matches!(error.reason, Reason::NoDirect { .. }), "{error}");
            assert_says(&error.to_string(), &["O_DIRECT", "direct = \"optional\""]);
            assert_eq!(fs::read_dir(shm.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn one_torn_copy_is_restored_from_the_other() {
    let directory = directory();
    let members = two_files(directory.path());
    let name = "kv0".parse().unwrap();
    let whole: Vec<_> = members.iter().map(|path| fs::read(path).unwrap()).collect();
    poke(&members[0], 600, &[0xee; 700]);
    poke(&members[1], LABEL_BYTES / 2, &[0; 4096]);
    let error = open_any(&members).unwrap_err();
    assert_says(&error.to_string(), &["damaged", "kvrail volume repair"]);
    let done = repair(&name, &members).unwrap();
    assert!(matches!(&done[0], Repair::Restored(what) if what.contains("byte 0 is torn")));
    assert!(matches!(&done[1], Repair::Restored(what) if what.contains("byte 524288 is gone")));
    for (path, bytes) in members.iter().zip(&whole) {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    assert_eq!(repair(&name, &members).unwrap(), [Repair::Whole, Repair::Whole]);
    open_any(&members).unwrap();
}

#[test]
fn nothing_is_repaired_where_more_than_one_copy_was_hit() {
    let directory = directory();
    let members = two_files(directory.path());
    let name = "kv0".parse().unwrap();
    let whole = fs::read(&members[0]).unwrap();
    // The other member could be repaired, but is not unless all can.
    poke(&members[1], 600, &[0xee; 700]);
    let torn = fs::read(&members[1]).unwrap();
    // Both copies; one copy and bytes between; a file system that moved in.
    let hits: [&[(u64, &[u8])]; 3] = [
        &[(600, &[1; 8]), (LABEL_BYTES / 2 + 600, &[1; 8])],
        &[(600, &[1; 8]), (8192, &[1; 8])],
        &[(0, &[0; 1024]), (1080, &[0x53, 0xef])],
    ];
    for hit in hits {
        fs::write(&members[0], &whole).unwrap();
        for (at, bytes) in hit {
            poke(&members[0], *at, bytes);
        }
        let before = fs::read(&members[0]).unwrap();
        let both: Vec<PathBuf> = members.iter().rev().cloned().collect();
        let error = repair(&name, &both).unwrap_err();
        assert_eq!(error.reason.class(), ErrorClass::Refused, "{error}");
        assert!(fs::read(&members[0]).unwrap() == before && fs::read(&members[1]).unwrap() == torn);
    }
    fs::write(&members[0], &whole).unwrap();
    let other = repair(&"other".parse().unwrap(), &members).unwrap_err();
    assert_says(&other.to_string(), &["\"kv0\"", "\"other\""]);
}
