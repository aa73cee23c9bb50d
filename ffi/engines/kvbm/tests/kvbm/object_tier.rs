//! Blocks go through the trait and come back.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use kvbm_engine::LogicalLayoutHandle;
use kvbm_engine::object::ObjectBlockOps;
use kvbm_physical::layout::PhysicalLayout;
use kvbm_physical::transfer::{FillPattern, fill_blocks};
use kvrail_client::Client;
use kvrail_kvbm::{KvrailBlocks, Options};

use crate::rig::{
    BLOCKS, Host, MODEL, RANK, config, good, hashes, hashes_of, layers, private, settled, shared,
    sums,
};

/// Puts all blocks of `from`, and gets them into `into` the other way round.
async fn moved(blocks: &KvrailBlocks, from: &PhysicalLayout, into: &PhysicalLayout) {
    let (hashes, ids) = (hashes(BLOCKS), (0..BLOCKS).collect::<Vec<_>>());
    fill_blocks(from, &ids, FillPattern::Sequential).unwrap();
    fill_blocks(into, &ids, FillPattern::Constant(0xee)).unwrap();
    let put = blocks.put_blocks_with_layout(hashes.clone(), from.clone(), ids.clone()).await;
    assert_eq!(put, hashes.iter().copied().map(Ok).collect::<Vec<_>>());
    let size = from.layout().config().bytes_per_block();
    let found = blocks.has_blocks(hashes.clone()).await;
    assert_eq!(found, hashes.iter().map(|hash| (*hash, Some(size))).collect::<Vec<_>>());
    let back = ids.iter().rev().copied().collect();
    let got = blocks.get_blocks_with_layout(hashes.clone(), into.clone(), back).await;
    assert_eq!(got, hashes.into_iter().map(Ok).collect::<Vec<_>>());
    let expected = sums(from, 0..BLOCKS);
    assert_eq!(expected.iter().collect::<HashSet<_>>().len(), BLOCKS, "each differs");
    assert_eq!(sums(into, (0..BLOCKS).rev()), expected);
}

#[tokio::test]
async fn shared_memory_is_not_copied() {
    let host = Host::start();
    let (from, into) = (shared(256), shared(256));
    let blocks = host.blocks(MODEL, &from);
    moved(&blocks, &from, &into).await;
    assert_eq!(blocks.copied_bytes(), 0);
}

#[tokio::test]
async fn private_memory_and_layers_are_copied_once() {
    let host = Host::start();
    let (from, into) = (private(1040), layers(1040)); // more in flight than is copied at a time
    let blocks = host.blocks(MODEL, &from);
    moved(&blocks, &from, &into).await;
    assert_eq!(blocks.copied_bytes(), 2 * config(1040).required_bytes() as u64);
}

#[tokio::test]
async fn odd_sizes_come_back() {
    let host = Host::start();
    for (inner, bytes) in [(1, 256), (13, 3328), (333, 85_248)] {
        assert_eq!(config(inner).bytes_per_block(), bytes);
        for (from, into) in [(shared(inner), layers(inner)), (layers(inner), shared(inner))] {
            moved(&host.blocks(MODEL, &from), &from, &into).await;
        }
    }
}

#[tokio::test]
async fn single_blocks_are_missed() {
    let host = Host::start();
    let (from, into) = (private(64), private(64));
    let (blocks, hashes) = (host.blocks(MODEL, &from), hashes(6));
    fill_blocks(&from, &[0, 1, 2], FillPattern::Sequential).unwrap();
    fill_blocks(&into, &[0, 1, 2, 3, 4, 5], FillPattern::Constant(0xee)).unwrap();
    let even: Vec<_> = hashes.iter().copied().step_by(2).collect();
    let put = blocks.put_blocks_with_layout(even.clone(), from.clone(), vec![0, 1, 2]).await;
    assert_eq!(good(&put), 3);
    // A block that the layout lacks, together with one that it has.
    let put = blocks.put_blocks_with_layout(hashes[..2].to_vec(), from.clone(), vec![0, 999]).await;
    assert_eq!(put, [Ok(hashes[0]), Err(hashes[1])]);
    let ids: Vec<_> = (0..6).collect();
    let got = blocks.get_blocks_with_layout(hashes.clone(), into.clone(), ids).await;
    let expected = |(at, hash)| if at % 2 == 0 { Ok(hash) } else { Err(hash) };
    assert_eq!(got, hashes.iter().copied().enumerate().map(expected).collect::<Vec<_>>());
    assert_eq!(sums(&into, [0, 2, 4].into_iter()), sums(&from, 0..3));
    let untouched = sums(&into, [1, 3, 5].into_iter());
    assert!(sums(&from, 0..3).iter().all(|sum| !untouched.contains(sum)));
    let found = blocks.has_blocks(hashes).await;
    assert!(found.iter().enumerate().all(|(at, (_, size))| size.is_some() == (at % 2 == 0)));
    // Only workers have the addresses of a logical layout.
    assert_eq!(good(&blocks.get_blocks(even, LogicalLayoutHandle::G2, vec![0, 1, 2]).await), 0);
}

