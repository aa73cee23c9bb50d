//! Which way bytes go between a device and a GPU: what the configuration allows and what works.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use kvrail_cufile::Compat;
use serde::{Deserialize, Serialize};

use crate::contract::{DirectPath, Gpu, Registered};
use crate::error::GpuError;
use crate::port::CopyRoute;

/// Which mechanism is to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MechanismChoice {
    /// Direct where it goes past host memory, else staged.
    #[default]
    Auto,
    /// Staged, always.
    Staged,
    /// Direct, or the sidecar does not start.
    RequireDirect,
    /// The GPU's direct calls, even where they bounce through host memory.
    AllowCompat,
}

impl MechanismChoice {
    /// Every choice.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Staged, Self::RequireDirect, Self::AllowCompat];

    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Staged => "staged",
            Self::RequireDirect => "require-direct",
            Self::AllowCompat => "allow-compat",
        }
    }

    /// Whether cuFile may bounce.
    #[must_use]
    pub const fn compat(self) -> Compat {
        match self {
            Self::AllowCompat => Compat::Allowed,
            Self::Auto | Self::Staged | Self::RequireDirect => Compat::Refused,
        }
    }
}

impl fmt::Display for MechanismChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MechanismChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A member device of a volume.
#[derive(Debug)]
pub struct MemberFile {
    /// Its path.
    pub name: String,
    /// Opened for this purpose; the device's own descriptor stays what it is.
    pub file: OwnedFd,
}

/// The choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub route: CopyRoute,
    /// How direct I/O travels, where it is used.
    pub path: Option<DirectPath>,
    /// Why, for people.
    pub reason: String,
}

impl Choice {
    fn staged(reason: String) -> Self {
        Self { route: CopyRoute::Staged, path: None, reason }
    }

    fn direct(Registered { file, path, reason }: Registered) -> Self {
        Self { route: CopyRoute::Direct(file), path: Some(path), reason }
    }
}

/// Decides for one device and one GPU.
///
/// # Errors
/// `GpuError::NotDirect` when direct I/O is required and not to be had; the error of registering
/// the file when compatibility mode was requested.
pub fn choose(
    gpu: &dyn Gpu,
    member: MemberFile,
    wanted: MechanismChoice,
) -> Result<Choice, GpuError> {
    let MemberFile { name, file } = member;
    let uuid = gpu.identity().uuid;
    let not_direct =
        |reason: String| GpuError::NotDirect { device: name.clone(), gpu: uuid, reason };
    if wanted == MechanismChoice::Staged {
        return Ok(Choice::staged("configured".to_owned()));
    }
    let Some(direct) = gpu.direct() else {
        let reason = "cuFile is not usable".to_owned();
        return match wanted {
            MechanismChoice::Auto => Ok(Choice::staged(format!("auto: {reason}"))),
            _ => Err(not_direct(reason)),
        };
    };
    match (direct.register(file, &name), wanted) {
        (Ok(found), MechanismChoice::AllowCompat) => Ok(Choice::direct(found)),
        (Ok(found), _) if found.path == DirectPath::Direct => Ok(Choice::direct(found)),
        (Ok(found), MechanismChoice::Auto) => Ok(Choice::staged(format!("auto: {}", found.reason))),
        (Err(error), MechanismChoice::Auto) => Ok(Choice::staged(format!("auto: {error}"))),
        (Ok(found), _) => Err(not_direct(found.reason)),
        (Err(error), MechanismChoice::AllowCompat) => Err(error),
        (Err(error), _) => Err(not_direct(error.to_string())),
    }
}
