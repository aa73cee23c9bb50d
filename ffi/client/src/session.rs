//! What all handles of one client share: its session with the sidecar.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvrail_protocol::{
    Channel, ChannelError, ControlReply, ControlRequest, GpuInfo, LimitsInfo, Welcome,
};
use kvrail_ring::{Epoch, Holds, RegionId, SessionId};

use crate::control::Control;
use crate::error::ClientError;
use crate::holds::SharedHolds;
use crate::latencies::{QueueLatencies, SharedLatencies};
use crate::lease::Lease;
use crate::opened::OpenedTable;
use crate::spin::SpinLimits;
use crate::tag::ClientTag;
use crate::volume::Volume;

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    control: Control,
    tag: ClientTag,
    volumes: Vec<Volume>,
    spin: SpinLimits,
    welcome: Welcome,
    /// Memory that hardware may still write although its request has completed. Given back with
    /// the client: by then no arena is left to lease it from.
    quarantined: Mutex<Vec<Lease>>,
    opened: OpenedTable,
    latencies: SharedLatencies,
    holds: SharedHolds,
}

impl Session {
    /// A session over a connection that was let in.
    pub(crate) fn new(
        channel: Channel,
        welcome: Welcome,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let tag = ClientTag::new();
        let volumes = welcome.volumes.iter().map(|info| {
            let geometry = info.check(welcome.pollers.len())?;
            Ok(Volume { tag, id: info.volume_id(), geometry, info: Arc::new(info.clone()) })
        });
        Ok(Self {
            control: Control::new(channel, &welcome, timeout),
            tag,
            volumes: volumes.collect::<Result<_, ChannelError>>()?,
            spin: SpinLimits::new(&welcome.spin),
            welcome,
            quarantined: Mutex::new(Vec::new()),
            opened: OpenedTable::default(),
            latencies: SharedLatencies::default(),
            holds: SharedHolds::default(),
        })
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn opened(&self) -> &OpenedTable {
        &self.opened
    }

    /// Where a queue counts the latencies of calls.
    pub(crate) fn latencies(&self) -> QueueLatencies {
        self.latencies.of(&self.control)
    }

    /// Where it names what it reads in place; nothing where this store shows it no memory.
    pub(crate) fn holds(&self, volume: u16) -> Option<Arc<Holds>> {
        self.holds.of(&self.control, volume)
    }

    pub(crate) fn tag(&self) -> ClientTag {
        self.tag
    }

    pub(crate) fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    pub(crate) fn gpus(&self) -> &[GpuInfo] {
        &self.welcome.gpus
    }

    pub(crate) fn pollers(&self) -> usize {
        self.welcome.pollers.len()
    }

    pub(crate) fn spin(&self) -> SpinLimits {
        self.spin
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.welcome.epoch)
    }

    pub(crate) fn id(&self) -> SessionId {
        SessionId(self.welcome.session)
    }

    pub(crate) fn sidecar(&self) -> &str {
        &self.welcome.sidecar
    }

    pub(crate) fn limits(&self) -> &LimitsInfo {
        &self.welcome.limits
    }

    /// Keeps leases out of reach.
    pub(crate) fn quarantine(&self, leases: Vec<Lease>) {
        if !leases.is_empty() {
            self.quarantined.lock().unwrap_or_else(PoisonError::into_inner).extend(leases);
        }
    }

    /// Bytes of leases that are kept out of reach.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        let quarantined = self.quarantined.lock().unwrap_or_else(PoisonError::into_inner);
        quarantined.iter().map(Lease::bytes).sum()
    }

    /// Takes a region away from the sidecar, and waits until nothing can touch it any more.
    pub(crate) fn detach(&self, what: &'static str, region: RegionId) -> Result<(), ClientError> {
        let ask = ControlRequest::DetachArena { region: region.0 };
        match self.control.call_patiently(what, ask)?.message {
            ControlReply::Detached { region: other } if other == region.0 => Ok(()),
            other => Err(ClientError::protocol(format!("answer to detach: {other:?}"))),
        }
    }
}
