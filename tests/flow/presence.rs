//! Presence tables: lookups without a request, by clients that can only read.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use kvrail_client::{BlockKey, BlockRequest, Lookup, LookupExtent, Presence, Status};
use kvrail_memory::{Region, Sealing, WordView};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PacketBuffer, SidecarMessage, Version, unspill,
};
use kvrail_ring::limits::LANE_VERSION;
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};

use crate::rig::{Place, Sidecar, StoreShape, eventually, write_records};
use crate::store_user::StoreUser;

/// Two members of 2,048 blocks.
fn place() -> Place {
    let shape = StoreShape { member_bytes: 16 << 20, segment_bytes: 1 << 20, block_mean: 8 << 10 };
    Place::with_shaped_store(2, &shape)
}

struct User(StoreUser);

impl User {
    fn open(sidecar: &Sidecar) -> Self {
        Self(StoreUser::open(sidecar))
    }

    fn put(&mut self, number: u64) {
        self.0.put(key(number), 8000, b"");
    }

    fn drop_block(&mut self, number: u64) {
        let dropped = self.0.run(BlockRequest::drop_block(&self.0.space, key(number)));
        assert_eq!(dropped, Status::Ok);
    }

    fn probe(&self, number: u64) -> Presence {
        self.0.space.probe(key(number))
    }

    /// A poller that gets no core for a while makes every answer `Maybe`: the test waits.
    fn sees(&self, number: u64, presence: Presence) {
        let mut answer = Presence::Maybe;
        eventually("an answer other than Maybe", || {
            answer = self.probe(number);
            answer != Presence::Maybe
        });
        assert_eq!(answer, presence, "block {number}");
    }

    /// The keys below this number that the store has, by lookups.
    fn there(&mut self, numbers: u64) -> BTreeSet<u64> {
        let keys: Vec<_> = (0..numbers).map(key).collect();
        let how = Lookup { extent: LookupExtent::All, ..Lookup::default() };
        let found = self.0.queue.lookup(&self.0.space, &keys, &how).unwrap();
        (0..).zip(found.there).filter(|(_, there)| *there).map(|(number, _)| number).collect()
    }
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

#[test]
fn an_acknowledged_block_is_never_absent_and_one_that_is_gone_rarely_present() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let (mut writer, mut reader) = (User::open(&sidecar), User::open(&sidecar));
    reader.sees(0, Presence::Absent);
    // Three times the capacity: the ring wraps, and blocks that are read move.
    for number in 0..12_000 {
        writer.put(number);
        assert_ne!(reader.probe(number), Presence::Absent, "{number} was acknowledged");
    }
    eventually("reclaim rests, and nearly all of what is gone is absent", || {
        let there = reader.there(12_000);
        let probed: Vec<_> = (0..12_000).map(|number| reader.probe(number)).collect();
        if reader.there(12_000) != there {
            return false;
        }
        let present = |number: u64| probed[usize::try_from(number).unwrap()];
        assert!(there.iter().all(|number| present(*number) != Presence::Absent));
        let gone = (0..12_000).filter(|number| !there.contains(number));
        let absent = gone.filter(|number| present(*number) == Presence::Absent).count();
        there.len() > 1000 && absent + there.len() > 11_900
    });
    // The prefix of a chain ends where a block was dropped.
    let first = *reader.there(12_000).iter().next_back().unwrap() - 20;
    let chain: Vec<_> = (first..first + 20).map(key).collect();
    let prefix = reader.0.space.probe_prefix(&chain);
    writer.drop_block(first + 7);
    assert_ne!(reader.probe(first + 7), Presence::Present);
    assert!(reader.0.space.probe_prefix(&chain) <= prefix.min(7));
    let found = reader.0.queue.lookup(&reader.0.space, &chain, &Lookup::default()).unwrap();
    assert!(found.prefix <= 7, "{found:?}");

    // Cleared by another client: every answer is `Maybe`, until the namespace is opened again.
    writer.0.space.clear().unwrap();
    assert_eq!(reader.probe(12_001), Presence::Maybe);
    writer.put(1);
    assert_ne!(reader.probe(1), Presence::Absent);
    reader.0.space.refresh().unwrap();
    reader.sees(1, Presence::Present);
    reader.sees(2, Presence::Absent);

