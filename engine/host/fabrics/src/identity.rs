//! Who this host is to targets: its NQN and its id.
//!
//! The same name must always go with the same id, or the kernel refuses the connection.

use std::fs::OpenOptions;
use std::io::Write;

use kvrail_memory::Root;
use kvrail_nvme::Nqn;
use serde::Serialize;
use uuid::Uuid;

use crate::error::FabricsError;

/// Where nvme-cli keeps both, too.
const NQN_FILE: &str = "/etc/nvme/hostnqn";
const ID_FILE: &str = "/etc/nvme/hostid";

/// The machine's own UUID, where the firmware has one.
const MACHINE_FILE: &str = "/sys/class/dmi/id/product_uuid";

/// What some boards carry in place of a number of their own.
const NO_MACHINE: [&str; 3] = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
];

/// This host's name and id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// The name.
    pub nqn: Nqn,
    /// The id.
    pub id: Uuid,
    /// Where they come from.
    pub origin: Origin,
}

/// Where an identity comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The command line.
    Given,
    /// `/etc/nvme/hostnqn` and `hostid`.
    Files,
    /// The machine's UUID.
    Machine,
    /// Made now and kept in `/etc/nvme`.
    Made,
}

impl Identity {
    /// An identity that the caller chose.
    #[must_use]
    pub fn given(nqn: Nqn, id: Uuid) -> Self {
        Self { nqn, id, origin: Origin::Given }
    }

    /// What was given; else what the files say; else the machine's UUID; else made and kept in
    /// the files. An id that nobody gave is the one in the name, or one that the name determines.
    ///
    /// # Errors
    /// Files that cannot be read, understood or written.
    pub fn find(root: &Root, nqn: Option<Nqn>, id: Option<Uuid>) -> Result<Self, FabricsError> {
        if let Some(nqn) = nqn {
            let id = id.unwrap_or_else(|| id_of(&nqn));
            return Ok(Self::given(nqn, id));
        }
        let kept_nqn = read::<Nqn>(root, NQN_FILE)?;
        let id = match id {
            Some(id) => Some(id),
            None => read::<Uuid>(root, ID_FILE)?,
        };
        if let Some(nqn) = kept_nqn {
            let id = id.unwrap_or_else(|| id_of(&nqn));
            return Ok(Self { nqn, id, origin: Origin::Files });
        }
        if let Some(machine) = machine(root) {
            let id = id.unwrap_or(machine);
            return Ok(Self { nqn: nqn_of(machine), id, origin: Origin::Machine });
        }
        let uuid = id.unwrap_or_else(Uuid::new_v4);
        keep(root, NQN_FILE, nqn_of(uuid).as_str())?;
        if root.text(ID_FILE).ok().flatten().is_none() {
            keep(root, ID_FILE, &uuid.to_string())?;
        }
        Ok(Self { nqn: nqn_of(uuid), id: uuid, origin: Origin::Made })
    }
}

fn nqn_of(uuid: Uuid) -> Nqn {
    let text = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
    text.parse().expect("a UUID makes a name in UUID form")
}

/// The UUID in the name; for other names 16 bytes of its checksums, so that it stays the same.
fn id_of(nqn: &Nqn) -> Uuid {
    nqn.uuid().unwrap_or_else(|| {
        let part = |salt: &[u8]| {
            let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
            digest.update(salt);
            digest.update(nqn.as_str().as_bytes());
            digest.finalize()
        };
        uuid::Builder::from_custom_bytes(
            (u128::from(part(b"kvrail")) << 64 | u128::from(part(b"hostid"))).to_be_bytes(),
        )
        .into_uuid()
    })
}

fn machine(root: &Root) -> Option<Uuid> {
    // Readable by root only; who cannot read it cannot connect either.
    let text = root.text(MACHINE_FILE).ok().flatten()?;
    let uuid: Uuid = text.trim().parse().ok()?;
    (!NO_MACHINE.contains(&uuid.to_string().as_str())).then_some(uuid)
}

fn read<T: std::str::FromStr<Err: ToString>>(
    root: &Root,
    path: &str,
) -> Result<Option<T>, FabricsError> {
    let path_here = root.path(path);
    let text = match root.text(path) {
        Ok(text) => text.unwrap_or_default(),
        Err(why) => return Err(FabricsError::failed(why.to_string(), "run as root")),
    };
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() {
        return Ok(None);
    }
    line.parse().map(Some).map_err(|why: T::Err| {
        let words = format!("{}: `{line}`: {}", path_here.display(), why.to_string());
        FabricsError::usage(words, "correct the file, or remove it to have one made")
    })
}

