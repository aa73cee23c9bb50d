//! The configured volumes: claimed and verified, or null for benchmarks.

use std::path::Path;

use kvrail_ring::Geometry;
use kvrail_store::Members;
use kvrail_units::Size;
use kvrail_volume::{
    LABEL_BYTES, Member, Present, Purpose, Reason, StoreMember, StoreShape, Volume, VolumeToOpen,
    open_present,
};
use uuid::Uuid;

use crate::members::{Located, locate};
use kvrail_cli::config::{Config, NullContent, PoolConfig, VolumeConfig as Configured};
use kvrail_cli::failure::{Exit, Failure};

/// A member as configured.
#[derive(Debug)]
pub(crate) enum MemberSource {
    /// Claimed and labelled.
    Claimed(Member),
    /// It was taken out of its store, and is not claimed any more.
    Retired {
        /// Where it was.
        name: String,
    },
    /// Moves no bytes.
    Null {
        /// Bytes it claims to have.
        bytes: u64,
    },
}

/// A volume to serve.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) uuid: Uuid,
    pub(crate) geometry: Geometry,
    pub(crate) purpose: Purpose,
    /// Of a store.
    pub(crate) pools: Vec<PoolConfig>,
    pub(crate) members: Vec<MemberSource>,
    /// These, as the configuration names them.
    pub(crate) named: Vec<String>,
    /// Members that it should have and that were not there at the start, as the configuration names
    /// them.
    pub(crate) missing: Vec<String>,
    /// Those of them that were taken out since.
    pub(crate) written_off: Vec<String>,
    /// The numbers of its members, and of all that the volume has.
    pub(crate) present: Members,
    pub(crate) expected: Members,
    /// Members that were added while it is served, and where: the next start serves them.
    pub(crate) waiting: Vec<(u16, String)>,
    /// Which device each member that is not named by its node is today.
    pub(crate) notes: Vec<String>,
}

/// There must be something to serve.
pub(super) fn check_some(config: &Config) -> Result<(), Failure> {
    if !config.volume.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, "no volume is configured")
        .with_remedy("add a [[volume]] with name and members; `kvrail volume create` makes one"))
}

/// Opens all configured volumes.
pub(super) fn open_all(config: &Config) -> Result<Vec<Served>, Failure> {
    check_some(config)?;
    let opened = |volume| {
        let served = open(config, volume)?;
        match served.purpose {
            Purpose::Raw if !volume.write_budget.is_auto() => {
                Err(no_store(volume, &format!("write_budget = \"{}\"", volume.write_budget)))
            }
            Purpose::Raw if !volume.tenant.is_empty() => Err(no_store(volume, "tenant")),
            Purpose::Raw if !volume.pool.is_empty() => Err(no_store(volume, "pool")),
            _ => Ok(served),
        }
    };
    config.volume.iter().map(opened).collect()
}

fn no_store(volume: &Configured, key: &str) -> Failure {
    let words = format!("volume {}: {key}: only stores have this, and it is raw", volume.name);
    let remedy = "remove the key, or make a store: `kvrail volume create --kind store`";
    Failure::new(Exit::Usage, words).with_remedy(remedy)
}

