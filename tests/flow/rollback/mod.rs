//! The release before: its store is served by this one, and what this one leaves is served by it.
//!
//! `0.2.0/member-*.gz` are the members of a store that kvrail 0.2.0 (revision abf162b2) made, as
//! `fresh` and `put` make it: with a pool, 24 blocks by `bytes_of`, and each eighth dropped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use kvrail_client::{BlockKey, BlockRequest, Identity, Pages, Status};
use kvrail_protocol::Version;
use kvrail_ring::limits::LANE_VERSION;
use kvrail_store::FORMAT_VERSION;
use serde_json::Value;

use crate::rig::{LONG, Place, Sidecar, StoreShape, eventually, run, without_configuration};

/// The release before, and what its clients and sidecars speak.
const RELEASE: &str = "0.2.0";
const PROTOCOL_MAJOR: u16 = 2;
const LANES: u32 = 4;
/// Its program, where `scripts/dev rollback` has built it.
const PROGRAM: &str = "KVRAIL_RELEASE_BEFORE";
/// Blocks of its store.
const BLOCKS: u64 = 24;
const NAMESPACE: &str = "golden";
/// Its pool.
const POOL: &str = "[[volume.pool]]\nname = \"own\"\nminimum = \"4MiB\"\nnamespaces = \"golden\"";

fn image(release: &str, member: usize) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("flow/rollback").join(release);
    folder.join(format!("member-{member}.gz"))
}

/// A store of the image's shape, empty.
fn fresh() -> Place {
    let shape = StoreShape { member_bytes: 8 << 20, segment_bytes: 256 << 10, block_mean: 8 << 10 };
    let mut place = Place::with_shaped_store(2, &shape);
    place.configure_volume(POOL);
    place
}

/// Packs a store as the image of this release.
fn pack(place: &Place) {
    for (at, member) in place.members.iter().enumerate() {
        let packed = image(env!("CARGO_PKG_VERSION"), at);
        fs::create_dir_all(packed.parent().unwrap()).unwrap();
        let mut packer = GzEncoder::new(File::create(packed).unwrap(), Compression::best());
        io::copy(&mut File::open(member).unwrap(), &mut packer).unwrap();
        packer.finish().unwrap();
    }
}

