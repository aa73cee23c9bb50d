//! Files with keys of in-band authentication: read only where the owner alone may touch them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use thiserror::Error;

/// Permissions of the group and of all others.
const OTHERS: u32 = 0o077;

/// Why a key was not read. The message names neither the file nor what is in it.
#[derive(Debug, Error)]
pub enum SecretFileError {
    /// It is not there, or this user may not read it.
    #[error("it cannot be read ({0})")]
    Unreadable(#[from] std::io::Error),
    /// Others may touch it, so it is no secret: its permissions.
    #[error("others than its owner may touch it (mode {0:04o})")]
    Open(u32),
}

impl SecretFileError {
    /// The remedy.
    #[must_use]
    pub fn remedy(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Unreadable(_) => format!("make {path} a file of mode 0600, and run as its owner"),
            Self::Open(_) => {
                format!("chmod 0600 {path}; make a new key if this one may have been read")
            }
        }
    }
}

/// The text of a key's file.
///
/// # Errors
/// It cannot be read, or is a file that others than its owner may touch.
pub fn read_secret(path: &Path) -> Result<String, SecretFileError> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    let mode = about.permissions().mode() & 0o7777;
    // A pipe from a key store keeps nothing.
    if about.is_file() && mode & OTHERS != 0 {
        return Err(SecretFileError::Open(mode));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::read_secret;

    #[test]
    fn only_the_owner_may_touch_a_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write(file.path(), "DHHC-1:").unwrap();
        for (mode, is_secret) in
            [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)]
        {
            set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            let read = read_secret(file.path());
            assert_eq!(read.is_ok(), is_secret, "{mode:o}");
            let Err(error) = read else { continue };
            assert!(error.to_string().contains(&format!("(mode {mode:04o})")), "{error}");
            assert!(error.remedy(file.path()).contains("chmod 0600"), "{error}");
        }
    }

    #[test]
    fn what_is_not_there_cannot_be_read() {
        let path = Path::new("/nonexistent/key");
        let error = read_secret(path).unwrap_err();
        assert!(error.to_string().contains("cannot be read"), "{error}");
        assert!(error.remedy(path).contains("/nonexistent/key"), "{error}");
    }
}
