//! GPUs: the memory that clients attach on them, and what is reported of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_gpu::{Fragment, Gpu, GpuError, GpuHandle, GpuUuid, Health, MechanismChoice, Staging};
use kvrail_protocol::{
    GpuFragment, GpuInfo, GpuMemory, GpuRegionInfo, GpuReport, GpuRoute, GpuState, StagingReport,
};
use kvrail_ring::Status;

use crate::arenas::Origin;
use crate::asks::Failure;
use crate::hand::Hand;
use crate::kept::Kept;
use crate::maker::{GpuRecipe, Recipe};
use crate::regions::Shortage;
use crate::server::Server;

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
    /// What the configuration asks for.
    pub configured: MechanismChoice,
    /// What is used, for each volume.
    pub routes: Vec<GpuRoute>,
}

impl ServedGpu {
    pub(crate) fn info(&self) -> GpuInfo {
        let it = self.gpu.identity();
        GpuInfo {
            index: it.index,
            uuid: it.uuid.to_string(),
            name: it.name.clone(),
            pci_address: it.pci_address.clone(),
            memory_bytes: it.memory_bytes,
        }
    }
}

/// What an ask fails with when a GPU says no.
pub(crate) fn refusal(error: &GpuError) -> Failure {
    let status = match error {
        GpuError::WrongGpu { .. } | GpuError::Handle { .. } | GpuError::Layout(_) => {
            Status::Invalid
        }
        _ => Status::GpuError,
    };
    (status, error.to_string())
}

fn invalid(message: String) -> Failure {
    (Status::Invalid, message)
}

impl Server {
    /// Opens a client's memory on a GPU and gives it to the pollers.
    pub(crate) fn attach_gpu(
        &mut self,
        id: u64,
        seq: u64,
        info: GpuRegionInfo,
        fds: Kept<Vec<OwnedFd>>,
    ) -> Result<(), Failure> {
        let at = self.find_gpu(&info.gpu)?;
        let (present, needed) = (fds.len(), info.fds());
        if present != needed {
            return Err(invalid(format!(
                "{needed} memories are descriptors, but {present} descriptors came with them; send \
                 one for each, in their order"
            )));
        }
        let sizes = info.memories.iter().map(GpuMemory::bytes);
        let bytes = sizes.fold(0_u64, u64::saturating_add);
        self.check_gpu_limits(id, bytes)?;
        let grant = self.regions.grant_remote(bytes).map_err(|_: Shortage| {
            let most = kvrail_poller::REGIONS_MAX;
            let message = format!("the sidecar has {most} regions, the most it can have");
            (Status::Quota, message + "; detach some")
        })?;
        let grant = self.seated(id, grant)?;
        let recipe = Recipe::Open(Arc::clone(&self.config.gpus[at].gpu), recipe(info, fds.take()));
        self.add_region(id, seq, (Origin::Gpu(at), grant), recipe);
        Ok(())
    }

    /// The place of the GPU of this name, if it works.
    fn find_gpu(&self, name: &str) -> Result<usize, Failure> {
        let gpus = &self.config.gpus;
        if gpus.is_empty() {
            let message = "this sidecar serves no GPU; name one in gpu.devices and restart it";
            return Err((Status::Unsupported, message.into()));
        }
        let uuid: GpuUuid =
            name.parse().map_err(|error: kvrail_gpu::BadUuid| invalid(error.to_string()))?;
        let at = gpus.iter().position(|served| served.gpu.identity().uuid == uuid);
        let at = at.ok_or_else(|| {
            let all: Vec<_> = gpus.iter().map(|it| it.gpu.identity().uuid.to_string()).collect();
            invalid(format!(
                "this sidecar does not serve GPU {uuid}, it serves {}; name it in gpu.devices and \
                 restart the sidecar",
                all.join(", ")
            ))
        })?;
        match gpus[at].health.failure() {
            None => Ok(at),
            Some(reason) => {
                Err(refusal(&GpuError::Failed { gpu: uuid, reason: reason.to_owned() }))
            }
        }
    }

    fn check_gpu_limits(&self, id: u64, bytes: u64) -> Result<(), Failure> {
        let session = &self.sessions[&id];
        let (most, most_bytes) =
            (self.limits.gpu_regions_per_session, self.limits.gpu_bytes_per_session);
        let (count, used) = session.gpu_regions(None);
        if count >= most {
            let message = format!(
                "this client has {most} regions of GPU memory, the most it may have \
                 (limits.gpu_regions_per_session); detach one or raise the limit"
            );
            return Err((Status::Quota, message));
        }
        let left = most_bytes.saturating_sub(used);
        if bytes > left {
            let message = format!(
                "{bytes} bytes of GPU memory named, {left} of this client's {most_bytes} are left \
                 (limits.gpu_bytes_per_session); detach a region or raise the limit"
            );
            return Err((Status::Quota, message));
        }
        Ok(())
    }

    /// Who makes and closes a session's memory of this kind.
    pub(crate) fn hand(&self, id: u64, origin: Origin) -> &Hand {
        match origin {
            Origin::Sidecar | Origin::Client => &self.sessions[&id].hand,
            Origin::Gpu(at) => self.maker.of_gpu(at),
        }
    }

    pub(crate) fn report_gpu(&self, at: usize) -> GpuReport {
        let it = &self.config.gpus[at];
        let counts = it.health.counts();
        let failed = it.health.failure();
        let direct = it.health.direct_failure().map(|why| format!("direct I/O ended: {why}"));
        let fallback = it.health.fallback().map(str::to_owned);
        let owned = self.sessions.values().map(|session| session.gpu_regions(Some(at)));
        let (regions, region_bytes) =
            owned.fold((0, 0), |(count, bytes), (more, large)| (count + more, bytes + large));
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
            launches: counts.launches,
            moves: counts.moves,
            gathered_bytes: counts.gathered_bytes,
            scattered_bytes: counts.scattered_bytes,
            direct_bytes: counts.direct_bytes,
            failed: counts.failed,
            staging: StagingReport {
                slots: options.slots,
                slot_bytes: options.slot_bytes,
                taken: options.slots.saturating_sub(free),
                page_bytes: it.staging.region().page().bytes() as u64,
            },
        }
    }
}

/// The client's words in the words of the GPU room.
fn recipe(info: GpuRegionInfo, fds: Vec<OwnedFd>) -> GpuRecipe {
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
    GpuRecipe {
        handles: info.memories.into_iter().map(handle).collect(),
        fragments: info.fragments.into_iter().map(fragment).collect(),
        blocks: info.blocks,
    }
}
