//! Access control by the peer credentials of a connection.

use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::pod::pod_of;

/// Users and groups that may attach. With empty lists no user may attach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Root and the sidecar's own user. They can end the sidecar anyway, so limits of users do not
    /// apply to them, and places are reserved for their inspections.
    pub operators: Vec<u32>,
    /// `sidecar.allow_uids`: users.
    pub uids: Vec<u32>,
    /// `sidecar.allow_gids`: groups, primary or supplementary.
    pub gids: Vec<u32>,
}

/// The other side of a connection, as it was when it connected.
#[derive(Debug)]
pub(crate) struct Peer {
    /// 0 when it lives in a namespace we cannot see.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Readable when the process has ended: a forked child may keep the socket open.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Its Kubernetes pod, where its process can be seen.
    pub(crate) pod: Option<String>,
}

impl Peer {
    /// Reads the credentials of the socket's peer.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        // Not rustix here: its process id cannot be 0, which the kernel reports for a client in a
        // sibling container.
        let cred = getsockopt(&socket, PeerCredentials)
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        let pid = u32::try_from(cred.pid()).unwrap_or(0);
        Ok(Self { pid, uid: cred.uid(), gid: cred.gid(), pidfd: None, pod: None })
    }

    /// Sees its end from now on.
    pub(crate) fn follow(&mut self) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        self.pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
        self.pod = self.about("cgroup").as_deref().and_then(pod_of);
    }

    /// All groups.
    pub(crate) fn groups(&self) -> Vec<u32> {
        let mut groups = self.supplementary_groups();
        groups.push(self.gid);
        groups
    }

    /// A file of /proc about it. Only of a process that is still alive after the read, so that its
    /// number cannot have been given to another one in between.
    fn about(&self, file: &str) -> Option<String> {
        let pidfd = self.pidfd.as_ref()?;
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.pid)).ok()?;
        let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
        (poll(&mut ended, Some(&Timespec::default())) == Ok(0)).then_some(text)
    }

    fn supplementary_groups(&self) -> Vec<u32> {
        let Some(text) = self.about("status") else { return Vec::new() };
        let numbers = |key: &str| -> Vec<u32> {
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        // Second of real, effective, saved, file system.
        if numbers("Uid:").get(1) == Some(&self.uid) { numbers("Groups:") } else { Vec::new() }
    }
}

impl Access {
    /// Whether limits of users do not hold for this one.
    pub(crate) fn operates(&self, uid: u32) -> bool {
        self.operators.contains(&uid)
    }

    /// Whether this peer may attach.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        self.operates(peer.uid)
            || self.uids.contains(&peer.uid)
            || self.gids.contains(&peer.gid)
            || (!self.gids.is_empty()
                && peer.supplementary_groups().iter().any(|gid| self.gids.contains(gid)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use kvrail_protocol::Channel;

    use super::{Access, Peer};

    #[test]
    fn a_user_is_let_in_by_uid_or_by_group_and_not_otherwise() {
        let (one, _other) = Channel::pair().unwrap();
        let mut peer = Peer::of(one.as_fd()).unwrap();
        peer.follow();
        assert_eq!(peer.pid, std::process::id());
        assert!(!Access::default().admits(&peer));
        assert!(Access { uids: vec![peer.uid], ..Access::default() }.admits(&peer));
        assert!(Access { gids: vec![peer.gid], ..Access::default() }.admits(&peer));
        let stranger = peer.uid.wrapping_add(12_345);
        assert!(
            !Access { operators: vec![], uids: vec![stranger], gids: vec![54_321] }.admits(&peer)
        );
        for group in peer.supplementary_groups() {
            assert!(Access { gids: vec![group], ..Access::default() }.admits(&peer));
        }
    }
}
