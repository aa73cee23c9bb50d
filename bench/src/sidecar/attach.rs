//! From a socket to ground: attach, ask for the state, look whether the members can be reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use kvrail_client::{Client, ShardReport, StatusReport, Volume};
use kvrail_device::{DirectIo, ModeName};

use crate::harness::{Ground, Harness, NullLane, Sidecar};
use crate::memory::TieredStore;
use crate::options::BenchOptions;
use crate::sidecar::lane::NullProbe;
use crate::sidecar::store::StoreTarget;
use crate::sidecar::target::SidecarTarget;

/// A sidecar that serves a volume for the benchmark to overwrite.
#[derive(Clone, Debug)]
pub struct ServingSidecar {
    /// Its socket.
    pub socket: PathBuf,
    /// The volume.
    pub volume: String,
    /// A store for blocks of the benchmark's own; without it there is no such arm.
    pub store: Option<String>,
    /// A volume on a null device, for the lanes; without it lanes have ceilings only.
    pub null_volume: Option<String>,
    /// A store on a null device, beside it.
    pub null_store: Option<String>,
}

/// Attaches, and collects the arms' data from the sidecar's report.
///
/// # Errors
/// The obstacle to attaching, or an unknown volume.
pub fn attach(serving: &ServingSidecar, options: &BenchOptions) -> Result<Ground> {
    let client = Client::attach(&serving.socket)?;
    let volume = client.volume(&serving.volume)?;
    let status = client.status()?;
    let (members, storage) = members_of(&status, &volume)?;
    let null_lane = match &serving.null_volume {
        Some(name) => Some(null_lane(&client, (name, serving.null_store.as_deref()), &status)?),
        None => None,
    };
    let store = match &serving.store {
        Some(name) => {
            let mode = storage.words.clone();
            Some(Arc::new(StoreTarget::new(client.clone(), name, mode, options.client_wait)?))
        }
        None => None,
    };
    let (geometry, uuid) = (*volume.geometry(), volume.uuid());
    let target =
        SidecarTarget::new(client.clone(), volume, storage.words.clone(), options.client_wait);
    let pid = i32::try_from(status.sidecar.pid).context("the sidecar's process id")?;
    let sidecar = Sidecar { target, client, pids: vec![pid], store, null_lane };
    Ok(Ground {
        members,
        geometry,
        uuid,
        io: storage.io,
        mode: storage.mode,
        reason: storage.reason,
        sidecar: Some(sidecar),
        poller_cores: status.pollers.iter().filter_map(|poller| poller.cpu).collect(),
    })
}

/// How the devices of a volume are driven.
struct Driving {
    io: DirectIo,
    mode: ModeName,
    words: String,
    reason: String,
}

/// The members as paths, where this process can reach all of them, and how they are driven.
fn members_of(status: &StatusReport, volume: &Volume) -> Result<(Vec<PathBuf>, Driving)> {
    let report = status.volumes.iter().find(|report| report.uuid == volume.uuid());
    let report = report.context("the sidecar's status lacks the volume")?;
    let devices: Vec<_> =
        status.devices.iter().filter(|device| report.members.contains(&device.name)).collect();
    let first = devices.first().context("the sidecar's status lacks the volume's devices")?;
    let mut words: Vec<&str> = devices.iter().map(|device| device.mode.as_str()).collect();
    words.dedup();
    let driving = Driving {
        io: if first.io == "direct" { DirectIo::Required } else { DirectIo::Off },
        // A simulated device has no ring: its raw arm does not exist either.
        mode: first.mode.parse().unwrap_or(ModeName::Interrupt),
        words: words.join(", "),
        reason: first.reason.clone(),
    };
    let stored = devices.iter().all(|device| matches!(device.kind.as_str(), "file" | "block"));
    let reachable = stored && report.members.iter().all(|member| Path::new(member).exists());
    let paths = report.members.iter().map(PathBuf::from);
    Ok((if reachable { paths.collect() } else { Vec::new() }, driving))
}

fn null_lane(
    client: &Client,
    (name, store): (&str, Option<&str>),
    status: &StatusReport,
) -> Result<NullLane> {
    let volume = client.volume(name)?;
    let poller = volume.poller_at(0).context("the null volume has no poller")?;
    let report = status.pollers.iter().find(|report| report.index == poller.0);
    let poller_core = report.and_then(|report| report.cpu);
    Ok(NullLane { probe: Box::new(NullProbe::new(client, volume, store)?), poller_core })
}

/// A sidecar that runs already: `--attach`. Started by somebody else, and left running.
#[derive(Debug, Default)]
pub struct AttachHarness;

impl Harness for AttachHarness {
    fn open(&mut self, options: &BenchOptions, _: u64) -> Result<Ground> {
        let socket = options.attach.clone().context("--attach names no socket")?;
        let store = options.store_volume.clone();
        let volume = options.volume.clone().or_else(|| store.clone());
        let volume = volume.context("--attach needs --volume or --store-volume")?;
        let null_volume = options.null_volume.clone();
        attach(&ServingSidecar { socket, volume, store, null_volume, null_store: None }, options)
    }

    /// The sidecar that runs has the tier that it was given.
    fn open_tiered(
        &mut self,
        options: &BenchOptions,
        _: u64,
    ) -> Result<Result<TieredStore, String>> {
        let (Some(socket), Some(name)) = (&options.attach, &options.store_volume) else {
            return Ok(Err("with --attach, name a store by --store-volume".to_owned()));
        };
        let client = Client::attach(socket)?;
        let tier = |shard: &&ShardReport| shard.counters.serving.tier_bytes_max.unwrap_or(0);
        let shards = client.status()?.shards;
        if shards.iter().filter(|shard| shard.store == *name).all(|shard| tier(&shard) == 0) {
            return Ok(Err("this sidecar has none: memory_tier.bytes is 0".to_owned()));
        }
        Ok(Ok(TieredStore { client, name: name.clone() }))
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
