//! The steps of one request about a namespace on all members: decided from their current states
//! after each round of calls. A clear, a removal or a creation that was interrupted anywhere is
//! therefore finished by the next open of the namespace.

use kvrail_poller::{Permit, SessionSlot, SpaceRecord, StoreAsk, StoreFound};
use kvrail_protocol::ListCursor;
use kvrail_ring::Status;
use kvrail_store::{Key, Members};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::Value;

use super::identity::{difference, stored};
use crate::failure::{Failure, invalid};
use crate::tenants::Rights;

/// Rounds of changes of one request at most: two are enough unless members change by themselves.
const ROUNDS_MAX: u32 = 4;

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) session: u64,
    pub(super) seq: u64,
    /// Its place in the pollers' tables, where it has one.
    pub(super) slot: Option<SessionSlot>,
    /// Its user.
    pub(super) uid: u32,
}

/// The desired operation.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    /// A namespace open in the asker's session.
    Open {
        name: String,
        document: String,
        identity: Value,
        create: Create,
        permit: Permit,
        rights: Rights,
    },
    /// All its blocks unreachable.
    Clear { name: String },
    /// Remove it. A client with write permission only gets the failure, unless it made the
    /// namespace or the namespace is empty.
    Remove { name: String, otherwise: Option<Failure> },
    /// All of them shown that the asker may read.
    List { rights: Rights },
    /// Some blocks of one shown.
    ListBlocks { name: String, from: ListCursor },
    /// The explanation of a key shown.
    Explain { name: String, key: Key },
}

impl Wish {
    /// The namespace it is about.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Open { name, .. }
            | Self::Clear { name }
            | Self::Remove { name, .. }
            | Self::ListBlocks { name, .. }
            | Self::Explain { name, .. } => Some(name),
            Self::List { .. } => None,
        }
    }
}

/// Whether a namespace that is not there may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Create {
    Allowed,
    Forbidden,
}

/// One member's copy of a namespace, and the highest uid it ever had.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberCopy<'a> {
    pub(super) space: Option<&'a SpaceRecord>,
    pub(super) mark: u64,
}

/// The next step.
#[derive(Debug)]
pub(super) enum NextStep {
    /// Send requests to these members, by their places, and look again.
    ControlRequest(Vec<(usize, StoreAsk)>),
    /// All members agree on this.
    Agreed { uid: u64 },
    /// No member has it any more.
    Gone,
    /// Its blocks can be listed.
    List { name: String, from: ListCursor },
    /// The member at this place has explained a key of the namespace with this uid.
    Explained { member: usize, uid: u64, key: Key },
    /// It cannot be.
    Refuse(Failure),
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobStage {
    /// Nothing was changed for it.
    New,
    /// Members have requests to change.
    Changing,
    /// Pollers have commands to grant a handle.
    Granting { handle: u16, uid: u64 },
}

/// One request.
#[derive(Debug)]
pub(super) struct StoreJob {
    /// `None` once it was answered, or the client is gone.
    pub(super) asker: Option<Asker>,
    pub(super) wish: Wish,
    /// The client, for the log.
    pub(super) by: String,
    pub(super) stage: JobStage,
    /// Members with a request in flight.
    pub(super) waiting: Vec<usize>,
    /// The first thing that went wrong.
    pub(super) failure: Option<Failure>,
    /// Whether the namespace was on no member.
    pub(super) created: bool,
    /// A member's explanation of a key.
    pub(super) found: StoreFound,
    /// The uid of a namespace that is made or cleared.
    uid: Option<u64>,
    rounds: u32,
}

impl StoreJob {
    pub(super) fn new(asker: Asker, by: String, wish: Wish) -> Self {
        Self {
            asker: Some(asker),
            wish,
            by,
            stage: JobStage::New,
            waiting: Vec::new(),
            failure: None,
            created: false,
            found: StoreFound::Nothing,
            uid: None,
            rounds: 0,
        }
    }

    /// The namespace it is about.
    pub(super) fn name(&self) -> Option<&str> {
        self.wish.name()
    }