#[tokio::test]
async fn another_model_rank_or_shape_finds_nothing() {
    let host = Host::start();
    let (from, other) = (private(64), private(32));
    moved(&host.blocks(MODEL, &from), &from, &private(64)).await;
    let options = || Options::new(host.socket());
    for blocks in [
        host.blocks("llama-3-70b rev 2 bf16 NHD", &from),
        KvrailBlocks::new(options(), MODEL, (1, 2), &from).unwrap(),
        host.blocks(MODEL, &other),
    ] {
        let found = blocks.has_blocks(hashes(4)).await;
        assert!(found.iter().all(|(_, size)| size.is_none()), "{found:?}");
    }
    let blocks = host.blocks(MODEL, &from);
    let got = blocks.get_blocks_with_layout(hashes(4), other, vec![0, 1, 2, 3]).await;
    assert_eq!(good(&got), 0, "another shape than the client was made for");
    assert!(KvrailBlocks::new(options(), "", RANK, &from).is_err());
}

#[tokio::test]
async fn a_restarted_sidecar_is_found_again() {
    let mut host = Host::start();
    let (from, into) = (shared(256), shared(256));
    let blocks = host.blocks(MODEL, &from);
    moved(&blocks, &from, &into).await;
    settled();
    host.kill();
    assert!(blocks.has_blocks(hashes(4)).await.iter().all(|(_, size)| size.is_none()));
    host.serve("unlimited");
    let begun = Instant::now();
    while blocks.has_blocks(hashes(BLOCKS)).await.iter().any(|(_, size)| size.is_none()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "blocks are gone");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    moved(&blocks, &from, &into).await;
    settled();
    // Killed and started between two calls: the next call does not even fail.
    host.kill();
    host.serve("unlimited");
    moved(&blocks, &from, &into).await;
    assert_eq!(blocks.copied_bytes(), 0);
}

#[tokio::test]
async fn a_store_that_takes_nothing_answers() {
    let host = Host::with("64MiB", "0.001dwpd");
    let from = shared(2048);
    let (blocks, ids) = (host.blocks(MODEL, &from), (0..BLOCKS).collect::<Vec<_>>());
    fill_blocks(&from, &ids, FillPattern::Sequential).unwrap();
    // Blocks are taken until the store was full once.
    let mut taken = Vec::new();
    for turn in 0..4 {
        let hashes = hashes_of(turn, BLOCKS);
        let put = blocks.put_blocks_with_layout(hashes.clone(), from.clone(), ids.clone()).await;
        assert_eq!(put.len(), BLOCKS);
        taken.push(good(&put));
        let there =
            blocks.has_blocks(hashes).await.iter().filter(|block| block.1.is_some()).count();
        assert!(there <= good(&put), "{there} of {taken:?}");
    }
    assert!(taken[0] > 0 && taken[1..] == [0; 3], "{taken:?}");
}

#[tokio::test]
async fn blocks_longer_than_a_stores_are_refused() {
    let host = Host::with("64MiB", "unlimited");
    for (inner, taken) in [(8 << 10, 2), (16 << 10, 0)] {
        let from = private(inner); // 2 MiB, 4 MiB
        let blocks = host.blocks(MODEL, &from);
        let put = blocks.put_blocks_with_layout(hashes(2), from, vec![0, 1]).await;
        assert_eq!((put.len(), good(&put)), (2, taken));
    }
}

