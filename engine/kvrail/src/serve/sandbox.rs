//! The sidecar's own sandbox: what it needs by its configuration, and what came of it.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use kvrail_metrics::Listen;
use kvrail_nvme::SERVICE_DEFAULT;
use kvrail_protocol::{SandboxReport, StatusReport};
use kvrail_sandbox::{Entered, Files, Needs, SandboxError, SandboxMode, Sandboxed, enter};
use kvrail_target::{KernelTree, Tree};
use kvrail_volume::beneath;

use kvrail_cli::config::{Config, GpuName, TargetConfig};
use kvrail_cli::failure::{Exit, Failure};

/// Where drives are.
const DEVICES: &str = "/dev";

/// Where CUDA's driver looks for its parts; its devices lie beside the drives.
const CUDA: [&str; 5] = ["/usr", "/lib", "/lib64", "/etc", "/opt"];

/// Shown in the log, at start and by `kvrail status`.
const OFF: &str = "sidecar.sandbox = \"off\": an attacker in this process has all rights of \
                   its user; set it to \"on\"";

/// Gives up what the sidecar does not need, before its first thread: files and capabilities.
///
/// # Errors
/// `Failure` with the remedy where a strict sandbox cannot be, or the socket's folder cannot be
/// made.
pub(crate) fn confine(
    config: &Config,
    read: &[&Path],
    remove: &[PathBuf],
) -> Result<Entered, Failure> {
    // A folder that is to be used must be there.
    kvrail_session::make_folder(&config.sidecar.socket)
        .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
    let mut needs = needs(config, read);
    remove.iter().for_each(|folder| needs.remove(folder));
    enter(config.sidecar.sandbox, &needs).map_err(|error| refused(&error))
}

/// Filters system calls as well, now that all is open; the log lists what is missing.
pub(super) fn close(entered: Entered) -> Result<Sandboxed, Failure> {
    let sandboxed = entered.close().map_err(|error| refused(&error))?;
    notes(&sandboxed).iter().for_each(|note| tracing::warn!("{note}"));
    Ok(sandboxed)
}

fn refused(error: &SandboxError) -> Failure {
    let remedy = match error {
        SandboxError::Lacks(_) => {
            "set sidecar.sandbox = \"on\" for what this kernel has, or \"off\""
        }
        SandboxError::Threads(_) => {
            "start without a library that starts threads of its own before the sidecar does: of \
             jemalloc set MALLOC_CONF=background_thread:false, or leave it out of LD_PRELOAD; or \
             set sidecar.sandbox = \"off\""
        }
        SandboxError::Kernel { .. } | SandboxError::Rule(_) => {
            "allow the call in the seccomp profile around the sidecar, or set sidecar.sandbox = \
             \"off\""
        }
    };
    Failure::new(Exit::Refused, format!("sidecar.sandbox: {error}")).with_remedy(remedy)
}

fn needs(config: &Config, read: &[&Path]) -> Needs {
    let mut needs = Needs::default();
    // An editor puts another file in its place.
    read.iter().flat_map(|file| folders_of(file)).for_each(|folder| needs.read(folder));
    config.sidecar.socket.parent().into_iter().for_each(|folder| needs.own(folder));
    match &config.metrics.listen {
        Listen::Tcp(address) => needs.listen(address.port()),
        Listen::Unix(path) => path.parent().into_iter().for_each(|folder| needs.own(folder)),
        Listen::Off => {}
    }
    let members: Vec<_> = config.volume.iter().flat_map(|volume| &volume.members).collect();
    let paths = || members.iter().filter_map(|member| member.path());
    paths().filter(|path| !is_device(path)).for_each(|path| needs.change(path));
    let exports = config.target.subsystem.iter().flat_map(|subsystem| &subsystem.namespace);
    let exports = exports.filter_map(|namespace| namespace.device.path());
    // A claim locks what its device or file rests on.
    paths().chain(exports).flat_map(beneath).for_each(|file| needs.read(file));
    if members.iter().any(|member| member.path().is_none_or(is_device)) {
        administer(&mut needs);
    }
    config.gpu.devices.iter().for_each(|&name| gpu(&mut needs, name));
    target(&mut needs, &config.target);
    needs
}

