//! Secrets of in-band authentication (DH-HMAC-CHAP), in the text form `DHHC-1:HH:BASE64:`.
//!
//! They come from files, never from the command line, and are never shown.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};
use kvrail_nvme::{SecretFileError, read_secret};

use crate::error::FabricsError;

const REMEDY: &str = "make one with `nvme gen-dhchap-key`, and copy it whole";

/// Bytes of the CRC-32 behind the key (NVMe Base Specification 2.0, 8.13.5.8).
const CRC_BYTES: usize = 4;

/// A secret whose form and checksum are right.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Reads the first line of a file; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read, others than its owner may, or it holds no well-formed secret.
    /// The secret itself is not named.
    pub fn read(path: &Path) -> Result<Self, FabricsError> {
        let text = if path == Path::new("-") {
            std::io::read_to_string(std::io::stdin()).map_err(SecretFileError::from)
        } else {
            read_secret(path)
        };
        let text = text.map_err(|why| {
            let words = format!("the secret in {}: {why}", path.display());
            FabricsError::refused(words, why.remedy(path))
        })?;
        let line = text.lines().next().unwrap_or_default();
        line.trim().parse().map_err(|error: FabricsError| FabricsError {
            message: format!("{}: {}", path.display(), error.message),
            ..error
        })
    }

    /// The text, for the kernel alone.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = FabricsError;

    fn from_str(text: &str) -> Result<Self, FabricsError> {
        let wrong = |rule: String| FabricsError::usage(format!("the secret {rule}"), REMEDY);
        let rest = text.strip_prefix("DHHC-1:");
        let rest = rest.ok_or_else(|| wrong("does not begin with `DHHC-1:`".into()))?;
        let (hash, rest) = rest.split_once(':').unwrap_or((rest, ""));
        let lengths: &[usize] = match hash {
            "00" => &[32, 48, 64],
            "01" => &[32],
            "02" => &[48],
            "03" => &[64],
            _ => {
                let rule = "names a hash other than 00, 01, 02 or 03 behind `DHHC-1:`";
                return Err(wrong(rule.into()));
            }
        };
        let body = rest.strip_suffix(':').ok_or_else(|| wrong("does not end with `:`".into()))?;
        let bytes = STANDARD.decode(body);
        let bytes = bytes.map_err(|why| wrong(format!("is not base64 ({why})")))?;
        let key = bytes.len().saturating_sub(CRC_BYTES);
        if !lengths.contains(&key) {
            let fit: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            let fit = fit.join(" or ");
            return Err(wrong(format!("has {key} bytes; hash {hash} needs {fit}")));
        }
        let (key, crc) = bytes.split_at(key);
        let expected = checksum(CrcAlgorithm::Crc32IsoHdlc, key).to_le_bytes();
        if crc != &expected[..CRC_BYTES] {
            return Err(wrong("has a wrong checksum: a character is wrong or missing".into()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Secret;

    /// Made with `nvme gen-dhchap-key`, one of each hash.
    const GOOD: [&str; 4] = [
        "DHHC-1:00:2g/EmxpayOZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp:",
        "DHHC-1:01:Pb0Ce3OtFQmcMeGl9wwF2pSAkHNdOyvN8Vjp9Gqevpdu9aLT:",
        "DHHC-1:02:5vW+jtaWW8tnHn2qhqu00B7dx9czdZ73fDQaP8Z8L/tXCntMlEIk2LUeWHeHT5CfrwCwkA==:",
        "DHHC-1:03:H3/i02HAmq02TiCxuOalCkL8VznWrU5MjcNRKjAyuEP/vKba6X0g/RLVE8dqfIshcAcPGV8i9kvI964g\
         IcKOj1+HJLg=:",
    ];

    #[test]
    fn secrets_of_another_program_pass() {
        for text in GOOD {
            assert_eq!(text.parse::<Secret>().unwrap().expose(), text);
        }
    }

    #[test]
    fn whatever_is_wrong_is_said_without_the_secret() {
        let short = "DHHC-1:02:Pb0Ce3OtFQmcMeGl9wwF2pSAkHNdOyvN8Vjp9Gqevpdu9aLT:";
        for (text, rule) in [
            ("", "begin with"),
            ("secret", "begin with"),
            ("DHHC-1:04:abcd:", "hash"),
            ("DHHC-1:", "hash"),
            ("DHHC-1:00:2g/EmxpayOZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp", "end with"),
            ("DHHC-1:00:2g/Emxpay OZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp:", "base64"),
            ("DHHC-1:00:2g==:", "0 bytes; hash 00 needs 32 or 48 or 64"),
            (short, "32 bytes; hash 02 needs 48"),
            ("DHHC-1:00:3g/EmxpayOZwta8IGV4z4nFtrksO0ZiLMHv4l5co4bCcSMdp:", "checksum"),
        ] {
            let error = text.parse::<Secret>().unwrap_err();
            assert!(error.message.contains(rule), "{text}: {error}");
            assert!(!error.message.contains("Emxpay") && error.remedy.contains("gen-dhchap-key"));
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert_eq!(format!("{:?}", GOOD[0].parse::<Secret>().unwrap()), "Secret(hidden)");
    }

    #[test]
    fn files_are_named_when_wrong_and_read_when_right() {
        let error = Secret::read(Path::new("/nonexistent/key")).unwrap_err();
        assert!(error.message.contains("/nonexistent/key"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nonsense\n").unwrap();
        let error = Secret::read(file.path()).unwrap_err();
        assert!(error.message.contains(file.path().to_str().unwrap()), "{error}");
        std::fs::write(file.path(), format!("{}\n", GOOD[1])).unwrap();
        assert_eq!(Secret::read(file.path()).unwrap().expose(), GOOD[1]);
    }
}
