//! From configuration keys to what holds for clients.

use kvrail_memory::Sealing;
use kvrail_session::{Access, Limits, PagePolicy, Patience, Policy, PoolSize, Tenancy};

use kvrail_cli::config::{Config, Unsealed, VolumeConfig};

/// The rights and limits of clients from `config`.
pub(super) fn policy(config: &Config) -> Policy {
    let own = rustix::process::getuid().as_raw();
    let limits = &config.limits;
    Policy {
        access: Access {
            operators: vec![0, own],
            uids: config.sidecar.allow_uids.clone(),
            gids: config.sidecar.allow_gids.clone(),
        },
        limits: Limits {
            sessions: limits.sessions as usize,
            sessions_per_uid: limits.sessions_per_uid as usize,
            arenas_per_session: limits.arenas_per_session as usize,
            arena_bytes_per_session: limits.arena_bytes_per_session.bytes(),
            arena_bytes_total: limits.arena_bytes_total.bytes(),
            gpu_regions_per_session: limits.gpu_regions_per_session as usize,
            gpu_bytes_per_session: limits.gpu_bytes_per_session.bytes(),
            queues_per_session: limits.queues_per_session as usize,
            queue_depth: limits.lane_depth,
            handshake_timeout: limits.handshake_timeout.duration(),
        },
        write_budgets: config.volume.iter().map(|volume| volume.write_budget.wanted()).collect(),
        pools: config.volume.iter().map(pools).collect(),
        tenants: config.volume.iter().map(tenants).collect(),
        pages: config.memory.pages.size().map_or(PagePolicy::Best, PagePolicy::Exactly),
        sealing: match config.memory.unsealed_imports {
            Unsealed::Refuse => Sealing::Required,
            Unsealed::Accept => Sealing::Optional,
        },
        drain_timeout: config.sidecar.drain_timeout.duration(),
        patience: Patience {
            stall_after: config.pollers.stall_after.duration(),
            overdue_after: config.pollers.overdue_after.duration(),
            slow_after: config.pollers.slow_after.duration(),
        },
    }
}

fn pools(volume: &VolumeConfig) -> Vec<PoolSize> {
    volume.pool.iter().map(|pool| pool.size()).collect()
}

fn tenants(volume: &VolumeConfig) -> Vec<Tenancy> {
    volume.tenant.iter().map(|tenant| tenant.tenancy()).collect()
}
