//! cuFile: its library, its configuration file, and the udev entries that it reads.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::gpu::gpus;
use kvrail_memory::Mount;

use crate::machine::Machine;
use crate::outcome::Outcome;

const LIBRARY: &str = "libcufile.so.0";

/// Where CUDA's packages put libraries; a `*` stands for any end of one folder's name.
const FOLDERS: [&str; 7] = [
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/x86_64-linux/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
    "opt/nvidia/lib",
];

const CONFIG: &str = "/etc/cufile.json";

pub(crate) fn library(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if gpus(machine)?.is_empty() {
        return Ok(Vec::new());
    }
    let found = FOLDERS.iter().flat_map(|folder| spread(machine, folder));
    let mut found = found.map(|folder| format!("{folder}/{LIBRARY}"));
    let path = found.find(|path| machine.root.path(path).exists());
    Ok(vec![match path {
        None => Outcome::warning(format!("{LIBRARY} is in none of the usual folders")),
        Some(path) => {
            // The version stands in the name that the link leads to.
            let real = std::fs::canonicalize(machine.root.path(&path)).ok();
            let name = real.and_then(|real| Some(real.file_name()?.to_string_lossy().into_owned()));
            Outcome::ok(format!("/{path} ({})", name.unwrap_or_else(|| "no version".into())))
        }
    }])
}

/// Folders that a pattern with one `*` means.
fn spread(machine: &Machine, pattern: &str) -> Vec<String> {
    let Some((before, after)) = pattern.split_once('*') else { return vec![pattern.to_owned()] };
    let (dir, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let names = machine.root.names(dir).into_iter().filter(|name| name.starts_with(prefix));
    names.map(|name| format!("{dir}/{name}{after}")).collect()
}

pub(crate) fn configuration(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if gpus(machine)?.is_empty() {
        return Ok(Vec::new());
    }
    let path = machine.live.cufile_config.clone().unwrap_or_else(|| PathBuf::from(CONFIG));
    let shown = path.display();
    let Some(text) = machine.text(&path.to_string_lossy())? else {
        return Ok(vec![Outcome::warning(format!("{shown} is missing: cuFile's defaults hold"))]);
    };
    let value: Value = match serde_json::from_str(&without_comments(&text)) {
        Ok(value) => value,
        Err(why) => return Ok(vec![Outcome::failure(format!("{shown} is no JSON: {why}"))]),
    };
    let property = |key: &str| value["properties"][key].as_bool();
    let say = |set: Option<bool>| set.map_or("not set", |on| if on { "true" } else { "false" });
    let (compat, p2p) = (property("allow_compat_mode"), property("use_pci_p2pdma"));
    let (compat_said, p2p_said) = (say(compat), say(p2p));
    let seen = format!("{shown}: allow_compat_mode {compat_said}, use_pci_p2pdma {p2p_said}");
    let direct_ways = machine.root.path("sys/module/nvidia_fs").exists() || p2p == Some(true);
    Ok(vec![if direct_ways { Outcome::ok(seen) } else { Outcome::warning(seen) }])
}

/// cuFile's files are JSON with `//` comments.
fn without_comments(text: &str) -> String {
    let line = |line: &str| {
        let mut quoted = false;
        let mut before = ' ';
        for (at, letter) in line.char_indices() {
            quoted ^= letter == '"' && before != '\\';
            if !quoted && letter == '/' && before == '/' {
                return line[..at - 1].to_owned();
            }
            before = letter;
        }
        line.to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Without an entry that names the file system, registering a file fails with 5027.
pub(crate) fn udev(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if gpus(machine)?.is_empty() {
        return Ok(Vec::new());
    }
    let mut mounts = machine.mounts()?;
    if !machine.paths.is_empty() {
        let files = machine.paths.iter().filter(|path| !path.starts_with("/dev"));
        mounts = files.filter_map(|path| Mount::of(&mounts, path).cloned()).collect();
    }
    mounts.retain(|mount| mount.kind == "ext4" || mount.kind == "xfs");
    mounts.sort_by(|a, b| a.device.cmp(&b.device));
    mounts.dedup_by(|a, b| a.device == b.device);
    mounts.iter().map(|mount| entry(machine, mount)).collect()
}

fn entry(machine: &Machine, mount: &Mount) -> Result<Outcome, Outcome> {
    let path = format!("run/udev/data/b{}", mount.device);
    let text = machine.text(&path)?.unwrap_or_default();
    let has = |line: String| text.lines().any(|other| other == line);
    let told =
        has("E:ID_FS_USAGE=filesystem".into()) && has(format!("E:ID_FS_TYPE={}", mount.kind));
    let subject = Path::new(&mount.point).display().to_string();
    if told {
        return Ok(Outcome::ok(format!("/{path} names {}", mount.kind)).of(subject));
    }
    let remedy = format!(
        "run udevd on the host and pass /run/udev into the container; or: mkdir -p /run/udev/data \
         && printf 'E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE={}\\n' >/{path}",
        mount.kind
    );
    let seen = format!("/{path} does not name the file system");
    Ok(Outcome::failure(seen).with_remedy(remedy).of(subject))
}

#[cfg(test)]
mod tests {
    use super::without_comments;

    #[test]
    fn comments_go_and_addresses_stay() {
        let text = "{ // a comment\n  \"url\": \"http://x\", // \"y\"\n  \"n\": 1 }";
        let value: serde_json::Value = serde_json::from_str(&without_comments(text)).unwrap();
        assert_eq!(value["url"], "http://x");
    }
}
