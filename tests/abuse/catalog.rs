//! Every abuser: its name, what it does, and who it is.

/// Who an abuser is. All are other users than the quiet client's where this process may say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A user who may attach.
    Guest,
    /// As `Guest`, and it harms whoever shares its user id, so it needs one of its own.
    Apart,
    /// A user who may not attach.
    Stranger,
}

/// One abuser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abuser {
    /// How the table and the command line name it.
    pub(crate) name: &'static str,
    /// The attack of `kvrail-actor hostile`.
    pub(crate) kind: &'static str,
    pub(crate) who: Who,
    /// The volume that it uses.
    pub(crate) volume: &'static str,
    /// What it does, in a few words.
    pub(crate) what: &'static str,
}

/// The volume of the quiet client and of nearly all abusers, in stripes of 1 MiB.
pub(crate) const VOLUME: &str = "kv";

/// The abuser that needs a file system of its own.
pub(crate) const FUSE: &str = "fuse-arena";

/// The volume in stripes of 64 MiB, behind the same poller.
pub(crate) const WIDE: &str = "wide";

const fn guest(name: &'static str, what: &'static str) -> Abuser {
    Abuser { name, kind: name, who: Who::Guest, volume: VOLUME, what }
}

const fn apart(name: &'static str, what: &'static str) -> Abuser {
    Abuser { who: Who::Apart, ..guest(name, what) }
}

/// All of them, in the order in which they are tried.
pub(crate) const ABUSERS: &[Abuser] = &[
    apart("linger-hello", "sends sockets whose close waits, before its hello"),
    apart("linger-surplus", "sends them beside an ask that takes none"),
    apart("linger-unread", "leaves them in a queue that nobody reads"),
    Abuser {
        name: "linger-stranger",
        kind: "linger-unread",
        who: Who::Stranger,
        ..guest("", "the same, of a user who may not attach")
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
    apart("connections", "connects and says nothing"),
    apart("noise", "garbage on the socket"),
    guest("hoard", "asks for more than its quota"),
    guest("descriptors", "descriptors of wrong kinds and numbers"),
    guest("truncate", "shrinks and grows sealed memory"),
    guest("deaf", "never reads a completion"),
    guest("bells", "blocking and full bells"),
    guest("flood", "rings without a reason"),
];