/// Whether a target can be made later on, when the configuration is read again.
pub(super) fn reaches_target(config: &Config) -> bool {
    config.sidecar.sandbox == SandboxMode::Off || !config.target.wish().is_empty()
}

/// A stand-in finds the memory of clients as files that they have open.
fn gpu(needs: &mut Needs, name: GpuName) {
    if matches!(name, GpuName::EmulatedGpu(_)) {
        needs.open_files_of_others();
    } else {
        needs.change(DEVICES);
        needs.name_threads();
        CUDA.iter().for_each(|folder| needs.read(*folder));
    }
}

/// A drive that comes back may have another name.
fn administer(needs: &mut Needs) {
    needs.change(DEVICES);
    needs.administer();
}

/// The kernel's target, where one is to be kept; else what an earlier one left is only looked at.
fn target(needs: &mut Needs, target: &TargetConfig) {
    if target.wish().is_empty() {
        needs.read(&target.state_dir);
        return;
    }
    // Their users report the errors.
    let _there = std::fs::create_dir_all(&target.state_dir);
    load_modules(target);
    needs.own(&target.state_dir);
    needs.own(&target.configfs);
    administer(needs);
    needs.try_addresses();
    let services = target.port.iter().filter_map(|port| port.service);
    services.chain([SERVICE_DEFAULT]).for_each(|service| needs.listen(service));
    let keys =
        target.host.iter().flat_map(|host| [&host.dhchap_key_file, &host.dhchap_ctrl_key_file]);
    keys.flatten().flat_map(|key| folders_of(key)).for_each(|folder| needs.read(folder));
}

/// No program is started and no module loaded from within. The folder of configfs comes with nvmet.
fn load_modules(target: &TargetConfig) {
    let mut kernel = KernelTree::at(&target.configfs);
    let transports = target.port.iter().map(|port| port.transport.target_module());
    for module in std::iter::once("nvmet").chain(transports) {
        if !kernel.has_module(module) {
            let _loaded = kernel.load_module(module);
        }
    }
}

fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// The folder that a file lies in, and the one that it really lies in.
fn folders_of(file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().ok();
    let given = std::path::absolute(file).ok();
    [given, real].iter().flatten().filter_map(|file| Some(file.parent()?.to_owned())).collect()
}

fn notes(sandboxed: &Sandboxed) -> Vec<String> {
    if sandboxed.mode == SandboxMode::Off {
        return vec![OFF.into()];
    }
    sandboxed.lacks.iter().map(|what| format!("the sandbox is not whole: {what}")).collect()
}

/// Adds it to a report.
pub(super) fn add_to(report: &mut StatusReport, sandboxed: &Sandboxed) {
    report.sandbox = shown(sandboxed);
    report.notes.extend(notes(sandboxed));
}

/// A line for the start report.
pub(super) fn line(sandboxed: &Sandboxed) -> String {
    format!("  sandbox {}\n", shown(sandboxed).words())
}

fn shown(sandboxed: &Sandboxed) -> SandboxReport {
    let files = match sandboxed.files {
        Files::Whole => "whole",
        Files::Part => "part",
        Files::None => "none",
    };
    SandboxReport {
        mode: sandboxed.mode.to_string(),
        files: files.into(),
        calls_filtered: sandboxed.calls_filtered,
        capabilities: sandboxed.capabilities.clone(),
    }
}

#[cfg(test)]
mod tests {
    use kvrail_sandbox::SandboxError;

    use super::refused;

    #[test]
    fn threads_that_a_library_started_are_no_matter_of_the_mode() {
        let said = refused(&SandboxError::Threads(2)).log_text();
        assert!(said.contains("MALLOC_CONF=background_thread:false"), "{said}");
        assert!(!said.contains("sandbox = \"on\""), "it may be on already: {said}");
    }
}