#[tokio::test]
async fn calls_return_by_their_deadlines() {
    let host = Host::start();
    let (from, hashes) = (private(64), hashes(4));
    let blocks = host.blocks(MODEL, &from);
    let into = shared(64);
    moved(&blocks, &from, &into).await;
    fill_blocks(&into, &[0, 1, 2, 3], FillPattern::Constant(0xee)).unwrap();
    host.signal("-STOP"); // as if each of its drives hung
    // Memory that a drive may still write into is not given back before it has answered.
    let got = blocks.get_blocks_with_layout(hashes, into.clone(), (0..4).collect());
    let got = tokio::spawn(got);
    tokio::time::sleep(Duration::from_millis(100)).await; // it has the queue now
    all_missed(&blocks, &from, 1.5).await;
    all_missed(&blocks, &from, 1.5).await;
    assert!(!got.is_finished());
    host.signal("-CONT");
    assert_eq!(good(&got.await.unwrap()), 4);
    assert_eq!(sums(&into, 0..4), sums(&from, 0..4));
    moved(&blocks, &from, &private(64)).await;
}

/// The kernel shows when the drives of a sidecar that was killed write no memory any more.
#[tokio::test]
async fn memory_is_kept_from_kvbm_while_drives_may_write_it() {
    for answers in [true, false] {
        let mut host = Host::start();
        let (from, into) = (private(64), shared(64));
        let blocks = host.blocks(MODEL, &from);
        moved(&blocks, &from, &into).await;
        // As a ring that the kernel cannot end.
        let watch = Client::attach(host.socket()).unwrap().watch_transfers().unwrap().unwrap();
        let end = format!("/proc/self/fd/{}", watch.as_raw_fd());
        let drive = (!answers).then(|| File::options().write(true).open(end).unwrap());
        host.signal("-STOP");
        let got = blocks.get_blocks_with_layout(hashes(4), into.clone(), (0..4).collect());
        let got = tokio::spawn(got);
        tokio::time::sleep(Duration::from_millis(100)).await; // it is in flight now
        host.kill();
        if !answers {
            tokio::time::sleep(Duration::from_secs(6)).await; // more than where nothing shows it
            assert!(!got.is_finished());
        }
        drop(drive);
        let begun = Instant::now();
        assert_eq!(good(&got.await.unwrap()), 0);
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn an_absent_sidecar_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    tracing_subscriber::fmt().with_writer(File::create(&log).unwrap()).init();
    let (socket, from) = (folder.path().join("absent"), private(64));
    let blocks = KvrailBlocks::new(Options::new(&socket), MODEL, RANK, &from).unwrap();
    for _ in 0..3 {
        all_missed(&blocks, &from, 0.5).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    let log = std::fs::read_to_string(log).unwrap();
    let logged: Vec<_> =
        log.lines().filter(|line| line.contains(socket.to_str().unwrap())).collect();
    assert!(logged.len() == 1 && logged[0].contains("ERROR"), "{log}");
}

/// Gets 4 blocks, puts them and looks them up: in vain, and within this number of seconds each.
async fn all_missed(blocks: &KvrailBlocks, layout: &PhysicalLayout, most: f64) {
    let (hashes, ids) = (hashes(4), vec![0, 1, 2, 3]);
    let mut begun = Instant::now();
    let mut in_time = |call: &str| {
        let seconds = begun.elapsed().as_secs_f64();
        assert!(seconds < most, "{call}: {seconds} s");
        begun = Instant::now();
    };
    let got = blocks.get_blocks_with_layout(hashes.clone(), layout.clone(), ids.clone()).await;
    in_time("get");
    let put = blocks.put_blocks_with_layout(hashes.clone(), layout.clone(), ids).await;
    in_time("put");
    let found = blocks.has_blocks(hashes).await;
    in_time("has");
    assert_eq!((got.len(), good(&got), put.len(), good(&put)), (4, 0, 4, 0));
    assert_eq!(found.iter().map(|block| block.1).collect::<Vec<_>>(), [None; 4]);
}
