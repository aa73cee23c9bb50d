//! Users' permissions on the namespaces of a store.

use kvrail_poller::Permit;
use kvrail_protocol::NamespaceInfo;
use kvrail_ring::Status;

use crate::access::{Access, Peer};
use crate::failure::{Failure, quota};

/// A permission on a namespace; each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Open it, get, look up, list.
    Read,
    /// Make it, put and drop blocks.
    Write,
    /// Clear it and remove it.
    Own,
}

/// A rule: the permissions of some users on some namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenancy {
    /// A name; with `*` at its end all names that begin so.
    pub namespaces: String,
    /// Users; a rule without users and groups applies to everyone.
    pub uids: Vec<u32>,
    /// Groups, primary or supplementary.
    pub gids: Vec<u32>,
    /// Their permission.
    pub right: Right,
    /// Namespaces of such names there may be for these users to make one more. `None`: an equal
    /// part of the store's room for each rule that lets users make some, but 4 at least.
    pub namespaces_max: Option<u32>,
}

/// Minimum number of namespaces of each rule without a configured number.
const NAMESPACES_MIN: usize = 4;

impl Tenancy {
    fn covers(&self, name: &str) -> bool {
        match self.namespaces.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => name == self.namespaces,
        }
    }

    fn names(&self, user: &User) -> bool {
        let everybody = self.uids.is_empty() && self.gids.is_empty();
        everybody
            || self.uids.contains(&user.uid)
            || self.gids.iter().any(|gid| user.gids.contains(gid))
    }
}

/// The user of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct User {
    uid: u32,
    gids: Vec<u32>,
}

/// The permissions of one user on the namespaces of one store.
#[derive(Clone, Debug)]
pub(crate) enum Rights {
    /// Everything: the store has no tenants, or the user is an operator.
    All,
    /// The permissions of these rules.
    Some(Box<(User, Vec<Tenancy>)>),
}

impl Rights {
    pub(crate) fn new(peer: &Peer, access: &Access, tenants: &[Tenancy]) -> Self {
        if tenants.is_empty() || access.operates(peer.uid) {
            return Self::All;
        }
        let user = User { uid: peer.uid, gids: peer.groups() };
        Self::Some(Box::new((user, tenants.to_vec())))
    }

    /// The permission on a namespace, if any.
    pub(crate) fn of(&self, name: &str) -> Option<Right> {
        let Self::Some(some) = self else { return Some(Right::Own) };
        let (user, tenants) = &**some;
        let own = tenants.iter().filter(|rule| rule.covers(name) && rule.names(user));
        own.map(|rule| rule.right).max()
    }

    /// Checks whether one more namespace may be made beside these, in a store with room for `room`.
    /// One rule that still has room is enough.
    ///
    /// # Errors
    /// `Failure` names the rule with the most, its limit and the remedy.
    pub(crate) fn check_room(
        &self,
        name: &str,
        there: &[NamespaceInfo],
        room: usize,
    ) -> Result<(), Failure> {
        let Self::Some(some) = self else { return Ok(()) };
        let (user, tenants) = &**some;
        let makers = tenants.iter().filter(|rule| rule.right >= Right::Write);
        let part = (room / makers.clone().count().max(1)).max(NAMESPACES_MIN);
        let limit = |rule: &Tenancy| rule.namespaces_max.map_or(part, |most| most as usize);
        let own = makers.filter(|rule| rule.covers(name) && rule.names(user));
        let has = |rule: &Tenancy| there.iter().filter(|other| rule.covers(&other.name)).count();
        match own.max_by_key(|rule| limit(rule).saturating_sub(has(rule))) {
            Some(rule) if has(rule) >= limit(rule) => Err(quota(format!(
                "user {} may not make namespace {name:?}: there are {} for {:?}, and {} is the \
                 most (volume.tenant.namespaces_max); remove one (kvrail store remove), or have \
                 the operator raise the limit",
                user.uid,
                has(rule),
                rule.namespaces,
                limit(rule)
            ))),
            _ => Ok(()),
        }
    }

    /// The permission of requests under a handle.
    pub(crate) fn permit(&self, name: &str) -> Permit {
        if self.of(name) >= Some(Right::Write) { Permit::Write } else { Permit::Read }
    }

    /// Whether all of the store may be read.
    pub(crate) fn read_all(&self) -> bool {
        let Self::Some(some) = self else { return true };
        let (user, tenants) = &**some;
        tenants.iter().any(|rule| rule.namespaces == "*" && rule.names(user))
    }

