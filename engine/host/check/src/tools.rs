//! The vendor's driver stack, and programs.

use std::process::{Command, Stdio};

use crate::machine::Machine;
use crate::outcome::Outcome;

/// Folders of programs that root has in its PATH.
const FOLDERS: [&str; 5] = ["usr/sbin", "usr/bin", "sbin", "bin", "usr/local/sbin"];

/// Parameters of the vendor's nvmet-rdma: where offload queues lie.
const OFFLOAD: [&str; 3] = ["offload_mem_start", "offload_mem_size", "offload_buffer_size"];

pub(crate) fn vendor_stack(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    // Drivers of the kernel itself carry no version.
    let module = machine.text("sys/module/mlx5_core/version")?;
    let release = output(machine, "ofed_info", "-s");
    let release = release.map(|text| text.trim_end_matches(':').to_owned());
    let words: Vec<String> = [release, module.map(|version| format!("mlx5_core {version}"))]
        .into_iter()
        .flatten()
        .collect();
    Ok(vec![if words.is_empty() {
        Outcome::warning("not installed: the kernel's own drivers")
    } else {
        Outcome::ok(words.join(", "))
    }])
}

pub(crate) fn offload_parameters(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let home = "sys/module/nvmet_rdma/parameters";
    if !machine.root.path("sys/module/nvmet_rdma").exists() {
        return Ok(vec![Outcome::unseen("nvmet-rdma is not loaded")]);
    }
    let mut words = Vec::new();
    for name in OFFLOAD {
        let value = machine.text(&format!("{home}/{name}"))?;
        words.extend(value.map(|value| format!("{name} {value}")));
    }
    Ok(vec![if words.is_empty() {
        Outcome::warning("this nvmet-rdma has no offload parameters")
    } else {
        Outcome::ok(words.join(", "))
    }])
}

pub(crate) fn nvme_cli(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let text = output(machine, "nvme", "version");
    Ok(vec![match text {
        Some(text) => Outcome::ok(text.lines().map(str::trim).collect::<Vec<_>>().join(", ")),
        None => Outcome::warning("nvme-cli is not installed"),
    }])
}

pub(crate) fn configfs(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let mounts = machine.mounts()?;
    let mount = mounts.iter().find(|mount| mount.kind == "configfs");
    Ok(vec![match mount {
        Some(mount) => Outcome::ok(format!("configfs at {}", mount.point.display())),
        None => Outcome::failure("configfs is not mounted"),
    }])
}

/// Output of a program in one of the root's usual folders; none where there is none or it fails.
fn output(machine: &Machine, program: &str, argument: &str) -> Option<String> {
    let found = FOLDERS.iter().map(|folder| machine.root.path(folder).join(program));
    let path = found.into_iter().find(|path| path.exists())?;
    let ran = Command::new(path).arg(argument).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    (ran.status.success() && !text.is_empty()).then_some(text)
}
