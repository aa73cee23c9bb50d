//! The HTTP endpoint of this sidecar. It is not essential: where it cannot start, the sidecar
//! reports it and serves; where its address is taken, it retries.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvrail_metrics::{Endpoint, Hosts, Listen, MemberMap, SidecarLife};
use kvrail_poller::{PollerHandle, PollerStats};
use kvrail_session::ServerHandle;

use super::report_extras::ReportExtras;
use kvrail_cli::config::Config;

/// The endpoint, if there is one.
#[derive(Debug)]
pub(super) struct Metrics {
    _endpoint: Option<Endpoint>,
    life: SidecarLife,
    extras: ReportExtras,
}

impl Metrics {
    /// Listens as soon as possible, and answers that the sidecar is opening until `serve`.
    pub(super) fn open(config: &Config, extras: ReportExtras) -> Self {
        let life = SidecarLife::default();
        let mode = config.sidecar.socket_mode.bits();
        let hosts = Hosts::new(&config.metrics.hosts);
        let known = extras.clone();
        let listening = move |outcome: Result<&Listen, &str>| {
            note(&known, outcome.map(address).map_err(str::to_owned));
        };
        let listen = &config.metrics.listen;
        let started = Endpoint::start(listen, mode, hosts, life.clone(), Box::new(listening));
        let endpoint = started.unwrap_or_else(|error| {
            note(&extras, Err(error.to_string()));
            None
        });
        Self { _endpoint: endpoint, life, extras }
    }

    /// From now on the server answers with the sidecar's status. Maps are read where the pollers
    /// write them.
    pub(super) fn serve(&self, handle: ServerHandle, stores: Vec<MappedDevice>) {
        let maps = move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            stores.iter().filter_map(|device| device.map(now)).collect()
        };
        self.life.serve(Box::new(move |answer| handle.ask(answer)), Box::new(maps));
    }

    /// Where it is, a line for the start report.
    pub(super) fn line(&self) -> String {
        match self.extras.endpoint() {
            None => String::new(),
            Some(Ok(place)) => format!("  metrics and page: {place}\n"),
            Some(Err(why)) => format!("  metrics and page: none yet: {why}\n"),
        }
    }
}

/// A device that may be a member of a store.
pub(super) struct MappedDevice {
    index: u16,
    /// Its place among those of the poller.
    place: usize,
    stats: Arc<PollerStats>,
}

impl MappedDevice {
    /// All devices of the pollers.
    pub(super) fn all(pollers: &[PollerHandle]) -> Vec<Self> {
        let of = |poller: &PollerHandle| {
            let stats = Arc::clone(&poller.stats);
            let indices = poller.devices.iter().map(|(index, _)| index.0).enumerate();
            let mapped =
                indices.map(move |(place, index)| Self { index, place, stats: Arc::clone(&stats) });
            mapped.collect::<Vec<_>>()
        };
        pollers.iter().flat_map(of).collect()
    }

    /// The map of its segments; nothing where it has no store, or has none any more.
    fn map(&self, now_unix_s: u64) -> Option<MemberMap> {
        let device = &self.stats.devices[self.place];
        if device.retired.get() != 0 {
            return None;
        }
        let map = &device.store.map;
        let mut shown = MemberMap {
            device: self.index,
            segments: map.segments(),
            segments_of_cell: map.segments_of_cell(),
            tick_bytes: map.tick_bytes(),
            ..MemberMap::default()
        };
        for (at, cell) in map.cells().enumerate() {
            let opened = Some(cell.opened_unix_s).filter(|opened| *opened > 0);
            let age = |opened: u32| now_unix_s.saturating_sub(opened.into());
            let percent = (u32::from(cell.filled) * 100).div_ceil(255);
            shown.age_s.push(opened.map(|opened| u32::try_from(age(opened)).unwrap_or(u32::MAX)));
            shown.idle_ticks.push(cell.idle_ticks);
            shown.filled_percent.push(u8::try_from(percent).unwrap_or(100));
            shown.open.extend(u16::try_from(at).ok().filter(|_| cell.is_open));
        }
        (shown.segments > 0).then_some(shown)
    }
}

fn address(listen: &Listen) -> String {
    match listen {
        Listen::Off => String::new(),
        Listen::Tcp(address) => format!("http://{address}/"),
        Listen::Unix(path) => path.display().to_string(),
    }
}

/// The start report has where it is from the start on.
fn note(extras: &ReportExtras, outcome: Result<String, String>) {
    let before = extras.set_endpoint(outcome.clone());
    match outcome {
        Ok(place) if before.is_some() => tracing::info!("metrics and page: {place}"),
        Ok(_) => {}
        Err(why) => tracing::warn!("no metrics, no health and no page: {why}"),
    }
}
