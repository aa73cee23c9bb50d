//! All abusers: name, action and user.

/// The user id that an abuser runs under. As root, every abuser differs from the quiet client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// A user that may attach.
    Guest,
    /// As `Guest`, with a user id of its own, because it harms other processes of its user.
    Apart,
    /// A user that may not attach.
    Stranger,
}

/// One abuser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abuser {
    /// Name in the table and on the command line.
    pub(crate) name: &'static str,
    /// Argument of `kvrail-actor hostile` that selects the attack.
    pub(crate) kind: &'static str,
    pub(crate) user: User,
    /// The volume that the abuser uses.
    pub(crate) volume: &'static str,
    /// Its action, in a few words.
    pub(crate) what: &'static str,
}

/// The volume of the quiet client and of nearly all abusers, in stripes of 1 MiB.
pub(crate) const VOLUME: &str = "kv";

/// The abuser that needs a file system of its own.
pub(crate) const FUSE: &str = "fuse-arena";

/// The volume in stripes of 64 MiB, behind the same poller.
pub(crate) const WIDE: &str = "wide";

const fn guest(name: &'static str, what: &'static str) -> Abuser {
    Abuser { name, kind: name, user: User::Guest, volume: VOLUME, what }
}

const fn apart(name: &'static str, what: &'static str) -> Abuser {
    Abuser { user: User::Apart, ..guest(name, what) }
}

/// All of them, in the order in which they are tried.
pub(crate) const ABUSERS: &[Abuser] = &[
    apart("linger-hello", "sends sockets whose close waits, before its hello"),
    apart("linger-surplus", "attaches them to a request that takes none"),
    apart("linger-unread", "leaves them in a queue without a reader"),
    Abuser {
        name: "linger-stranger",
        kind: "linger-unread",
        user: User::Stranger,
        ..guest("", "the same, from a user that may not attach")
    },
    apart("linger-arena", "brings them as memory for an arena"),
    guest(FUSE, "brings a file whose flush is not answered"),
    guest("watchers", "hangs 100,000 epoll watchers on its bell"),
    guest("reads", "1 MiB reads, 64 at once"),
    guest("checksums", "the same with checksums"),
    guest("verify", "the same against wrong checksums"),
    Abuser { volume: WIDE, ..guest("stripes", "64 MiB reads with checksums, 2 at once") },
    guest("nops", "no-ops, 256 at once"),
    guest("flushes", "flushes, 64 at once"),
    guest("discards", "discards of a stripe, 64 at once"),
    guest("arenas", "has arenas made and detaches them"),
    guest("attaches", "attaches and leaves"),
    guest("segment", "punches holes into its lanes"),
    guest("holes", "punches holes into its arena, under requests"),
    guest("slots", "garbage in lane slots"),
    guest("indices", "garbage in lane indices, a new session each time"),
    apart("scribble", "is thrown out for a wrong lap and comes back at once"),
    apart("sessions", "takes all sessions it can get"),
    apart("connections", "connects and sends nothing"),
    apart("noise", "garbage on the socket"),
    guest("hoard", "requests more than its quota"),
    guest("descriptors", "descriptors of wrong kinds and numbers"),
    guest("truncate", "shrinks and grows sealed memory"),
    guest("deaf", "never reads a completion"),
    guest("bells", "blocking and full bells"),
    guest("flood", "rings without a reason"),
];
