//! Sessions: access control, the resources of each client, and their return.
//!
//! Owns the session socket, the clients' arenas and GPU regions, the sidecar's half of every queue
//! until a poller serves it, and the namespaces of stores as all their members have them. Runs on
//! the control thread, one epoll loop, never on a data path; it controls the pollers by commands,
//! and they answer with notices. Invariant 2 (ownership) ends here: memory is freed only after
//! every poller has confirmed that nothing can access it. So does invariant 4 (isolation): a
//! client's messages and faults end that client's session and no other.
#![forbid(unsafe_code)]

mod acceptor;
mod access;
mod audit;
mod closers;
mod config;
mod error;
mod events;
mod failure;
mod file_id;
mod gpus;
mod kept;
mod latencies;
mod lock;
mod member_change;
mod memory_worker;
mod memory_workers;
mod pod;
mod policy;
mod pollers;
mod pools;
mod porter;
mod queues;
mod rate;
mod recent;
mod region_spec;
mod region_table;
mod regions;
mod reload;
mod reply;
mod report;
mod server;
mod server_handle;
mod session;
mod sessions;
mod shutdown;
mod slow_log;
mod socket;
mod stores;
mod tenants;
mod trace;
mod users;
mod wakers;
mod watch;

pub use access::Access;
pub use audit::AUDIT;
pub use config::{ServerConfig, SidecarIdentity};
pub use error::{Pid, ServerError};
pub use gpus::ServedGpu;
pub use member_change::MemberAsk;
pub use policy::{Limits, NumaPolicy, PagePolicy, Patience, Policy, WriteBudget};
pub use pools::{PoolSize, StorePart as PoolPart, pools_fit};
pub use porter::{Porter, porter};
pub use reload::ReloadAsk;
pub use report::unregistered;
pub use server::Server;
pub use server_handle::{HandleReceiver, ServerHandle, server_handle};
pub use shutdown::{LateLeft, Stopped, StoppedHow};
pub use socket::make_folder;
pub use stores::{ServedShard, ServedStore, ServedTier, memory_tier, presence_table};
pub use tenants::{Right, Tenancy};
