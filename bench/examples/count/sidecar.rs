//! A sidecar in this process whose poller is ticked by hand: the real server, poller and device.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use kvrail_device::{
    AnyDevice, Device, DirectIo, ModeChoice, ModeName, MonotonicClock, NullDevice, NullOptions,
    UringOptions, open_path,
};
use kvrail_poller::{
    DeviceBudget, InFlightBytes, Mailbox, Poller, PollerHandle, PollerStats, Route, Setup,
    TickOutcome,
};
use kvrail_protocol::VolumeInfo;
use kvrail_ring::{DeviceIndex, Doorbell, Geometry, PollerIndex};
use kvrail_session::{Server, ServerConfig, ServerError, ServerHandle, Stopped, server_handle};
use tempfile::TempDir;

use crate::local;

/// The poller.
pub(crate) type HandPoller<D> = Poller<D, MonotonicClock>;

/// A sidecar that waits for ticks.
pub(crate) struct Served<D> {
    pub(crate) socket: PathBuf,
    pub(crate) poller: HandPoller<D>,
    pub(crate) control: Control,
}

/// Its control thread.
pub(crate) struct Control {
    _directory: TempDir,
    handle: ServerHandle,
    server: JoinHandle<Result<Stopped, ServerError>>,
    /// The server watches its pollers' threads; this one lives until the poller has stopped.
    poller_ends: Sender<()>,
}

impl Control {
    /// Stops the server; the poller is ticked until it has followed.
    pub(crate) fn stop<D: Device>(self, poller: &mut HandPoller<D>) -> Result<()> {
        self.handle.stop();
        while poller.tick() != TickOutcome::Stopped {
            thread::sleep(Duration::from_micros(200));
        }
        drop(self.poller_ends);
        self.server.join().map_err(|_| anyhow!("the server panicked"))??;
        Ok(())
    }
}

/// The kind of volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Raw,
    Store,
}

/// Bytes of a store.
const STORE_BYTES: u64 = 256 << 20;

/// One member of the given size, without a label.
pub(crate) fn geometry(member_bytes: u64) -> Geometry {
    Geometry {
        members: 1,
        stripe_bytes: member_bytes,
        member_bytes,
        data_offset: 0,
        logical_block: 512,
        memory_alignment: 4,
    }
}

/// Opens the device on this thread.
pub(crate) fn open(device: Option<(ModeName, &Path)>) -> Result<AnyDevice> {
    let Some((mode, path)) = device else {
        return Ok(AnyDevice::Null(Box::new(NullDevice::new(NullOptions::default()))));
    };
    let path = path.display().to_string();
    let fd = open_path(&path, DirectIo::Required)?;
    Ok(AnyDevice::open(ModeChoice::Fixed(mode), UringOptions::new(path, fd))?)
}

/// A poller of this thread for one device, and its server on another.
pub(crate) fn start<D: Device>(devices: Vec<D>, content: Content) -> Result<Served<D>> {
    let description = devices[0].description().clone();
    let geometry = geometry(if content == Content::Store { STORE_BYTES } else { 1 << 20 });
    let store = (content == Content::Store).then(|| local::setup(&geometry));
    let served = store.as_ref().map(|store| local::served(0, DeviceIndex(0), store));
    let to_control = Arc::new(Doorbell::eventfd()?);
    let mailbox = Arc::new(Mailbox::new(Arc::clone(&to_control))?);
    let stats = Arc::new(PollerStats::new(1));
    let setup = Setup {
        routes: vec![Route { geometry, members: vec![DeviceIndex(0)] }],
        devices: vec![DeviceIndex(0)],
        budgets: vec![DeviceBudget { operations: 128, bytes: InFlightBytes::Fixed(64 << 20) }],
        stores: store.into_iter().map(|store| (0, store)).collect(),
        spin_ns: 0,
        beat_ns: 200_000_000,
    };
    let (mail, counters) = (Arc::clone(&mailbox), Arc::clone(&stats));
    let poller = Poller::new(setup, devices, MonotonicClock, mail, counters)?;
    let (poller_ends, ended) = channel::<()>();
    let handle = PollerHandle {
        index: PollerIndex(0),
        cpu: None,
        devices: vec![(DeviceIndex(0), description)],
        mailbox,
        stats,
        thread: thread::spawn(move || while ended.recv().is_ok() {}),
    };
    let directory = tempfile::tempdir()?;
    let config =
        ServerConfig { stores: served.into_iter().collect(), ..local::config(directory.path(), 0) };
    let socket = config.socket.clone();
    let volume = VolumeInfo {
        id: 0,
        name: "counted".into(),
        uuid: uuid::Uuid::nil(),
        geometry: geometry.into(),
        pollers: vec![0],
        members: vec!["counted".into()],
        content: match content {
            Content::Raw => kvrail_protocol::VolumeContent::Raw,
            Content::Store => local::content(),
        },
    };
    let mut server = Server::new(config, vec![handle], to_control, vec![volume])?;
    let (handle, received) = server_handle()?;
    let server = thread::spawn(move || server.run(&received));
    let control = Control { _directory: directory, handle, server, poller_ends };
    Ok(Served { socket, poller, control })
}
