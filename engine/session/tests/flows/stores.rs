//! Namespaces over the session socket, with stores that stand-in pollers keep.

use std::time::Duration;

use crate::hostile::{Rude, still_serves};
use crate::shards::{Medium, SPACES, Shard, medium};
use crate::sidecar::{Sidecar, eventually};
use kvrail_client::{Client, Pages};
use kvrail_poller::Permit;
use kvrail_protocol::{ControlReply, ControlRequest, ListCursor, SidecarMessage};
use kvrail_ring::Status;
use kvrail_session::{Access, Patience, Right, Tenancy};

const IDENTITY: &str = r#"{"layers":32,"model":"llama"}"#;

fn open_ask(name: &str, identity: &str) -> ControlRequest {
    ControlRequest::OpenNamespace {
        volume: 1,
        name: name.into(),
        identity: identity.into(),
        create: true,
    }
}

fn clear_ask(name: &str) -> ControlRequest {
    ControlRequest::ClearNamespace { volume: 1, name: name.into() }
}

fn answer(rude: &mut Rude, ask: ControlRequest) -> ControlReply {
    match rude.ask(ask, &[]) {
        SidecarMessage::Reply { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

/// Handle, uid, and whether it was made just now.
fn opened(rude: &mut Rude, name: &str) -> (u16, u64, bool) {
    match answer(rude, open_ask(name, IDENTITY)) {
        ControlReply::Namespace { handle, uid, created } => (handle, uid, created),
        other => panic!("{other:?}"),
    }
}

fn denied(answer: ControlReply) -> (Status, String) {
    match answer {
        ControlReply::Error { status, message } => (status, message),
        other => panic!("not denied: {other:?}"),
    }
}

fn media() -> [Medium; 2] {
    [medium(), medium()]
}

/// A sidecar on these media, and what its shards do.
fn start(media: &[Medium; 2]) -> Sidecar {
    Sidecar::start_stores(media, |config| {
        let stall_after = Duration::from_millis(200);
        config.policy.patience = Patience { stall_after, ..Patience::default() };
    })
}

fn shard<T>(sidecar: &Sidecar, member: usize, look: impl FnOnce(&Shard) -> T) -> T {
    look(&sidecar.shards[member].lock().unwrap())
}

#[test]
fn a_namespace_is_made_on_all_members_and_opened_before_the_answer() {
    let media = media();
    let sidecar = start(&media);
    let (mut one, mut other) = (Rude::attach(&sidecar), Rude::attach(&sidecar));
    let (handle, uid, created) = opened(&mut one, "a");
    assert!(created && uid > 0);
    for member in [0, 1] {
        assert_eq!(shard(&sidecar, member, |shard| shard.uid_of("a")), Some(uid));
        assert_eq!(shard(&sidecar, member, |shard| shard.meaning(handle)), Some(uid));
    }
    assert_eq!(opened(&mut one, "a"), (handle, uid, false), "the same handle each time");
    let (second, other_uid, _) = opened(&mut one, "b");
    assert!(second != handle && other_uid > uid);
    assert_eq!(opened(&mut other, "b"), (0, other_uid, false));
    // It is there after a restart, with its uid.
    drop(sidecar);
    let sidecar = start(&media);
    let mut again = Rude::attach(&sidecar);
    assert_eq!(opened(&mut again, "a"), (0, uid, false));
    match answer(&mut again, ControlRequest::ListNamespaces { volume: 1 }) {
        ControlReply::Namespaces(all) => {
            let names: Vec<_> = all.iter().map(|space| (space.name.as_str(), space.uid)).collect();
            assert_eq!(names, [("a", uid), ("b", other_uid)]);
            assert_eq!(all[0].identity, IDENTITY);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_identity_is_refused_with_the_field_that_differs() {
    let sidecar = start(&media());
    let mut rude = Rude::attach(&sidecar);
    let (_, uid, _) = opened(&mut rude, "a");
    let (status, message) =
        denied(answer(&mut rude, open_ask("a", r#"{"layers":33,"model":"llama"}"#)));
    assert_eq!(status, Status::Invalid);
    assert!(message.contains("layers is 32 in the store and 33 here"), "{message}");
    // The same document, written otherwise.
    let same = open_ask("a", "{ \"model\": \"llama\",\n \"layers\": 32 }");
    assert!(
        matches!(answer(&mut rude, same), ControlReply::Namespace { uid: same, .. } if same == uid)
    );
}

#[test]
fn what_was_cleared_is_stale_until_it_is_opened_again() {
    let sidecar = start(&media());
    let (mut one, mut other) = (Rude::attach(&sidecar), Rude::attach(&sidecar));
    let (handle, uid, _) = opened(&mut one, "a");
    let ControlReply::Namespace { uid: next, .. } = answer(&mut other, clear_ask("a")) else {
        panic!("not cleared")
    };
    assert!(next > uid);
    for member in [0, 1] {
        assert_eq!(shard(&sidecar, member, |shard| shard.uid_of("a")), Some(next));
        assert_eq!(shard(&sidecar, member, |shard| shard.meaning(handle)), None, "stale");
    }
    assert_eq!(opened(&mut one, "a"), (handle, next, false));
    assert_eq!(shard(&sidecar, 1, |shard| shard.meaning(handle)), Some(next));
    let remove = || ControlRequest::RemoveNamespace { volume: 1, name: "a".into() };
    assert_eq!(answer(&mut other, remove()), ControlReply::NamespaceRemoved);
    assert_eq!(shard(&sidecar, 0, |shard| shard.uid_of("a")), None);
    assert_eq!(denied(answer(&mut other, remove())).0, Status::Miss);
    assert_eq!(denied(answer(&mut other, clear_ask("a"))).0, Status::Miss);
    let absent = ControlRequest::OpenNamespace {
        volume: 1,
        name: "a".into(),
        identity: "{}".into(),
        create: false,
    };
    assert_eq!(denied(answer(&mut one, absent)).0, Status::Miss);
    let (same, last, created) = opened(&mut one, "a");
    assert!(same == handle && last > next && created);
}

#[test]
fn what_a_crash_left_half_done_is_finished_by_the_next_open() {
    let media = media();
    let mut members = [0, 1].map(|member| Shard::start(&media[usize::from(member)], member));
    assert_eq!(members[0].create("half", IDENTITY, 9), kvrail_store::Status::Ok);
    assert_eq!(members[0].create("apart", IDENTITY, 11), kvrail_store::Status::Ok);
    assert_eq!(members[1].create("apart", IDENTITY, 30), kvrail_store::Status::Ok);
    drop(members);
    let sidecar = start(&media);
    let mut rude = Rude::attach(&sidecar);
    // Member 1 had a higher uid since: both get a new one.
    let (_, half, created) = opened(&mut rude, "half");
    assert!(half > 30 && !created);
    let (_, apart, _) = opened(&mut rude, "apart");
    for member in [0, 1] {
        assert_eq!(shard(&sidecar, member, |shard| shard.uid_of("half")), Some(half));
        assert_eq!(shard(&sidecar, member, |shard| shard.uid_of("apart")), Some(apart));
    }
}

#[test]
fn asks_that_make_no_sense_are_refused_each_with_its_limit() {
    let sidecar = start(&media());
    let mut rude = Rude::attach(&sidecar);
    let long = "n".repeat(65);
    let cases = [
        (open_ask("", IDENTITY), Status::Invalid, "1 to 64 bytes"),
        (open_ask(&long, IDENTITY), Status::Invalid, "65 bytes"),
        (open_ask("a\nb", IDENTITY), Status::Invalid, "control characters"),
        (open_ask("a", "[]"), Status::Invalid, "no JSON object"),
        (open_ask("a", &" ".repeat(5000)), Status::Invalid, "4096 are the most"),
        (ControlRequest::ListNamespaces { volume: 0 }, Status::Invalid, "volume 0 is no store"),
        (ControlRequest::ListNamespaces { volume: 9 }, Status::Invalid, "volume 9 is no store"),
    ];
    for (ask, status, words) in cases {
        let (found, message) = denied(answer(&mut rude, ask));
        assert!(found == status && message.contains(words), "{found}: {message}");
    }
    for at in 0..SPACES {
        opened(&mut rude, &at.to_string());
    }
    let (status, message) = denied(answer(&mut rude, open_ask("more", IDENTITY)));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("room for 4 namespaces") && message.contains("remove"), "{message}");
    still_serves(&sidecar);
}

#[test]
fn an_asker_that_dies_takes_nothing_with_it() {
    let sidecar = start(&media());
    let mut patient = Rude::attach(&sidecar);
    sidecar.switches.stall[1].on();
    for at in 0..3 {
        let mut dying = Rude::attach(&sidecar);
        dying.send(open_ask("a", IDENTITY), &[]).unwrap();
        dying.send(clear_ask("a"), &[]).unwrap();
        if at == 2 {
            patient.send(open_ask("b", IDENTITY), &[]).unwrap();
        }
    }
    let (status, message) = denied(patient.hear_answer());
    assert_eq!(status, Status::DeviceDegraded);
    assert!(message.contains("store shelf: poller 1 (stalled"), "{message}");
    // A raw volume's clients never notice.
    let client = Client::attach(sidecar.socket()).unwrap();
    client.create_arena(1 << 20, Pages::Base).unwrap();
    sidecar.switches.stall[1].off();
    eventually("it turns again", || client.status().unwrap().pollers[1].stalled.is_none());
    let (_, uid, _) = opened(&mut patient, "b");
    assert_eq!(shard(&sidecar, 1, |shard| shard.uid_of("b")), Some(uid));
    // Those that died were granted nothing, and what they had is back.
    eventually("the dead are gone", || client.status().unwrap().sessions.len() == 2);
}

#[test]
fn one_client_cannot_queue_up_without_end() {
    let sidecar = start(&media());
    let mut rude = Rude::attach(&sidecar);
    sidecar.switches.stall[1].on();
    for _ in 0..33 {
        rude.send(ControlRequest::ListNamespaces { volume: 1 }, &[]).unwrap();
    }
    let (status, message) = denied(rude.hear_answer());
    assert_eq!(status, Status::Quota);
    assert!(message.contains("32 requests"), "{message}");
    sidecar.switches.stall[1].off();
    for _ in 0..32 {
        let _answered = rude.hear_answer();
    }
    still_serves(&sidecar);
}

#[test]
fn an_arena_with_tails_stays_while_its_queue_lives() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let arena =
        ControlRequest::CreateArena { bytes: 8 * 4096, pages: kvrail_protocol::Pages::Base };
    let ControlReply::Arena { region, .. } = answer(&mut rude, arena) else { panic!("no arena") };
    let open = |depth, tails| ControlRequest::OpenQueue { depth, tails: Some(tails) };
    let (status, message) = denied(answer(&mut rude, open(16, region)));
    assert_eq!(status, Status::Invalid);
    assert!(message.contains("needs 65536") && message.contains("32768 bytes"), "{message}");
    let (_, message) = denied(answer(&mut rude, open(8, region + 1)));
    assert!(message.contains("no attached arena"), "{message}");
    let ControlReply::Queue { queue, .. } = answer(&mut rude, open(8, region)) else {
        panic!("no queue")
    };
    let detach = || ControlRequest::DetachArena { region };
    let (status, message) = denied(answer(&mut rude, detach()));
    assert_eq!(status, Status::Invalid);
    assert!(message.contains("holds the tails of queue 0"), "{message}");
    assert_eq!(
        answer(&mut rude, ControlRequest::CloseQueue { queue }),
        ControlReply::QueueClosed { queue }
    );
    assert_eq!(answer(&mut rude, detach()), ControlReply::Detached { region });
}

/// A sidecar where this user has these rights on namespaces with a prefix, and is no operator.
fn tenanted(media: &[Medium; 2], rights: &[(&str, Right)]) -> Sidecar {
    let me = rustix::process::geteuid().as_raw();
    let tenancy = |(namespaces, right): &(&str, Right)| Tenancy {
        namespaces: (*namespaces).to_owned(),
        uids: vec![me],
        gids: Vec::new(),
        right: *right,
        namespaces_max: namespaces.starts_with("few").then_some(2),
    };
    let tenants = rights.iter().map(tenancy).collect();
    Sidecar::start_stores(media, |config| {
        config.policy.access = Access { uids: vec![me], ..Access::default() };
        config.policy.tenants = vec![Vec::new(), tenants];
    })
}

#[test]
fn tenants_do_what_they_may_and_hear_what_they_may_not() {
    let media = media();
    let free = start(&media);
    let mut operator = Rude::attach(&free);
    for name in ["mine", "shared", "theirs"] {
        opened(&mut operator, name);
    }
    drop((operator, free));

    let rights = [("mine", Right::Own), ("shared", Right::Read), ("new*", Right::Write)];
    let sidecar = tenanted(&media, &rights);
    let mut rude = Rude::attach(&sidecar);
    let mut refused = |ask: ControlRequest, words: &str| {
        let (status, message) = denied(answer(&mut rude, ask));
        assert_eq!(status, Status::Denied, "{message}");
        assert!(message.contains(words) && message.contains("volume.tenant"), "{words}: {message}");
    };
    let (clear, remove) =
        (clear_ask, |name: &str| ControlRequest::RemoveNamespace { volume: 1, name: name.into() });
    let list = |name: &str| ControlRequest::ListBlocks {
        volume: 1,
        name: name.into(),
        from: ListCursor::default(),
    };
    let explain = |name: &str| ControlRequest::ExplainKey { volume: 1, name: name.into(), key: 1 };
    refused(
        open_ask("theirs", IDENTITY),
        "may not open namespace \"theirs\": its rights are \"noth",
    );
    refused(open_ask("unheard of", IDENTITY), "may not open");
    refused(clear("shared"), "may not clear");
    refused(remove("shared"), "may not remove");
    refused(clear("theirs"), "may not clear");
    refused(clear("new one"), "\"write\"");
    refused(list("theirs"), "may not list");
    refused(explain("theirs"), "may not ask");
    match answer(&mut rude, ControlRequest::ListNamespaces { volume: 1 }) {
        ControlReply::Namespaces(all) => {
            let names: Vec<_> = all.iter().map(|space| space.name.as_str()).collect();
            assert_eq!(names, ["mine", "shared"], "theirs is not shown");
        }
        other => panic!("{other:?}"),
    }
    let names = [("mine", Permit::Write), ("shared", Permit::Read), ("new one", Permit::Write)];
    for (name, permit) in names {
        let (handle, _, created) = opened(&mut rude, name);
        assert_eq!(created, name == "new one");
        let granted = shard(&sidecar, 1, |shard| {
            let at = shard.grants.iter().position(|(_, granted, ..)| *granted == handle);
            shard.permits[at.expect("it was granted")]
        });
        assert_eq!(granted, permit, "{name}");
    }
    assert!(matches!(answer(&mut rude, clear_ask("mine")), ControlReply::Namespace { .. }));
    assert_eq!(answer(&mut rude, remove("mine")), ControlReply::NamespaceRemoved);
}

#[test]
fn who_may_only_read_makes_nothing() {
    let sidecar = tenanted(&media(), &[("*", Right::Read)]);
    let mut rude = Rude::attach(&sidecar);
    let (status, message) = denied(answer(&mut rude, open_ask("a", IDENTITY)));
    assert_eq!(status, Status::Miss, "{message}");
    assert_eq!(shard(&sidecar, 0, |shard| shard.uid_of("a")), None);
}

#[test]
fn a_tenant_makes_so_many_namespaces_and_removes_what_it_made() {
    let media = media();
    let free = start(&media);
    let mut operator = Rude::attach(&free);
    opened(&mut operator, "few 0");
    drop((operator, free));
    let sidecar = tenanted(&media, &[("few*", Right::Write)]);
    sidecar.shards[1].lock().unwrap().put("few 0");
    let mut rude = Rude::attach(&sidecar);
    let remove = |name: &str| ControlRequest::RemoveNamespace { volume: 1, name: name.into() };
    opened(&mut rude, "few 0");
    opened(&mut rude, "few 1");
    let (status, message) = denied(answer(&mut rude, open_ask("few 2", IDENTITY)));
    assert_eq!(status, Status::Quota);
    assert!(message.contains("2 is the most (volume.tenant.namespaces_max)"), "{message}");
    opened(&mut rude, "few 1"); // what is there is opened all the same
    let (status, message) = denied(answer(&mut rude, remove("few 0")));
    assert_eq!(status, Status::Denied, "another program made it, and it has blocks: {message}");
    assert_eq!(answer(&mut rude, remove("few 1")), ControlReply::NamespaceRemoved);
    let (status, _) = denied(answer(&mut rude, remove("few 1")));
    assert_eq!(status, Status::Miss);
    opened(&mut rude, "few 2");
}

#[test]
fn presence_tables_are_for_who_has_a_namespace_open() {
    let sidecar = tenanted(&media(), &[("mine", Right::Write)]);
    let mut rude = Rude::attach(&sidecar);
    let show = || ControlRequest::ShowPresence { volume: 1 };
    let (status, message) = denied(answer(&mut rude, show()));
    assert!(status == Status::Denied && message.contains("open one first"), "{message}");
    opened(&mut rude, "mine");
    assert!(matches!(answer(&mut rude, show()), ControlReply::Presence { .. }));
}

#[test]
fn who_cannot_watch_transfers_is_refused() {
    let sidecar = Sidecar::start_stores(&media(), |_| {});
    let mut rude = Rude::attach(&sidecar);
    let (status, message) = denied(answer(&mut rude, ControlRequest::WatchTransfers));
    assert!(status == Status::Invalid && message.contains("nothing shows"), "{message}");
}

/// Blocks of all namespaces lie side by side in a memory tier.
#[test]
fn memory_tiers_are_for_clients_that_may_read_all_of_a_store() {
    let show = || ControlRequest::ShowTier { volume: 1 };
    let sidecar = tenanted(&media(), &[("mine", Right::Own)]);
    let mut rude = Rude::attach(&sidecar);
    opened(&mut rude, "mine");
    let (status, message) = denied(answer(&mut rude, show()));
    assert!(status == Status::Denied && message.contains("may read all"), "{message}");
    let hold = || ControlRequest::HoldBlocks { volume: 1 };
    let (status, message) = denied(answer(&mut rude, hold()));
    assert!(status == Status::Denied && message.contains("is shown a memory tier"), "{message}");
    drop(sidecar);
    let sidecar = Sidecar::start_stores(&media(), |_| {});
    let mut rude = Rude::attach(&sidecar);
    let (status, message) = denied(answer(&mut rude, show()));
    assert!(status == Status::Denied && message.contains("open one first"), "{message}");
    opened(&mut rude, "mine");
    assert_eq!(answer(&mut rude, show()), ControlReply::Tier { members: vec![0, 0] });
    let (status, message) = denied(answer(&mut rude, hold()));
    assert!(status == Status::Denied && message.contains("is shown a memory tier"), "{message}");
    let (status, message) = denied(answer(&mut rude, ControlRequest::ShowTier { volume: 0 }));
    assert!(status == Status::Invalid && message.contains("no store"), "{message}");
}

/// A queue of a store has memory of its own, for the ends of blocks.
#[test]
fn a_queue_that_is_refused_leaves_no_memory_behind() {
    let sidecar =
        Sidecar::start_stores(&media(), |config| config.policy.limits.queues_per_session = 1);
    let client = Client::attach(sidecar.socket()).unwrap();
    let queue = client.open_queue(8).unwrap();
    let used = |client: &Client| {
        let report = client.status().unwrap();
        let own = report.sessions.iter().find(|it| it.id == client.session().0).unwrap();
        (own.queues, own.arenas)
    };
    let one = used(&client);
    for _ in 0..3 {
        let refused = client.open_queue(8).unwrap_err();
        assert!(refused.to_string().contains("limits.queues_per_session"), "{refused}");
    }
    eventually("the memory of refused queues is gone", || used(&client) == one);
    drop(queue);
    eventually("another queue", || client.open_queue(8).is_ok());
}
