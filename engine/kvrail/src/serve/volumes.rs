//! The configured volumes: claimed and verified, or null for benchmarks.

use kvrail_ring::Geometry;
use kvrail_store::Members;
use kvrail_units::Size;
use kvrail_volume::{
    LABEL_BYTES, Member, Purpose, Reason, StoreMember, StoreShape, Volume, Wanted, open_present,
};
use uuid::Uuid;

use crate::config::{Config, NullContent, Pool, Volume as Configured};
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
    /// Of a store.
    pub(crate) pools: Vec<Pool>,
    pub(crate) members: Vec<Source>,
    /// The numbers of these members, and of all that the volume has.
    pub(crate) present: Members,
    pub(crate) expected: Members,
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
    let (located, unfound): (Vec<_>, Vec<_>) =
        volume.members.iter().map(|member| (member, locate(member))).partition(|it| it.1.is_ok());
    let located: Vec<Located> = located.into_iter().filter_map(|(_, found)| found.ok()).collect();
    let mut notes: Vec<String> = located.iter().filter_map(Located::note).collect();
    notes.extend(unfound.iter().map(|(member, _)| format!("{member} is not there")));
    let paths: Vec<_> = located.into_iter().map(|member| member.path).collect();
    let direct = config.device_of(volume).claim_direct();
    let wanted = Wanted { members: &paths, unfound: unfound.len(), name: &volume.name, direct };
    let unfound = unfound.into_iter().find_map(|(_, why)| why.err());
    let opened = match (open_present(&wanted), unfound) {
        (Ok((opened, _)), Some(why)) if opened.purpose == Purpose::Raw => return Err(why),
        (Err(error), Some(why)) if !matches!(error.reason, Reason::TooFew { .. }) => {
            return Err(why);
        }
        (opened, _) => opened?,
    };
    let (Volume { name, uuid, geometry, purpose, members, present, expected }, remarks) = opened;
    notes.extend(remarks);
    let members = members.into_iter().map(Source::Claimed).collect();
    let (name, pools) = (name.to_string(), volume.pool.clone());
    Ok(Served { name, uuid, geometry, purpose, pools, members, present, expected, notes })
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
    let (present, expected, notes) = (Members::first(1), Members::first(1), Vec::new());
    let pools = volume.pool.clone();
    Ok(Served { name, uuid, geometry, purpose, pools, members, present, expected, notes })
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
