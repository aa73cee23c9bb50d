//! The configured volumes: claimed and verified, or null for benchmarks.

use kvrail_ring::Geometry;
use kvrail_units::Size;
use kvrail_volume::{LABEL_BYTES, Member, Purpose, StoreMember, StoreShape, Volume};
use uuid::Uuid;

use crate::config::{Config, NullContent, Volume as Configured};
use crate::failure::{Exit, Failure};
use crate::members::{Located, locate};

/// A member as configured.
#[derive(Debug)]
pub(crate) enum Source {
    /// Claimed and labelled.
    Claimed(Member),
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
    pub(crate) members: Vec<Source>,
    /// Which device each member that is not named by its node is today.
    pub(crate) notes: Vec<String>,
}

/// Opens all configured volumes.
pub(super) fn open_all(config: &Config) -> Result<Vec<Served>, Failure> {
    if config.volume.is_empty() {
        return Err(Failure::new(Exit::Usage, "no volume is configured").with_remedy(
            "add a [[volume]] with name and members; `kvrail volume create` makes one",
        ));
    }
    let opened = |volume| {
        let served = open(config, volume)?;
        match served.purpose {
            Purpose::Raw if !volume.write_budget.is_auto() => {
                Err(no_store(volume, &format!("write_budget = \"{}\"", volume.write_budget)))
            }
            Purpose::Raw if !volume.tenant.is_empty() => Err(no_store(volume, "tenant")),
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
    let located = volume.members.iter().map(locate).collect::<Result<Vec<_>, _>>()?;
    let notes = located.iter().filter_map(Located::note).collect();
    let paths: Vec<_> = located.into_iter().map(|member| member.path).collect();
    let direct = config.device_of(volume).claim_direct();
    let Volume { name, uuid, geometry, purpose, members } =
        kvrail_volume::open(&paths, Some(&volume.name), direct)?;
    let members = members.into_iter().map(Source::Claimed).collect();
    Ok(Served { name: name.to_string(), uuid, geometry, purpose, members, notes })
}

/// A null volume, in stripes of 1 MiB; a store if the configuration says so.
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
    let members = vec![Source::Null { bytes }];
    let purpose = match volume.content {
        Some(NullContent::Store) => {
            let member = StoreMember::new(geometry.member_bytes, geometry.logical_block);
            Purpose::Store(StoreShape::usual(member)?)
        }
        Some(NullContent::Raw) | None => Purpose::Raw,
    };
    let (name, uuid) = (volume.name.to_string(), Uuid::nil());
    Ok(Served { name, uuid, geometry, purpose, members, notes: Vec::new() })
}

impl Source {
    /// The claimed member, if it is one.
    pub(crate) fn claimed(&self) -> Option<&Member> {
        match self {
            Self::Claimed(member) => Some(member),
            Self::Null { .. } => None,
        }
    }

    /// Path, or `null:` and the size.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Claimed(member) => member.path().display().to_string(),
            Self::Null { bytes } => format!("null:{}", Size::new(*bytes)),
        }
    }
}