/// A place with the store that the release before left.
fn place() -> Place {
    let mut place = Place::empty(2);
    for (at, member) in place.members.iter().enumerate() {
        let packed = File::open(image(RELEASE, at)).expect("an image of the repository");
        io::copy(&mut GzDecoder::new(packed), &mut File::create(member).unwrap()).unwrap();
    }
    place.configure_volume(POOL);
    place
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

fn bytes_of(number: u64) -> (usize, u8) {
    let length = 3000 + 517 * number % 9000;
    (usize::try_from(length).unwrap(), u8::try_from(number).unwrap())
}

fn is_dropped(number: u64) -> bool {
    number % 8 == 7
}

/// Puts blocks as the image has them.
fn put(sidecar: &Sidecar, numbers: std::ops::Range<u64>) {
    let client = sidecar.attach();
    let identity = Identity::new([("model", "golden")]).unwrap();
    let space = client.store("kv").unwrap().namespace(NAMESPACE, &identity).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for number in numbers {
        let (length, byte) = bytes_of(number);
        let mut lease = arena.lease(length).unwrap();
        lease.fill(byte);
        let put = BlockRequest::put(&space, key(number), lease).metadata(&number.to_le_bytes());
        let drop = is_dropped(number).then(|| BlockRequest::drop_block(&space, key(number)));
        for request in [Some(put), drop].into_iter().flatten() {
            queue.submit(request.durable()).unwrap();
            assert_eq!(queue.wait(LONG).unwrap().expect("one in flight").status, Status::Ok);
        }
    }
}

/// Gets the blocks up to this number: each is there with its bytes, or was dropped.
fn check(sidecar: &Sidecar, until: u64) {
    // Until then, a block that was not read yet is a miss.
    eventually("all records are read", || {
        sidecar.status().shards.iter().all(|shard| shard.state == "serving")
    });
    let client = sidecar.attach();
    let identity = Identity::new([("model", "golden")]).unwrap();
    let space = client.store("kv").unwrap().namespace(NAMESPACE, &identity).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for number in 0..until {
        let (length, byte) = bytes_of(number);
        let lease = arena.lease(length).unwrap();
        queue.submit(BlockRequest::get(&space, key(number), lease)).unwrap();
        let mut done = queue.wait(LONG).unwrap().expect("one is in flight");
        let expected = if is_dropped(number) { Status::Miss } else { Status::Ok };
        assert_eq!(done.status, expected, "block {number}");
        let lease = done.lease.take().expect("the memory of the get");
        let right = lease.iter().take(length).all(|other| *other == byte);
        assert!(right || is_dropped(number), "block {number} has other bytes");
    }
}

/// Formats of a member of a store: of its label, and of the store's super.
fn formats(member: &Path) -> [u32; 2] {
    let bytes = fs::read(member).unwrap();
    let version = |at: usize, magic: &[u8]| {
        assert!(bytes[at..].starts_with(magic), "{} has no {magic:?}", member.display());
        let (version, _) = bytes[at + 16..].split_first_chunk().unwrap();
        u32::from_le_bytes(*version)
    };
    [version(0, b"kvrail volume"), version(1 << 20, b"kvrail store")]
}

#[test]
fn a_store_of_the_release_before_is_served() {
    let place = place();
    let before = place.members.iter().map(|member| formats(member)).collect::<Vec<_>>();
    let sidecar = Sidecar::start(&place);
    check(&sidecar, BLOCKS);
    put(&sidecar, BLOCKS..2 * BLOCKS);
    sidecar.stop();
    let sidecar = Sidecar::start(&place);
    check(&sidecar, 2 * BLOCKS);
    let report = sidecar.status();
    let pools = report.shards.iter().flat_map(|shard| &shard.pools);
    assert!(pools.into_iter().any(|pool| pool.name == "own" && pool.blocks > 0), "{report:?}");
    sidecar.stop();
    // It is the store of a release that knows these numbers, still.
    let after = place.members.iter().map(|member| formats(member)).collect::<Vec<_>>();
    assert_eq!(before, after);
}

/// A number that differs is what users must know before they upgrade: it is in the changelog.
/// Where `KVRAIL_IMAGE` is set, the store becomes the image of this release: once, when it is cut.
#[test]
fn formats_and_protocol_are_those_of_the_release_before_or_in_the_changelog() {
    let changelog = Path::new(env!("CARGO_MANIFEST_DIR")).join("../CHANGELOG.md");
    let changelog = fs::read_to_string(changelog).unwrap();
    let news = changelog.split("\n## [").nth(1).expect("what is not released yet");
    let (made, earlier) = (fresh(), place());
    let sidecar = Sidecar::start(&made);
    put(&sidecar, 0..BLOCKS);
    sidecar.stop();
    if std::env::var_os("KVRAIL_IMAGE").is_some() {
        pack(&made);
    }
    let [label, store] = formats(&made.members[0]);
    let [label_before, store_before] = formats(&earlier.members[0]);
    assert_eq!(store, FORMAT_VERSION);
    for (now, before, words) in [
        (store, store_before, "stores have format"),
        (label, label_before, "labels have version"),
        (LANE_VERSION, LANES, "lane version"),
        (Version::CURRENT.major.into(), PROTOCOL_MAJOR.into(), "protocol"),
    ] {
        let named = news.contains(&format!("{words} {now}"));
        assert!(now == before || named, "CHANGELOG.md, Unreleased: `{words} {now}` is missing");
    }
}

/// Answers of the old program, while it serves.
fn ask(program: &str, place: &Place, words: &[&str]) -> Value {
    let mut command = Command::new(program);
    without_configuration(&mut command);
    command.args(words).args(["--format", "json", "--socket"]).arg(place.socket());
    let outcome = run(&mut command);
    outcome.expect(0, &[]);
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// `scripts/dev rollback` builds the release before and runs this.
#[test]
fn the_release_before_serves_what_this_one_left() {
    let Ok(program) = std::env::var(PROGRAM) else {
        println!("skipped: the program of {RELEASE} is not built (scripts/dev rollback)");
        return;
    };
    for (place, first) in [(place(), BLOCKS), (fresh(), 0)] {
        let sidecar = Sidecar::start(&place);
        put(&sidecar, first..2 * BLOCKS);
        sidecar.stop();
        let mut serve = Command::new(&program);
        without_configuration(&mut serve);
        serve.args(["serve", "--exit-with-parent", "--config"]).arg(place.configuration());
        let sidecar = Sidecar::start_as(&place, serve);
        let report = sidecar.status();
        let of_ours = report.shards[0].counters.store.absent_estimated;
        assert_eq!((report.sidecar.version.as_str(), of_ours), (RELEASE, None), "not that release");
        // Today's client in a session of the old sidecar, and the old program's own check.
        check(&sidecar, 2 * BLOCKS);
        let verified = ask(&program, &place, &["store", "verify", "--share", "100%"]);
        let there = (0..2 * BLOCKS).filter(|number| !is_dropped(*number)).count();
        let namespace = &verified[0]["namespaces"][0];
        let counts: BTreeMap<_, _> = ["right", "wrong", "failed", "unreadable_pages"]
            .map(|count| (count, namespace[count].as_u64().unwrap()))
            .into();
        assert_eq!(counts["right"], there as u64, "{verified}");
        assert_eq!(counts.values().sum::<u64>(), there as u64, "{verified}");
        sidecar.stop();
        let sidecar = Sidecar::start(&place);
        check(&sidecar, 2 * BLOCKS);
        sidecar.stop();
    }
}
