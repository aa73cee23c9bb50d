//! The input of checks: files below a root, and the few things that only a try shows.

use std::path::PathBuf;

use kvrail_memory::{Mount, Root, Topology};
use kvrail_nvme::{Drive, NvmeHost};
use kvrail_topology::Map;
use serde::Serialize;

use crate::finding::Verdict;
use crate::member::ConfiguredMember;
use crate::options::KernelOptions;
use crate::outcome::Outcome;

/// Number of the capability to lock memory (capabilities(7)).
pub(crate) const CAP_IPC_LOCK: u32 = 14;

/// The purpose of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostPurpose {
    /// Run the sidecar.
    Serve,
    /// Keep blocks by key.
    Store,
    /// Export drives over NVMe-oF.
    Target,
    /// Connect to NVMe-oF targets.
    Host,
    /// Move blocks between drives and GPU memory.
    Gpu,
    /// Measure.
    Bench,
}

impl HostPurpose {
    /// Every purpose.
    pub const ALL: [Self; 6] =
        [Self::Serve, Self::Store, Self::Target, Self::Host, Self::Gpu, Self::Bench];
}

/// Results of tries; none where it was not tried (a root that is not this host).
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// io_uring with registered memory.
    pub io_uring: Option<Tried>,
    /// `CUFILE_ENV_PATH_JSON` of the environment.
    pub cufile_config: Option<PathBuf>,
    /// Answers of drives.
    pub drives: Vec<Drive>,
    /// Members of the configured stores.
    pub stores: Vec<ConfiguredMember>,
}

/// How a try ended.
#[derive(Clone, Debug)]
pub enum Tried {
    /// It works; what was seen.
    Works(String),
    /// It does not.
    Fails {
        /// The observation.
        seen: String,
        /// The remedy.
        remedy: String,
    },
}

/// A host as the checks see it.
pub struct Machine {
    pub(crate) root: Root,
    pub(crate) purpose: Option<HostPurpose>,
    pub(crate) live: Live,
    /// Members of volumes that are files or devices.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) release: String,
    pub(crate) options: Option<KernelOptions>,
    topology: Result<Topology, String>,
    map: Result<Map, String>,
    host: Result<NvmeHost, String>,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("root", &self.root).field("release", &self.release).finish()
    }
}

impl Machine {
    /// Reads what several checks need.
    #[must_use]
    pub fn read(root: Root, purpose: Option<HostPurpose>, paths: Vec<PathBuf>, live: Live) -> Self {
        let release = root.text("proc/sys/kernel/osrelease").ok().flatten().unwrap_or_default();
        let release = release.trim().to_owned();
        Self {
            options: KernelOptions::find(&root, &release),
            topology: Topology::read(&root.path("/")).map_err(|why| why.to_string()),
            map: Map::read(&root).map_err(|why| why.to_string()),
            host: NvmeHost::read(&root).map_err(|why| why.to_string()),
            root,
            purpose,
            live,
            paths,
            release,
        }
    }

    /// Whether the user requested this purpose alone.
    pub(crate) fn is_for(&self, purpose: HostPurpose) -> bool {
        self.purpose == Some(purpose)
    }

    pub(crate) fn topology(&self) -> Result<&Topology, Outcome> {
        self.topology.as_ref().map_err(Outcome::unseen)
    }

    pub(crate) fn map(&self) -> Result<&Map, Outcome> {
        self.map.as_ref().map_err(Outcome::unseen)
    }

    pub(crate) fn host(&self) -> Result<&NvmeHost, Outcome> {
        self.host.as_ref().map_err(Outcome::unseen)
    }

    /// A file's text without the blanks around it; none where there is no such file.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, Outcome> {
        match self.root.text(path) {
            Ok(text) => Ok(text.map(|text| text.trim().to_owned())),
            Err(why) => Err(Outcome::unseen(why.to_string())),
        }
    }

    /// The mount table, in its order.
    pub(crate) fn mounts(&self) -> Result<Vec<Mount>, Outcome> {
        let all = Mount::all(&self.root).map_err(|why| Outcome::unseen(why.to_string()))?;
        all.ok_or_else(|| Outcome::unseen("no /proc/self/mountinfo"))
    }

    /// The value behind `key:` in a file of such lines.
    pub(crate) fn field(&self, path: &str, key: &str) -> Result<Option<String>, Outcome> {
        let text = self.text(path)?.unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value);
        Ok(value.map(|value| value.trim().to_owned()))
    }

    pub(crate) fn option(&self, name: &str, missing: Verdict) -> Outcome {
        let Some(options) = &self.options else {
            return Outcome::unseen(format!(
                "no configuration of kernel {} (/proc/config.gz, /boot, /lib/modules)",
                self.release
            ));
        };
        match options.value(name) {
            Some(value) => Outcome::ok(format!("CONFIG_{name}={value}")),
            None => Outcome::new(missing, format!("CONFIG_{name} is not set")),
        }
    }

    /// Loaded, loadable, built in, or missing.
    pub(crate) fn module(&self, name: &str, missing: Verdict) -> Outcome {
        if self.root.path(format!("sys/module/{name}")).exists() {
            return Outcome::ok(format!("{name} is loaded or built in"));
        }
        let dashed = name.replace('_', "-");
        let files = [format!("/{name}.ko"), format!("/{dashed}.ko")];
        let mut seen_any = false;
        for list in ["modules.builtin", "modules.dep"] {
            for home in ["lib/modules", "usr/lib/modules"] {
                let path = format!("{home}/{}/{list}", self.release);
                let Ok(Some(text)) = self.root.text(&path) else { continue };
                seen_any = true;
                let names = text.lines().map(|line| line.split(':').next().unwrap_or(line));
                if names.into_iter().any(|line| files.iter().any(|file| line.contains(file))) {
                    return Outcome::ok(format!("{name} can be loaded"));
                }
            }
        }
        let why = if seen_any {
            "is not among this kernel's modules"
        } else {
            "is not loaded, and this kernel's modules are not here"
        };
        Outcome::new(missing, format!("{name} {why}"))
    }

    /// Whether this process has a capability; none where the kernel does not report it.
    pub(crate) fn holds(&self, bit: u32) -> Result<Option<bool>, Outcome> {
        let mask = self.field("proc/self/status", "CapEff")?;
        let mask = mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        Ok(mask.map(|mask| mask >> bit & 1 == 1))
    }

    pub(crate) fn capability(&self, name: &str, bit: u32, missing: Verdict) -> Outcome {
        match self.holds(bit) {
            Err(unseen) => unseen,
            Ok(None) => Outcome::unseen("/proc/self/status has no CapEff"),
            Ok(Some(true)) => Outcome::ok(format!("{name} is held")),
            Ok(Some(false)) => Outcome::new(missing, format!("{name} is not held")),
        }
    }

    pub(crate) fn node(&self, pattern: &str, missing: Verdict) -> Outcome {
        let (dir, name) = pattern.rsplit_once('/').unwrap_or(("", pattern));
        let fits = |entry: &String| match name.strip_suffix('*') {
            Some(prefix) => entry.starts_with(prefix),
            None => entry == name,
        };
        let found: Vec<String> = self.root.names(dir).into_iter().filter(fits).collect();
        if found.is_empty() {
            return Outcome::new(missing, format!("no /{pattern}"));
        }
        Outcome::ok(format!("/{dir}/{}", found.join(" ")))
    }
}
