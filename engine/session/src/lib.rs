//! Sessions: who may attach, what each client has, and how all of it comes back.
//!
//! Owns the session socket, the clients' arenas and GPU regions, and the sidecar's half of every
//! queue until a poller serves it. Runs on the control thread, one epoll loop, never on a data
//! path; the pollers are told by commands and answer with notices. Invariant 2 (ownership) ends
//! here: memory is given back only when every poller said that nothing can touch it. So does
//! invariant 4 (isolation): whatever a client says or breaks ends that client's session and no
//! other.
#![forbid(unsafe_code)]

mod accept;
mod access;
mod arenas;
mod asks;
mod closers;
mod config;
mod dear;
mod error;
mod events;
mod gpus;
mod hand;
mod kept;
mod leaving;
mod lock;
mod maker;
mod notices;
mod orders;
mod past;
mod pollers;
mod porter;
mod queues;
mod rate;
mod regions;
mod report;
mod server;
mod session;
mod socket;
mod stopping;
mod users;
mod watch;

pub use access::Access;
pub use config::{Home, Identity, Limits, PagePolicy, Patience, Policy, ServerConfig};
pub use error::{Pid, ServerError};
pub use gpus::ServedGpu;
pub use orders::{OrderReceiver, OrderSender, order_channel};
pub use porter::{Porter, porter};
pub use server::Server;
pub use stopping::{Stopped, StoppedHow};