    // Without a sidecar answers are `Maybe`, and the next one publishes the blocks that it found.
    write_records(&sidecar);
    sidecar.kill();
    eventually("the end is seen", || reader.probe(1) == Presence::Maybe);
    assert_eq!(reader.probe(2), Presence::Maybe);
    let sidecar = Sidecar::start(&place);
    let reader = User::open(&sidecar);
    reader.sees(2, Presence::Absent);
    reader.sees(1, Presence::Present);
    sidecar.stop();
}

/// The memory files of the tables, as a client without the library gets them.
fn tables(sidecar: &Sidecar) -> Vec<(OwnedFd, u64)> {
    let channel = Channel::connect(sidecar.socket()).expect("the sidecar listens");
    let (protocol, lane_version) = (Version::CURRENT, LANE_VERSION);
    let (name, library) = ("hostile".into(), "none".into());
    let mut last = (Vec::new(), Vec::new());
    let identity = r#"{"model":"test"}"#.to_owned();
    let open =
        ControlRequest::OpenNamespace { volume: 0, name: "main".into(), identity, create: false };
    let asks = [
        ControlRequest::Hello(Hello { protocol, lane_version, name, library }),
        open,
        ControlRequest::ShowPresence { volume: 0 },
    ];
    for (seq, ask) in (1..).zip(asks) {
        channel.send(&ClientMessage { seq, ask }, &[]).expect("the sidecar reads");
        eventually("an answer", || {
            let mut buffer = PacketBuffer::default();
            match channel.receive::<SidecarMessage>(&mut buffer, FDS_MAX).and_then(unspill) {
                Ok(packet) => match packet.message {
                    SidecarMessage::Reply {
                        answer: ControlReply::Presence { members }, ..
                    } => {
                        last = (packet.fds, members);
                        true
                    }
                    SidecarMessage::Reply { answer: ControlReply::Welcome(_), .. } => seq == 1,
                    SidecarMessage::Reply { answer: ControlReply::Namespace { .. }, .. } => {
                        seq == 2
                    }
                    other => panic!("{other:?}"),
                },
                Err(ChannelError::WouldBlock) => false,
                Err(error) => panic!("{error}"),
            }
        });
    }
    last.0.into_iter().zip(last.1).collect()
}

/// Whatever a client does with a table's file, no other client sees a change.
#[test]
fn a_table_can_only_be_read() {
    let place = place();
    let sidecar = Sidecar::start(&place);
    let mut writer = User::open(&sidecar);
    (0..500).for_each(|number| writer.put(number));
    let tables = tables(&sidecar);
    assert_eq!(tables.len(), 2);
    for (file, bytes) in &tables {
        let copy = || file.try_clone().expect("our own descriptor");
        for sealing in [Sealing::Size, Sealing::Optional] {
            Region::import_with(copy(), *bytes, sealing).expect_err("mapped for writing");
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = rustix::fs::open(path, OFlags::RDWR, Mode::empty());
        let files = [Some(copy()), again.ok()];
        for file in files.iter().flatten().map(AsFd::as_fd) {
            rustix::io::pwrite(file, &[0; 64], 64).expect_err("written");
            rustix::fs::ftruncate(file, 0).expect_err("shrunk");
            rustix::fs::ftruncate(file, bytes * 2).expect_err("grown");
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            for how in [punch, FallocateFlags::ZERO_RANGE, FallocateFlags::empty()] {
                let touched = rustix::fs::fallocate(file, how, 0, *bytes);
                assert!(touched.is_err() || how.is_empty(), "{how:?}");
            }
            rustix::fs::fcntl_add_seals(file, SealFlags::WRITE).expect_err("sealed once more");
        }
        WordView::open(copy(), *bytes).expect("mapped for reading");
    }
    assert!((0..500).all(|number| writer.probe(number) != Presence::Absent));
    writer.put(501);
    assert_ne!(writer.probe(501), Presence::Absent);
    sidecar.stop();
}
