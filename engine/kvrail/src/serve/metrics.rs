//! The HTTP endpoint of this sidecar. It is not essential: where it cannot start, the sidecar
//! reports it and serves; where its address is taken, it retries.

use kvrail_metrics::{Endpoint, Hosts, Listen, SidecarLife};
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

    /// From now on the server answers with the sidecar's status.
    pub(super) fn serve(&self, handle: ServerHandle) {
        self.life.serve(Box::new(move |tell| handle.ask(tell)));
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