/// Writes a new file; one that somebody else wrote meanwhile is an error, not overwritten.
fn keep(root: &Root, path: &str, text: &str) -> Result<(), FabricsError> {
    let path = root.path(path);
    let written = (|| {
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        writeln!(file, "{text}")?;
        file.sync_all()
    })();
    written.map_err(|why| {
        let error = FabricsError::file(&path, "keeping this host's name in", &why);
        // Whoever is not root cannot connect with a given name either.
        let remedy = match why.kind() {
            std::io::ErrorKind::PermissionDenied => error.remedy,
            _ => format!("{}, or give --hostnqn and --hostid", error.remedy),
        };
        FabricsError { remedy, ..error }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kvrail_memory::Root;

    use super::{Identity, Origin};

    const UUID: &str = "5a0a6e4c-6d0c-4d8b-8a3f-0d0f3c1b2a10";

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::new(dir.path());
        (dir, root)
    }

    #[test]
    fn files_come_before_the_machine_and_the_machine_before_a_new_name() {
        let files = [
            ("etc/nvme/hostnqn", "nqn.2026-11.org.example:h\n"),
            ("etc/nvme/hostid", UUID),
            ("sys/class/dmi/id/product_uuid", "4C4C4544-0044-4A10-8056-B4C04F4D3232\n"),
        ];
        let (_dir, root) = machine(&files);
        let it = Identity::find(&root, None, None).unwrap();
        assert_eq!((it.nqn.as_str(), it.origin), ("nqn.2026-11.org.example:h", Origin::Files));
        assert_eq!(it.id.to_string(), UUID);
        let (_dir, root) = machine(&files[2..]);
        let it = Identity::find(&root, None, None).unwrap();
        let name = "nqn.2014-08.org.nvmexpress:uuid:4c4c4544-0044-4a10-8056-b4c04f4d3232";
        assert_eq!((it.nqn.as_str(), it.origin), (name, Origin::Machine));
        let it = Identity::find(&root, Some("nqn.2026-11.org:x".parse().unwrap()), None).unwrap();
        assert_eq!(it.origin, Origin::Given);
    }

    #[test]
    fn a_made_name_is_kept() {
        for product in ["00000000-0000-0000-0000-000000000000", "Not Settable"] {
            let (_dir, root) = machine(&[("sys/class/dmi/id/product_uuid", product)]);
            let first = Identity::find(&root, None, None).unwrap();
            assert_eq!(first.origin, Origin::Made);
            let again = Identity::find(&root, None, None).unwrap();
            assert_eq!((&again.nqn, again.id, again.origin), (&first.nqn, first.id, Origin::Files));
        }
    }

    #[test]
    fn a_name_always_has_the_same_id() {
        let (_dir, root) = machine(&[]);
        let id = |name: &str| Identity::find(&root, Some(name.parse().unwrap()), None).unwrap().id;
        let uuid_form = format!("nqn.2014-08.org.nvmexpress:uuid:{UUID}");
        assert_eq!(id(&uuid_form).to_string(), UUID);
        assert_eq!(id("nqn.2026-11.org.example:a"), id("nqn.2026-11.org.example:a"));
        assert_ne!(id("nqn.2026-11.org.example:a"), id("nqn.2026-11.org.example:b"));
    }

    #[test]
    fn broken_files_are_named_and_not_replaced() {
        let (_dir, root) = machine(&[("etc/nvme/hostnqn", "nonsense\n")]);
        let error = Identity::find(&root, None, None).unwrap_err();
        assert!(error.message.contains("etc/nvme/hostnqn: `nonsense`"), "{error}");
        let (_dir, root) =
            machine(&[("etc/nvme/hostnqn", "nqn.2026-11.org:x"), ("etc/nvme/hostid", "7")]);
        let error = Identity::find(&root, None, None).unwrap_err();
        assert!(error.message.contains("etc/nvme/hostid: `7`"), "{error}");
        let (_dir, root) = machine(&[("etc/nvme", "a file in the way")]);
        let error = Identity::find(&root, None, None).unwrap_err();
        assert!(error.remedy.contains("--hostnqn"), "{error:?}");
    }
}
