//! How GPU memory is named between processes: by GPU and by what its owner exported.

use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A GPU, the same in every process and container, whatever index it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(pub [u8; 16]);

/// Text that is no UUID of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no GPU UUID; `nvidia-smi -L` lists them as GPU-xxxxxxxx-xxxx-xxxx-xxxx-...")]
pub struct BadUuid(String);

/// Memory of a client on a GPU, as its owner exported it.
///
/// Its holder can read and write the whole allocation: CUDA has no grant for a part or for reading
/// only.
#[derive(Debug)]
pub enum GpuHandle {
    /// A descriptor of CUDA's virtual memory management. The memory lives until the last process
    /// lets go, so it survives its exporter.
    Vmm {
        /// As exported (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`).
        fd: OwnedFd,
        /// Bytes of the allocation, a multiple of its granularity (2 MiB).
        bytes: u64,
    },
    /// A legacy handle (`cudaIpcGetMemHandle`), as PyTorch's default allocator gives it. It names
    /// the allocation that a tensor lies in; freeing that before the detach is undefined in CUDA.
    LegacyIpc {
        /// The handle.
        handle: [u8; 64],
        /// First byte of the memory within the allocation.
        offset: u64,
        /// Bytes from there on.
        bytes: u64,
    },
}

impl GpuHandle {
    /// Bytes a layout may use.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Vmm { bytes, .. } | Self::LegacyIpc { bytes, .. } => *bytes,
        }
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for GpuUuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.to_owned());
        let digits: String = text.trim_start_matches("GPU-").split('-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 32 || !digits.is_ascii() {
            return Err(bad());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            let pair = &digits[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = BadUuid;

    fn try_from(text: String) -> Result<Self, BadUuid> {
        text.parse()
    }
}

impl From<GpuUuid> for String {
    fn from(uuid: GpuUuid) -> Self {
        uuid.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::GpuUuid;

    #[test]
    fn uuids_read_as_nvidia_smi_writes_them() {
        let text = "GPU-a4b6f0c1-02d3-11ee-8c99-0242ac120002";
        let uuid: GpuUuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.0[..2], [0xa4, 0xb6]);
        for bad in ["", "GPU-", "0", "GPU-a4b6f0c1-02d3-11ee-8c99-0242ac12000g", "ä"] {
            assert!(bad.parse::<GpuUuid>().unwrap_err().to_string().contains("nvidia-smi"));
        }
    }
}