    /// # Errors
    /// `Failure` names the user, the namespace and what is missing.
    pub(crate) fn check(&self, name: &str, wanted: Right, to: &str) -> Result<(), Failure> {
        let Self::Some(some) = self else { return Ok(()) };
        let has = self.of(name);
        if has >= Some(wanted) {
            return Ok(());
        }
        let has = has.map_or("nothing", word);
        let (uid, wanted) = (some.0.uid, word(wanted));
        Err((
            Status::Denied,
            format!(
                "user {uid} may not {to} namespace {name:?}: its rights are {has:?}; have the \
                 operator add the user with rights = {wanted:?} to a [[volume.tenant]] for it"
            ),
        ))
    }
}

fn word(right: Right) -> &'static str {
    match right {
        Right::Read => "read",
        Right::Write => "write",
        Right::Own => "own",
    }
}

#[cfg(test)]
mod tests {
    use kvrail_poller::Permit;
    use kvrail_protocol::NamespaceInfo;
    use kvrail_ring::Status;

    use super::{Right, Rights, Tenancy, User};

    fn tenancy(namespaces: &str, uids: &[u32], gids: &[u32], right: Right) -> Tenancy {
        let (uids, gids) = (uids.to_vec(), gids.to_vec());
        Tenancy { namespaces: namespaces.into(), uids, gids, right, namespaces_max: None }
    }

    fn rights(uid: u32, gids: &[u32]) -> Rights {
        let tenants = vec![
            tenancy("team a *", &[1000], &[50], Right::Write),
            tenancy("team a *", &[1001], &[], Right::Own),
            tenancy("team a shared", &[], &[], Right::Read),
            tenancy("*", &[7], &[], Right::Read),
        ];
        Rights::Some(Box::new((User { uid, gids: gids.to_vec() }, tenants)))
    }

    #[test]
    fn the_most_that_any_table_gives_counts_and_without_one_there_is_nothing() {
        let cases = [
            (1000, "team a llama", Some(Right::Write)),
            (1001, "team a llama", Some(Right::Own)),
            (1002, "team a llama", None),
            (1002, "team a shared", Some(Right::Read)),
            (1000, "team a shared", Some(Right::Write)),
            (1000, "team b llama", None),
            (1000, "team a", None),
            (7, "team b llama", Some(Right::Read)),
        ];
        for (uid, name, right) in cases {
            assert_eq!(rights(uid, &[9]).of(name), right, "{uid} {name}");
        }
        assert_eq!(rights(1002, &[9, 50]).of("team a llama"), Some(Right::Write), "by its group");
        assert_eq!(Rights::All.of("anything"), Some(Right::Own));
        assert_eq!(rights(7, &[]).permit("x"), Permit::Read);
        assert!(Rights::All.read_all() && rights(7, &[]).read_all(), "so the memory tier too");
        assert!(!rights(1001, &[]).read_all() && !rights(1002, &[50]).read_all());
        assert_eq!(rights(1000, &[]).permit("team a x"), Permit::Write);
    }

    #[test]
    fn one_tenant_leaves_room_for_the_others() {
        let make = |rights: &Rights, names: &[&str], name, room| {
            let space =
                |name: &&str| NamespaceInfo { name: (*name).into(), ..NamespaceInfo::default() };
            let there: Vec<_> = names.iter().map(space).collect();
            rights.check_room(name, &there, room)
        };
        let mine = ["team a 1", "team a 2", "team a 3", "team a 4", "team b"];
        make(&rights(1000, &[]), &mine[..3], "team a x", 8).unwrap();
        // Two rules let users make namespaces: each has half of the room.
        let (status, said) = make(&rights(1000, &[]), &mine, "team a x", 8).unwrap_err();
        assert_eq!(status, Status::Quota);
        for words in ["user 1000", "4 for \"team a *\"", "4 is the most", "namespaces_max"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        make(&rights(1000, &[]), &mine, "team a x", 32).unwrap();
        make(&Rights::All, &mine, "team a x", 1).unwrap();
        let limited =
            Tenancy { namespaces_max: Some(1), ..tenancy("team b*", &[1000], &[], Right::Write) };
        let user = User { uid: 1000, gids: vec![] };
        let limited = Rights::Some(Box::new((user, vec![limited])));
        make(&limited, &mine, "team b 2", 32).unwrap_err();
        make(&limited, &mine[..4], "team b 2", 32).unwrap();
    }

    #[test]
    fn who_is_refused_hears_who_what_and_how_to_get_it() {
        let (status, said) = rights(7, &[]).check("x", Right::Own, "clear").unwrap_err();
        assert_eq!(status, Status::Denied);
        for words in ["user 7 may not clear namespace \"x\"", "\"read\"", "\"own\"", "tenant"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let (_, said) = rights(5, &[]).check("x", Right::Read, "open").unwrap_err();
        assert!(said.contains("\"nothing\""), "{said}");
        rights(7, &[]).check("x", Right::Read, "open").unwrap();
    }
}