fn open(config: &Config, volume: &Configured) -> Result<Served, Failure> {
    let null_size = volume.members.first().and_then(|member| volume.null_size(member));
    if let Some(Ok(size)) = null_size {
        return null(volume, size.bytes());
    }
    let (located, unfound): (Vec<_>, Vec<_>) = volume
        .members
        .iter()
        .map(|member| (member, locate(member)))
        .partition(|found| found.1.is_ok());
    let located: Vec<Located> = located.into_iter().filter_map(|(_, found)| found.ok()).collect();
    let mut notes: Vec<String> = located.iter().filter_map(Located::note).collect();
    let nowhere: Vec<String> = unfound.iter().map(|(member, _)| member.to_string()).collect();
    notes.extend(nowhere.iter().map(|member| format!("{member} is not there")));
    let paths: Vec<_> = located.iter().map(|member| member.path.clone()).collect();
    let direct = config.device_of(volume).claim_direct();
    let wanted =
        VolumeToOpen { members: &paths, unfound: unfound.len(), name: &volume.name, direct };
    let unfound = unfound.into_iter().find_map(|(_, why)| why.err());
    let opened = match (open_present(&wanted), unfound) {
        (Ok(opened), Some(why)) if opened.volume.purpose == Purpose::Raw => return Err(why),
        (Err(error), Some(why)) if !matches!(error.reason, Reason::TooFew { .. }) => {
            return Err(why);
        }
        (opened, _) => opened?,
    };
    let Present { volume: Volume { uuid, geometry, purpose, members, .. }, .. } = &opened;
    let named = |path: &Path| {
        let named = located.iter().find(|member| member.path == path);
        named.map_or_else(|| path.display().to_string(), |member| member.named.to_string())
    };
    let absent = opened.absent.iter().map(|path| named(path)).chain(nowhere).collect();
    let (present, expected) = (opened.volume.present, opened.volume.expected);
    let small =
        members.iter().filter_map(|member| smaller_blocks(member, geometry)).collect::<Vec<_>>();
    Ok(Served {
        name: volume.name.to_string(),
        uuid: *uuid,
        geometry: *geometry,
        purpose: *purpose,
        pools: volume.pool.clone(),
        named: members.iter().map(|member| named(member.path())).collect(),
        missing: missing(absent, expected.without(present)),
        written_off: Vec::new(),
        members: opened.volume.members.into_iter().map(MemberSource::Claimed).collect(),
        present,
        expected,
        waiting: Vec::new(),
        notes: notes.into_iter().chain(opened.remarks).chain(small).collect(),
    })
}

/// The names of the missing members: as configured, or their numbers where the configuration
/// does not name them.
fn missing(absent: Vec<String>, numbers: Members) -> Vec<String> {
    let mut absent = absent.into_iter();
    let name = |number| absent.next().unwrap_or_else(|| format!("member {number}"));
    numbers.iter().map(name).collect()
}

/// The message for a file whose kernel promises larger blocks than the volume has.
fn smaller_blocks(member: &Member, geometry: &Geometry) -> Option<String> {
    let promised = member.claim.promised_block()?;
    let (path, block) = (member.path().display(), geometry.logical_block);
    Some(format!(
        "{path}: its file system promises blocks of {promised} bytes (a copy by reflink shares \
         its extents), the volume has blocks of {block}: writes that are no whole blocks go \
         through the page cache there; `cp --reflink=never` to a new file and `mv` back end that"
    ))
}

/// A null volume, in stripes of 1 MiB; a store if it is configured as one.
fn null(volume: &Configured, bytes: u64) -> Result<Served, Failure> {
    let stripe_bytes = 1 << 20;
    let geometry = Geometry {
        members: 1,
        stripe_bytes,
        member_bytes: (bytes / stripe_bytes).max(1) * stripe_bytes,
        data_offset: LABEL_BYTES,
        logical_block: 512,
        memory_alignment: 4,
    };
    let members = vec![MemberSource::Null { bytes }];
    let purpose = match volume.content {
        Some(NullContent::Store) => {
            let member = StoreMember::new(geometry.member_bytes, geometry.logical_block);
            Purpose::Store(StoreShape::usual(member)?)
        }
        Some(NullContent::Raw) | None => Purpose::Raw,
    };
    let (name, uuid) = (volume.name.to_string(), Uuid::nil());
    Ok(Served {
        name,
        uuid,
        geometry,
        purpose,
        pools: volume.pool.clone(),
        named: volume.members.iter().map(ToString::to_string).collect(),
        missing: Vec::new(),
        written_off: Vec::new(),
        members,
        present: Members::first(1),
        expected: Members::first(1),
        waiting: Vec::new(),
        notes: Vec::new(),
    })
}

impl MemberSource {
    /// The claimed member, if it is one.
    pub(crate) fn claimed(&self) -> Option<&Member> {
        match self {
            Self::Claimed(member) => Some(member),
            Self::Retired { .. } | Self::Null { .. } => None,
        }
    }

    /// Path, or `null:` and the size.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Claimed(member) => member.path().display().to_string(),
            Self::Retired { name } => name.clone(),
            Self::Null { bytes } => format!("null:{}", Size::new(*bytes)),
        }
    }
}
