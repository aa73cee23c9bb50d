//! Calls of the control thread: namespaces, grants, and what becomes of their blocks.

use kvrail_poller::{PollerCommand, SessionSlot, StoreAsk, StoreCall, StoreFound};
use kvrail_ring::{Opcode, Request, Status, keys_slot};
use kvrail_store::{Cursor, Explained, Fault, Gone, Key, SpaceId, StartError, Status as Ending};

use super::rig::{HANDLE, Rig, block, drop_slot, keyed};

#[test]
fn namespaces_are_made_listed_cleared_and_removed() {
    let mut rig = Rig::new(512);
    assert_eq!(rig.make_space("second", 2_000), Ending::Ok);
    assert_eq!(rig.make_space("second", 3_000), Ending::Invalid(Fault::Identity));
    let made = rig.call(StoreAsk::Create {
        name: "third".to_owned(),
        document: b"{\"dtype\":\"fp8\"}".to_vec(),
        uid: 4_000,
    });
    assert_eq!((made.status, made.uid_mark), (Ending::Ok, 4_000));
    assert_eq!((made.spaces.len(), &*made.spaces[0].name), (1, "third"));
    let survey = rig.call(StoreAsk::Survey);
    let names: Vec<_> = survey.spaces.iter().map(|it| (&*it.name, it.uid)).collect();
    assert_eq!(names, [("first", 1_000), ("second", 2_000), ("third", 4_000)]);
    assert_eq!(survey.spaces[2].document, b"{\"dtype\":\"fp8\"}");
    let removed = survey.spaces[1].id;
    assert_eq!(rig.call(StoreAsk::Remove { space: removed }).status, Ending::Ok);
    assert_eq!(rig.call(StoreAsk::Remove { space: removed }).status, Ending::Invalid(Fault::Space));
    let mut rig = rig.restart();
    let survey = rig.call(StoreAsk::Survey);
    let names: Vec<_> = survey.spaces.iter().map(|it| &*it.name).collect();
    assert_eq!((names, survey.uid_mark), (vec!["first", "third"], 4_000));
    let session = SessionSlot(1);
    assert_eq!(rig.grant(session, 1, SpaceId::NONE), Ending::Invalid(Fault::Space));
    let (space, _) = rig.space("third");
    assert_eq!(rig.grant(session, 256, space), Ending::Invalid(Fault::Limit));
}

#[test]
fn a_cleared_namespace_is_stale_until_it_is_opened_again() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let (key, bytes) = (Key::of(1, 1), block(1, 3000));
    assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::Ok);
    let (space, _) = rig.space("first");
    let cleared = rig.call(StoreAsk::Clear { space, uid: 5_000 });
    assert_eq!((cleared.status, cleared.spaces[0].uid), (Ending::Ok, 5_000));
    assert_eq!(rig.get(&mut client, key, 4096).0.status(), Status::Stale);
    assert_eq!(rig.put(&mut client, key, &bytes).status(), Status::Stale);
    let lookup = keys_slot(Opcode::Lookup, HANDLE, 0, &[1]);
    assert_eq!(rig.ask_one(&mut client, lookup).status(), Status::Stale);
    let never = Request { volume: 4, ..lookup };
    assert_eq!(rig.ask_one(&mut client, never).status(), Status::Invalid);
    let again = cleared.spaces[0].id;
    assert_eq!(rig.grant(client.session, HANDLE, again), Ending::Ok);
    assert_eq!(rig.get(&mut client, key, 4096).0.status(), Status::Miss);
}

#[test]
fn handles_are_of_one_session() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let mut other = rig.stranger(1, 8);
    rig.put(&mut client, Key::of(1, 1), &block(1, 3000));
    let get = keyed(&other, Key::of(1, 1), (4096, 0), (0, 0)).slot(Opcode::Get);
    assert_eq!(rig.ask_one(&mut other, get).status(), Status::Invalid);
}

#[test]
fn a_store_that_does_not_start_says_why() {
    let rig = Rig::new(512);
    rig.own
        .sim
        .borrow_mut()
        .plan()
        .add(kvrail_device::Rule::always(kvrail_device::Fault::Error(Status::IoError)));
    let mut rig = rig.restart_failed();
    let call = rig.call_with(StoreCall::new(0, StoreAsk::Survey));
    assert!(matches!(call.start_error, Some(StartError::Super(_))), "{call:?}");
    assert_ne!(call.status, Ending::Ok);
}

/// All keys that listings say, page by page.
fn listed(rig: &mut Rig, space: SpaceId) -> Vec<Key> {
    let (mut keys, mut next) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = next {
        let call = rig.call_with(StoreCall::new(0, StoreAsk::List { space, from }));
        let StoreFound::Blocks(rows) = &call.found else { panic!("{call:?}") };
        assert_eq!((call.status, rows.is_readable), (Ending::Ok, true));
        keys.extend(rows.iter().map(|(row, _)| row.key));
        next = rows.next;
    }
    keys.sort_unstable();
    keys
}

#[test]
fn what_is_gone_is_told_before_the_next_page_of_a_listing() {
    let mut rig = Rig::new(512);
    let mut client = rig.client(0);
    let keys: Vec<Key> = (1..=90).map(|number| Key::of(number, number)).collect();
    for key in &keys {
        assert_eq!(rig.put(&mut client, *key, &block(1, 700)).status(), Status::Ok);
    }
    let (space, uid) = rig.space("first");
    assert_eq!(listed(&mut rig, space), keys);
    let drop = drop_slot(Opcode::Drop, keys[4], 0);
    let dropped = rig.ask_one(&mut client, drop);
    assert_eq!((dropped.status(), dropped.bytes), (Status::Ok, 700), "what it had");
    rig.own.notices.clear();
    // Nobody lent a batch: the page waits for one.
    let ask = StoreAsk::List { space, from: Cursor::default() };
    rig.mailbox.send(PollerCommand::Store(0, StoreCall::new(0, ask))).unwrap();
    rig.pass(5_000_000);
    assert!(rig.mailbox.next_gone().is_none() && rig.own.notices.is_empty());
    rig.mailbox.lend_batches();
    rig.until(|rig| !rig.own.notices.is_empty());
    let batch = rig.mailbox.next_gone().expect("told before the page");
    let told: Vec<_> = batch.iter().map(|(row, _)| (row.uid, row.key, row.why)).collect();
    assert_eq!((told, batch.lost), (vec![(uid, keys[4], Gone::Dropped)], 0));
    rig.mailbox.return_batch(batch);
    rig.own.notices.clear();
    assert_eq!(listed(&mut rig, space).len(), 89);
    for (key, there) in [(keys[3], true), (keys[4], false)] {
        let call = rig.call_with(StoreCall::new(0, StoreAsk::Explain { space, key }));
        let StoreFound::Key { known, .. } = call.found else { panic!("{call:?}") };
        assert_eq!(matches!(known, Some(Explained::There(_))), there, "{known:?}");
        assert_eq!(matches!(known, Some(Explained::Absent)), !there, "{known:?}");
    }
    let stale = StoreAsk::List { space: SpaceId::NONE, from: Cursor::default() };
    assert_eq!(rig.call(stale).status, Ending::Invalid(Fault::Space));
}
