//! The sidecar that serves a store whose members are to change, if there is one.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kvrail_volume::VolumeName;

use crate::command::status::{Looker, SidecarArgs};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};

/// Longest wait for a change: each label is written twice and made durable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which sidecar may serve the store.
#[derive(Debug, Args)]
pub(super) struct ServingArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,
}

/// A sidecar that serves the store.
pub(super) struct Serving {
    pub(super) socket: PathBuf,
    pub(super) looker: Looker,
}

impl ServingArgs {
    /// The sidecar that serves this store; none where no sidecar answers, or it serves others only.
    ///
    /// # Errors
    /// `Failure` when the sidecar that was named does not answer or does not serve the store, or
    /// when one is there and refuses to answer.
    pub(super) fn find(
        &self,
        name: &VolumeName,
        context: &Context,
    ) -> Result<Option<Serving>, Failure> {
        let is_named = self.sidecar.socket().is_some();
        let mut looker = self.sidecar.looker(context);
        let report = match looker.report() {
            Ok(report) => report,
            Err(failure) if failure.exit() == Exit::Unreachable && !is_named => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let socket = PathBuf::from(&report.sidecar.socket);
        if report.volumes.iter().any(|volume| volume.name == name.to_string()) {
            let looker = looker.with_patience(PATIENCE);
            return Ok(Some(Serving { socket, looker }));
        }
        if !is_named {
            return Ok(None);
        }
        let what = format!("the sidecar at {} does not serve {name}", socket.display());
        Err(Failure::new(Exit::Usage, what)
            .with_remedy("leave --socket out for a store that no sidecar serves"))
    }
}