    /// Decides from the states of all members.
    pub(super) fn next(&mut self, seen: &[MemberCopy<'_>], members: Members) -> NextStep {
        if self.rounds == ROUNDS_MAX {
            let message = "the members of the store do not agree on the namespace; ask again";
            return NextStep::Refuse((Status::Internal, message.into()));
        }
        let next = match (&self.wish, self.stage) {
            (Wish::Open { .. }, JobStage::New) => self.open(seen),
            (Wish::Clear { .. }, JobStage::New) => self.clear(seen),
            (Wish::Remove { .. }, _) => self.remove(seen),
            (Wish::ListBlocks { name, from }, _) => {
                let list = NextStep::List { name: name.clone(), from: *from };
                self.highest(seen).map(|_| list)
            }
            (Wish::Explain { key, .. }, _) => self.explain((seen, members), *key),
            _ => self.agree(seen),
        };
        match next {
            Ok(next) => {
                if matches!(next, NextStep::ControlRequest(_)) {
                    self.rounds += 1;
                    self.stage = JobStage::Changing;
                }
                next
            }
            Err(failure) => NextStep::Refuse(failure),
        }
    }

    fn open(&mut self, seen: &[MemberCopy<'_>]) -> Result<NextStep, Failure> {
        let Wish::Open { name, identity, create, .. } = &self.wish else {
            unreachable!("opens only")
        };
        for space in seen.iter().filter_map(|seen| seen.space) {
            if let Some(what) = difference(&stored(&space.document), identity) {
                return Err(invalid(format!(
                    "namespace {name:?} has another identity: {what}; open another name, or \
                     remove this one if it is not needed (kvrail store remove)"
                )));
            }
        }
        self.created = seen.iter().all(|seen| seen.space.is_none());
        if self.created && *create == Create::Forbidden {
            return Err(unknown(name));
        }
        self.agree(seen)
    }

    fn clear(&mut self, seen: &[MemberCopy<'_>]) -> Result<NextStep, Failure> {
        let uid = self.new_uid(seen)?;
        let spaces = seen.iter().enumerate().filter_map(|(at, it)| Some((at, it.space?)));
        let asks: Vec<_> =
            spaces.map(|(at, it)| (at, StoreAsk::Clear { space: it.id, uid })).collect();
        if asks.is_empty() {
            Err(unknown(self.name().unwrap_or_default()))
        } else {
            Ok(NextStep::ControlRequest(asks))
        }
    }

    fn remove(&mut self, seen: &[MemberCopy<'_>]) -> Result<NextStep, Failure> {
        let spaces = seen.iter().enumerate().filter_map(|(at, it)| Some((at, it.space?)));
        let asks: Vec<_> = spaces.map(|(at, it)| (at, StoreAsk::Remove { space: it.id })).collect();
        match (asks.is_empty(), self.stage) {
            (false, _) => Ok(NextStep::ControlRequest(asks)),
            (true, JobStage::New) => Err(unknown(self.name().unwrap_or_default())),
            (true, _) => Ok(NextStep::Gone),
        }
    }

    /// The namespace with the highest uid.
    fn highest<'a>(&self, seen: &[MemberCopy<'a>]) -> Result<&'a SpaceRecord, Failure> {
        let spaces = seen.iter().filter_map(|seen| seen.space);
        let highest = spaces.max_by_key(|space| space.uid);
        highest.ok_or_else(|| unknown(self.name().unwrap_or_default()))
    }

    /// Asks the one member that can have a key.
    fn explain(
        &self,
        (seen, members): (&[MemberCopy<'_>], Members),
        key: Key,
    ) -> Result<NextStep, Failure> {
        let uid = self.highest(seen)?.uid;
        let member = usize::from(members.place_of(uid, key.lo()));
        let space = seen[member].space.filter(|space| space.uid == uid);
        match (space, self.stage) {
            (_, JobStage::Changing) => Ok(NextStep::Explained { member, uid, key }),
            (Some(space), _) => Ok(NextStep::ControlRequest(vec![(
                member,
                StoreAsk::Explain { space: space.id, key },
            )])),
            // A crash has left this state; the next open mends it.
            (None, _) => Ok(NextStep::Refuse((
                Status::Stale,
                format!(
                    "member {member} lacks the namespace, or has it as it was before it was \
                     cleared; open it once, and ask again"
                ),
            ))),
        }
    }

    /// Brings all members to one uid: the highest there is, where those that lack it may still
    /// have it, else a new one for all.
    fn agree(&mut self, seen: &[MemberCopy<'_>]) -> Result<NextStep, Failure> {
        let highest = seen.iter().filter_map(|seen| seen.space).max_by_key(|space| space.uid);
        let uid = match highest {
            Some(space) => space.uid,
            None => self.new_uid(seen)?,
        };
        let has = |member: &MemberCopy<'_>| member.space.is_some_and(|space| space.uid == uid);
        if seen.iter().all(has) {
            return Ok(NextStep::Agreed { uid });
        }
        let can = |member: &MemberCopy<'_>| has(member) || member.mark < uid;
        let uid = if seen.iter().all(can) { uid } else { self.new_uid(seen)? };
        let name = self.name().unwrap_or_default();
        let document = match (highest, &self.wish) {
            (Some(space), _) => space.document.clone(),
            (None, Wish::Open { document, .. }) => document.as_bytes().to_vec(),
            // It was there a moment ago, on some member.
            (None, _) => return Err(unknown(name)),
        };
        let lacking = seen.iter().enumerate();
        let lacking = lacking.filter(|(_, it)| it.space.is_none_or(|space| space.uid != uid));
        let ask = |(at, it): (usize, &MemberCopy<'_>)| {
            let ask = match it.space {
                Some(space) => StoreAsk::Clear { space: space.id, uid },
                None => {
                    let (name, document) = (name.to_owned(), document.clone());
                    StoreAsk::Create { name, document, uid }
                }
            };
            (at, ask)
        };
        Ok(NextStep::ControlRequest(lacking.map(ask).collect()))
    }

    /// A uid that no member ever had: above all of them, by a random step, so that members which
    /// did not see each other do not give out the same one.
    fn new_uid(&mut self, seen: &[MemberCopy<'_>]) -> Result<u64, Failure> {
        let mark = seen.iter().map(|seen| seen.mark).max().unwrap_or(0);
        if let Some(uid) = self.uid.filter(|uid| *uid > mark) {
            return Ok(uid);
        }
        let mut step = [0; 4];
        let random = getrandom(&mut step, GetRandomFlags::empty());
        random.map_err(|errno| (Status::Internal, format!("no random number: {errno}")))?;
        let uid = mark.checked_add(1 + u64::from(u32::from_ne_bytes(step)));
        self.uid = uid;
        uid.ok_or_else(|| (Status::NoSpace, "the store has no uid left; create it again".into()))
    }
}

fn unknown(name: &str) -> Failure {
    (Status::Miss, format!("there is no namespace {name:?}; `kvrail store namespaces` shows all"))
}

#[cfg(test)]
mod tests {
    use kvrail_poller::{Permit, SpaceRecord, StoreAsk};
    use kvrail_protocol::ListCursor;
    use kvrail_ring::Status;
    use kvrail_store::{Key, Members};
    use serde_json::json;

    use super::{Asker, Create, JobStage, MemberCopy, NextStep, Rights, StoreJob, Wish};

    fn job(wish: Wish) -> StoreJob {
        StoreJob::new(Asker { session: 1, seq: 2, slot: None, uid: 0 }, String::new(), wish)
    }

    fn open(create: Create) -> StoreJob {
        let identity = json!({"model": "m"});
        let document = identity.to_string();
        let (permit, rights) = (Permit::Write, Rights::All);
        job(Wish::Open { name: "n".into(), document, identity, create, permit, rights })
    }

    fn space(uid: u64) -> SpaceRecord {
        let document = br#"{ "model": "m" }"#.to_vec();
        SpaceRecord { uid, document, ..SpaceRecord::empty() }
    }

    /// The calls of a request to members with these uids (0: absent) and marks.
    fn asked(job: &mut StoreJob, members: &[(u64, u64)]) -> Vec<(usize, char, u64)> {
        let spaces: Vec<_> = members.iter().map(|(uid, _)| space(*uid)).collect();
        let seen: Vec<_> = members
            .iter()
            .zip(&spaces)
            .map(|((uid, mark), space)| MemberCopy {
                space: (*uid > 0).then_some(space),
                mark: *mark,
            })
            .collect();
        let all = Members::first(u16::try_from(seen.len()).unwrap());
        match job.next(&seen, all) {
            NextStep::ControlRequest(asks) => asks
                .into_iter()
                .map(|(at, ask)| match ask {
                    StoreAsk::Create { uid, .. } => (at, '+', uid),
                    StoreAsk::Clear { uid, .. } => (at, '~', uid),
                    StoreAsk::Remove { .. } => (at, '-', 0),
                    StoreAsk::Explain { .. } => (at, '?', 0),
                    other => panic!("{other:?}"),
                })
                .collect(),
            NextStep::Agreed { uid } => vec![(usize::MAX, '=', uid)],
            NextStep::Gone => vec![(usize::MAX, '0', 0)],
            NextStep::List { .. } => vec![(usize::MAX, 'l', 0)],
            NextStep::Explained { member, uid, .. } => vec![(member, 'e', uid)],
            NextStep::Refuse((status, _)) => vec![(usize::MAX, '!', status.number().into())],
        }
    }

    #[test]
    fn a_new_namespace_gets_one_uid_above_all_marks() {
        let mut job = open(Create::Allowed);
        let asks = asked(&mut job, &[(0, 5), (0, 90), (0, 7)]);
        let uid = asks[0].2;
        assert!(uid > 90 && uid <= 91 + u64::from(u32::MAX));
        assert_eq!(asks, [(0, '+', uid), (1, '+', uid), (2, '+', uid)]);
        assert!(job.created && job.stage == JobStage::Changing);
        let agreed = asked(&mut job, &[(uid, uid), (uid, uid), (uid, uid)]);
        assert_eq!(agreed, [(usize::MAX, '=', uid)]);
        let missing = asked(&mut open(Create::Forbidden), &[(0, 5), (0, 5)]);
        assert_eq!(missing, [(usize::MAX, '!', Status::Miss.number().into())]);
    }

    #[test]
    fn members_that_lack_it_are_brought_to_the_highest_uid() {
        let one = |members: &[(u64, u64)]| asked(&mut open(Create::Forbidden), members);
        assert_eq!(one(&[(9, 9), (9, 12)]), [(usize::MAX, '=', 9)]);
        assert_eq!(one(&[(9, 9), (0, 3)]), [(1, '+', 9)], "made on one, then a crash");
        assert_eq!(one(&[(9, 9), (20, 20)]), [(0, '~', 20)], "cleared on one, then a crash");
        // The other one had a higher uid since: it cannot go back.
        let asks = one(&[(9, 9), (0, 30), (9, 9)]);
        let uid = asks[0].2;
        assert!(uid > 30);
        assert_eq!(asks, [(0, '~', uid), (1, '+', uid), (2, '~', uid)]);
    }

    #[test]
    fn clear_and_remove_reach_every_member_that_has_it() {
        let name = || "n".to_owned();
        let mut clear = job(Wish::Clear { name: name() });
        let asks = asked(&mut clear, &[(9, 9), (0, 3), (9, 40)]);
        let uid = asks[0].2;
        assert!(uid > 40);
        assert_eq!(asks, [(0, '~', uid), (2, '~', uid)]);
        assert_eq!(asked(&mut clear, &[(uid, uid), (0, 3), (uid, uid)]), [(1, '+', uid)]);
        let mut remove = job(Wish::Remove { name: name(), otherwise: None });
        assert_eq!(asked(&mut remove, &[(9, 9), (0, 9)]), [(0, '-', 0)]);
        assert_eq!(asked(&mut remove, &[(0, 9), (0, 9)]), [(usize::MAX, '0', 0)]);
        for wish in [Wish::Clear { name: name() }, Wish::Remove { name: name(), otherwise: None }] {
            let none = asked(&mut job(wish), &[(0, 9), (0, 9)]);
            assert_eq!(none, [(usize::MAX, '!', Status::Miss.number().into())]);
        }
    }

    #[test]
    fn a_key_is_explained_by_the_one_member_that_can_have_it() {
        let key = Key::of(1, 2);
        let explain = || job(Wish::Explain { name: "n".into(), key });
        let member = usize::from(Members::first(2).owner(9, key.lo()));
        let mut asked_first = explain();
        assert_eq!(asked(&mut asked_first, &[(9, 9), (9, 9)]), [(member, '?', 0)]);
        assert_eq!(asked(&mut asked_first, &[(9, 9), (9, 9)]), [(member, 'e', 9)]);
        let mut members = [(9, 9), (9, 9)];
        members[member] = (5, 9);
        let stale = asked(&mut explain(), &members);
        assert_eq!(stale, [(usize::MAX, '!', Status::Stale.number().into())], "not cleared there");
        let missing = [(usize::MAX, '!', Status::Miss.number().into())];
        assert_eq!(asked(&mut explain(), &[(0, 9), (0, 9)]), missing);
        let list = || job(Wish::ListBlocks { name: "n".into(), from: ListCursor::default() });
        assert_eq!(asked(&mut list(), &[(0, 9), (9, 9)]), [(usize::MAX, 'l', 0)]);
        assert_eq!(asked(&mut list(), &[(0, 9), (0, 9)]), missing);
    }

    #[test]
    fn members_that_never_agree_are_given_up() {
        let mut job = open(Create::Allowed);
        for _ in 0..4 {
            assert_eq!(asked(&mut job, &[(9, 9), (0, 3)]), [(1, '+', 9)]);
        }
        let end = asked(&mut job, &[(9, 9), (0, 3)]);
        assert_eq!(end, [(usize::MAX, '!', Status::Internal.number().into())]);
    }
}
