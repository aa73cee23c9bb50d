//! GPUs: those that are served, how one is found, and what is reported of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_gpu::{Fragment, Gpu, GpuError, GpuHandle, GpuUuid, Health, MechanismChoice, Staging};
use kvrail_protocol::{
    GpuFragment, GpuInfo, GpuMemory, GpuRegionInfo, GpuReport, GpuRoute, GpuState, StagingReport,
};
use kvrail_ring::Status;

use crate::failure::{Failure, invalid};
use crate::region_spec::{GpuSpec, refusal};

/// A GPU that is served. Its poller runs as long as the pollers of the devices do.
#[derive(Clone, Debug)]
pub struct ServedGpu {
    /// Opens clients' memory.
    pub gpu: Arc<dyn Gpu>,
    /// How it is.
    pub health: Arc<Health>,
    /// Its staging pool. Every device has it in one of the last entries of its buffer table.
    pub staging: Arc<Staging>,
    /// The CPU its poller is pinned to, or nothing when it floats.
    pub cpu: Option<u32>,
    /// The configured mechanism.
    pub configured: MechanismChoice,
    /// The mechanism in use, for each volume.
    pub routes: Vec<GpuRoute>,
}

impl ServedGpu {
    pub(crate) fn info(&self) -> GpuInfo {
        let identity = self.gpu.identity();
        GpuInfo {
            index: identity.index,
            uuid: identity.uuid.to_string(),
            name: identity.name.clone(),
            pci_address: identity.pci_address.clone(),
            memory_bytes: identity.memory_bytes,
        }
    }

    /// The GPU's status, with `regions` regions of `region_bytes` in all.
    pub(crate) fn report(&self, (regions, region_bytes): (usize, u64)) -> GpuReport {
        let it = self;
        let failed = it.health.failure();
        let direct = it.health.direct_failure().map(|why| format!("direct I/O ended: {why}"));
        let fallback = it.health.fallback().map(str::to_owned);
        let options = it.staging.options();
        let free = u16::try_from(it.staging.free()).unwrap_or(u16::MAX);
        GpuReport {
            gpu: it.info(),
            cpu: it.cpu,
            state: if failed.is_none() { GpuState::Serving } else { GpuState::Failed },
            failure: failed.map(str::to_owned).or(direct).or(fallback),
            configured: it.configured.to_string(),
            routes: it.routes.clone(),
            regions: u32::try_from(regions).unwrap_or(u32::MAX),
            region_bytes,
            counters: it.health.counts().map(|count| Some(*count)),
            staging: StagingReport {
                slots: options.slots,
                slot_bytes: options.slot_bytes,
                taken: options.slots.saturating_sub(free),
                page_bytes: it.staging.region().page().bytes() as u64,
            },
        }
    }
}

/// The place of the GPU of this name, if it works.
pub(crate) fn find(gpus: &[ServedGpu], name: &str) -> Result<usize, Failure> {
    if gpus.is_empty() {
        let message = "this sidecar serves no GPU; name one in gpu.devices and restart it";
        return Err((Status::Unsupported, message.into()));
    }
    let uuid: GpuUuid =
        name.parse().map_err(|error: kvrail_gpu::BadUuid| invalid(error.to_string()))?;
    let at = gpus.iter().position(|served| served.gpu.identity().uuid == uuid);
    let at = at.ok_or_else(|| {
        let all: Vec<_> = gpus.iter().map(|gpu| gpu.gpu.identity().uuid.to_string()).collect();
        invalid(format!(
            "this sidecar does not serve GPU {uuid}, it serves {}; name it in gpu.devices and \
             restart the sidecar",
            all.join(", ")
        ))
    })?;
    match gpus[at].health.failure() {
        None => Ok(at),
        Some(reason) => Err(refusal(&GpuError::Failed { gpu: uuid, reason: reason.to_owned() })),
    }
}

/// A client's description as the GPU room takes it.
pub(crate) fn spec(info: GpuRegionInfo, fds: Vec<OwnedFd>) -> GpuSpec {
    let mut fds = fds.into_iter();
    let handle = |memory| match memory {
        GpuMemory::Descriptor { bytes } => {
            GpuHandle::Vmm { fd: fds.next().expect("counted before"), bytes }
        }
        GpuMemory::Legacy { handle, offset, bytes } => {
            GpuHandle::LegacyIpc { handle: handle.0, offset, bytes }
        }
    };
    let fragment = |it: GpuFragment| {
        let GpuFragment { memory, base, stride, bytes } = it;
        Fragment { memory, base, stride, bytes }
    };
    GpuSpec {
        handles: info.memories.into_iter().map(handle).collect(),
        fragments: info.fragments.into_iter().map(fragment).collect(),
        blocks: info.blocks,
    }
}
