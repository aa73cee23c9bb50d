//! Namespaces of a store outlive a killed sidecar, and the commands show and clear them.

use std::fs;
use std::os::unix::fs::FileExt;

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PacketBuffer, SidecarMessage, Version, unspill,
};
use kvrail_ring::limits::LANE_VERSION;

use crate::rig::{Outcome, Place, Sidecar, eventually, kvrail, run, until_some};

/// Where a member's two supers begin: behind its label of 1 MiB.
const SUPERS: [u64; 2] = [1 << 20, (1 << 20) + (32 << 10)];

/// A client that uses the session socket only.
struct Plain {
    channel: Channel,
    seq: u64,
}

impl Plain {
    fn attach(sidecar: &Sidecar) -> Self {
        let channel = Channel::connect(sidecar.socket()).expect("the sidecar listens");
        let mut plain = Self { channel, seq: 0 };
        let (protocol, lane_version) = (Version::CURRENT, LANE_VERSION);
        let (name, library) = ("plain".into(), "plain 1".into());
        let hello = ControlRequest::Hello(Hello { protocol, lane_version, name, library });
        assert!(matches!(plain.ask(hello), ControlReply::Welcome(_)));
        plain
    }

    fn ask(&mut self, ask: ControlRequest) -> ControlReply {
        self.seq += 1;
        let message = ClientMessage { seq: self.seq, ask };
        self.channel.send(&message, &[]).expect("the sidecar reads");
        let received = until_some("an answer", || {
            let mut buffer = PacketBuffer::default();
            match self.channel.receive::<SidecarMessage>(&mut buffer, FDS_MAX).and_then(unspill) {
                Ok(packet) => Some(packet.message),
                Err(ChannelError::WouldBlock) => None,
                Err(error) => panic!("{error}"),
            }
        });
        match received {
            SidecarMessage::Reply { answer, .. } => answer,
            other => panic!("{other:?}"),
        }
    }

    /// The uid of a namespace, and whether it was made just now.
    fn open(&mut self, name: &str) -> (u64, bool) {
        let identity = r#"{"model":"m"}"#.into();
        let ask =
            ControlRequest::OpenNamespace { volume: 0, name: name.into(), identity, create: true };
        match self.ask(ask) {
            ControlReply::Namespace { uid, created, .. } => (uid, created),
            other => panic!("{other:?}"),
        }
    }
}

fn store(place: &Place, words: &[&str]) -> Outcome {
    run(kvrail().arg("store").args(words).arg("--socket").arg(place.socket()))
}

#[test]
fn namespaces_outlive_a_killed_sidecar() {
    let place = Place::with_store(2, 32 << 20);
    let sidecar = Sidecar::start(&place);
    let (kept, created) = Plain::attach(&sidecar).open("kept");
    assert!(created);
    sidecar.kill();
    for _ in 0..3 {
        let sidecar = Sidecar::start(&place);
        assert_eq!(Plain::attach(&sidecar).open("kept"), (kept, false));
        sidecar.kill();
    }
    let sidecar = Sidecar::start(&place);
    let listed = store(&place, &["namespaces", "--format", "json"]);
    assert!(listed.stdout.contains(&kept.to_string()), "{}", listed.stdout);
    store(&place, &["clear", "kept"]).expect(2, &["not confirmed", "--yes kept"]);
    store(&place, &["clear", "other", "--yes", "other"]).expect(1, &["no namespace \"other\""]);
    store(&place, &["clear", "kept", "--yes", "kept"]).expect(0, &[]);
    let (cleared, created) = Plain::attach(&sidecar).open("kept");
    assert!(cleared > kept && !created);
    let shown = store(&place, &["status"]).stdout;
    assert!(shown.contains("serving") && shown.contains("member-1"), "{shown}");
    let counts = || {
        let report = sidecar.status();
        let counts = report.shards.iter().map(|shard| (shard.namespaces, shard.namespaces_max));
        counts.collect::<Vec<_>>()
    };
    eventually("both members have one of 32", || counts() == [(1, 32); 2]);
    store(&place, &["remove", "kept", "--yes", "kept"]).expect(0, &[]);
    eventually("it is removed", || counts() == [(0, 32); 2]);
    let (made, created) = Plain::attach(&sidecar).open("kept");
    assert!(made > cleared && created, "a uid is never used twice");
    let log = sidecar.stop();
    // Each change has its author.
    let own = format!("uid {}", rustix::process::getuid().as_raw());
    for what in ["cleared", "removed", "made"] {
        let what = format!("kvrail::audit: store kv: namespace \"kept\" {what} by=");
        let line = log.lines().find(|line| line.contains(&what));
        let line = line.unwrap_or_else(|| panic!("no {what:?} in {log}"));
        assert!(line.contains(&own), "{line}");
    }
}

#[test]
fn a_store_whose_supers_are_damaged_is_refused_with_its_member() {
    let place = Place::with_store(2, 32 << 20);
    let member = fs::File::options().write(true).open(&place.members[1]).expect("our file");
    // One copy is enough.
    member.write_all_at(&[0xff; 64], SUPERS[0] + 64).expect("our file");
    let sidecar = Sidecar::start(&place);
    Plain::attach(&sidecar).open("a");
    sidecar.stop();
    for at in SUPERS {
        member.write_all_at(&[0xff; 64], at + 64).expect("our file");
    }
    let words = ["member-1", "both supers are damaged", "kvrail store erase"];
    run(&mut place.serve()).expect(3, &words);
}
