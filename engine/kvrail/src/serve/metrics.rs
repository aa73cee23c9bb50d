//! The HTTP endpoint of this sidecar. It is not essential: where it cannot be, that is said, and
//! the sidecar serves.

use kvrail_metrics::{Endpoint, Hosts, Life, Listen};
use kvrail_session::ServerHandle;

use crate::config::Config;

/// The endpoint, if there is one.
#[derive(Debug)]
pub(super) struct Metrics {
    endpoint: Option<Endpoint>,
    life: Life,
    /// Why there is none although there should be.
    pub(super) note: Option<String>,
}

impl Metrics {
    /// Listens, and says that the sidecar is opening until `serve`.
    pub(super) fn open(config: &Config) -> Self {
        let life = Life::default();
        let mode = config.sidecar.socket_mode.bits();
        let hosts = Hosts::new(&config.metrics.hosts);
        match Endpoint::start(&config.metrics.listen, mode, hosts, life.clone()) {
            Ok(endpoint) => Self { endpoint, life, note: None },
            Err(error) => {
                let note = format!(
                    "no metrics, no health and no page: {error}; restart with another \
                     metrics.listen, or \"off\""
                );
                tracing::warn!("{note}");
                Self { endpoint: None, life, note: Some(note) }
            }
        }
    }

    /// From now on the server says how everything is.
    pub(super) fn serve(&self, handle: ServerHandle) {
        self.life.serve(Box::new(move |tell| handle.ask(tell)));
    }

    /// Where it is, a line for the start report.
    pub(super) fn line(&self) -> String {
        match self.endpoint.as_ref().map(Endpoint::place) {
            None | Some(Listen::Off) => String::new(),
            Some(Listen::Tcp(address)) => format!("  metrics and page: http://{address}/\n"),
            Some(Listen::Unix(path)) => format!("  metrics and page: {}\n", path.display()),
        }
    }
}
