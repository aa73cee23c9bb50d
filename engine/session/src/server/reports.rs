//! The report of the control thread.

use kvrail_counters::SidecarCounters;
use kvrail_poller::WokenBy;
use kvrail_protocol::{
    ClientWaker, ConfigReport, SandboxReport, SessionReport, SidecarReport, StatusReport, troubles,
};

use super::Server;
use crate::report::{self, narrow};
use crate::session::Session;

impl Server {
    /// How everything is now.
    #[must_use]
    pub fn report(&self) -> StatusReport {
        let handles = self.pollers.handles();
        let lanes = self.queues.total();
        let poller = |(at, handle)| report::poller(handle, (at, lanes), &self.busy, &self.watch);
        let sessions = self.sessions.iter().filter(|session| !session.is_greeting());
        let gpus = self.config.gpus.iter().enumerate();
        let limit_bytes = self.config.policy.limits.arena_bytes_total;
        let mut report = StatusReport {
            sidecar: self.report_sidecar(),
            paths: Vec::new(),
            target: None,
            sandbox: SandboxReport::default(),
            config: ConfigReport::default(),
            endpoint_problem: None,
            pollers: handles.iter().enumerate().map(poller).collect(),
            devices: report::devices(handles),
            volumes: self.volumes.iter().map(report::volume).collect(),
            shards: self.stores.report(handles),
            gpus: gpus.map(|(at, gpu)| gpu.report(self.regions.on_gpu(at))).collect(),
            calls: self.latencies.report(),
            memory_hits: Some(self.stores.report_memory_hits(handles)),
            sessions: sessions.map(|session| self.report_session(session)).collect(),
            regions: report::regions(&self.sessions, &self.regions, limit_bytes),
            notes: self.notes().collect(),
            troubles: Vec::new(),
        };
        self.recent.add_to(&mut report.devices);
        (self.report_hook.0)(&mut report);
        report.troubles = troubles(&report);
        report
    }

    fn notes(&self) -> impl Iterator<Item = String> {
        let configured = self.config.notes.iter().cloned();
        let unregistered = report::unregistered(self.pollers.handles());
        configured.chain(self.regions.notes()).chain(unregistered)
    }

    fn report_sidecar(&self) -> SidecarReport {
        let limits = &self.config.policy.limits;
        SidecarReport {
            pid: std::process::id(),
            epoch: self.config.identity.epoch.0,
            version: self.config.identity.version.clone(),
            uptime_s: self.started.elapsed().as_secs(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            started_unix_s: self.started_unix_s,
            socket: self.config.socket.display().to_string(),
            state: self.shutdown.shown(),
            counters: SidecarCounters {
                refused: Some(self.sessions.refused()),
                closing: Some(self.workers.waiting() as u64),
                // The log belongs to the process: the count is added where the report is shown.
                log_lines_lost: None,
            },
            sessions_max: narrow(limits.sessions),
            sessions_per_uid: narrow(limits.sessions_per_uid),
        }
    }

    fn report_session(&self, session: &Session) -> SessionReport {
        let counted = session.slot().map(|slot| self.pollers.counted(slot)).unwrap_or_default();
        let waits = self.watch.words(session.waits_for());
        let woken_by = match self.wakers.woken_by(session.id()) {
            WokenBy::Ringer => ClientWaker::Ringer,
            WokenBy::Poller => ClientWaker::Poller,
        };
        let report = session.report(self.holdings(session.id()), counted, &waits, woken_by);
        SessionReport { latencies: self.latencies.of(session.id()), ..report }
    }
}
