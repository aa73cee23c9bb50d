//! GPU memory on the session socket: a client's memory, and the sidecar's report about GPUs.

use kvrail_counters::GpuCounters;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most memories of one region that are descriptors: they travel in one message, and the kernel
/// takes 253 a message, one of which may be the message itself.
pub const GPU_FDS_MAX: usize = 252;

/// Bytes of a legacy handle (`cudaIpcMemHandle_t`).
pub const LEGACY_HANDLE_BYTES: usize = 64;

/// A region to be attached: a paged KV cache, or any memory of one GPU.
///
/// Rules are checked by the sidecar: at most 256 memories and 1,024 fragments; `base`, `stride` and
/// `bytes` multiples of 16; fragments of at least 512 bytes that add up to a multiple of 512, end
/// inside of their memory and do not overlap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRegionInfo {
    /// The GPU's UUID as `nvidia-smi -L` prints it. A number would mean another GPU in each
    /// container.
    pub gpu: String,
    /// Blocks of the cache, at least 1. Requests name one by its index.
    pub blocks: u32,
    /// The memories of the fragments.
    pub memories: Vec<GpuMemory>,
    /// The fragments of every block. A block's bytes are numbered fragment after fragment, in this
    /// order.
    pub fragments: Vec<GpuFragment>,
}

/// Memory as its owner exported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum GpuMemory {
    /// The next of the message's descriptors: of CUDA's virtual memory management
    /// (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`), or a sealed memory file for a stand-in.
    Descriptor {
        /// Exact size of the allocation.
        bytes: u64,
    },
    /// A legacy handle (`cudaIpcGetMemHandle`). The exporter keeps the memory until the region is
    /// detached.
    Legacy {
        /// The handle.
        handle: LegacyHandle,
        /// First byte of the memory within the allocation that the handle names.
        offset: u64,
        /// Bytes from there on.
        bytes: u64,
    },
}

/// The 64 bytes of a legacy handle; hexadecimal in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegacyHandle(pub [u8; LEGACY_HANDLE_BYTES]);

/// One fragment of every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuFragment {
    /// Place of its memory in the list.
    pub memory: u16,
    /// Where block 0's begins in that memory.
    pub base: u64,
    /// Bytes from one block's to the next block's.
    pub stride: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl GpuRegionInfo {
    /// Descriptors that come with it.
    #[must_use]
    pub fn fds(&self) -> usize {
        let file = |memory: &&GpuMemory| matches!(memory, GpuMemory::Descriptor { .. });
        self.memories.iter().filter(file).count()
    }
}

impl GpuMemory {
    /// Bytes a layout may use.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match self {
            Self::Descriptor { bytes } | Self::Legacy { bytes, .. } => *bytes,
        }
    }
}

impl Serialize for LegacyHandle {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(2 * LEGACY_HANDLE_BYTES);
        for byte in self.0 {
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).expect("half of a byte"));
            }
        }
        to.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for LegacyHandle {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || D::Error::custom("a legacy handle is 128 hexadecimal digits");
        let mut bytes = [0; LEGACY_HANDLE_BYTES];
        let digits = text.len() == 2 * bytes.len() && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits {
            return Err(wrong());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            let pair = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// A GPU that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The driver's number for it in the sidecar.
    pub index: u32,
    /// The same everywhere, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its PCIe address, lower case.
    pub pci_address: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

/// How bytes get between a device and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuMechanism {
    /// Past host memory.
    Direct,
    /// By the GPU's own calls, through buffers of its library in host memory.
    Compat,
    /// Through the sidecar's staging memory.
    Staged,
    /// Not the same for all members of the volume.
    Mixed,
}

/// The choice for one volume and one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRoute {
    /// The volume's id.
    pub volume: u16,
    /// The mechanism in use.
    pub mechanism: GpuMechanism,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for GpuMechanism {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Compat => "compat",
            Self::Staged => "staged",
            Self::Mixed => "mixed",
        })
    }
}

/// Whether a GPU is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuState {
    /// Without a known fault.
    Serving,
    /// It failed, for good: its requests end with GPU_ERROR.
    Failed,
}

/// One GPU in a status report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Which.
    pub gpu: GpuInfo,
    /// The CPU its poller is pinned to, or nothing when it floats.
    pub cpu: Option<u32>,
    /// Whether it is served.
    pub state: GpuState,
    /// Why it failed, or why direct I/O did or was given up; nothing while all is as at start.
    pub failure: Option<String>,
    /// The configured mechanism.
    pub configured: String,
    /// The mechanism in use, for each volume.
    pub routes: Vec<GpuRoute>,
    /// Regions of all clients.
    pub regions: u32,
    /// Bytes of them.
    pub region_bytes: u64,
    /// Counters since the start.
    #[serde(flatten)]
    pub counters: GpuCounters<Option<u64>>,
    /// Its staging pool.
    pub staging: StagingReport,
}

/// The staging pool of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagingReport {
    /// Slots.
    pub slots: u16,
    /// Bytes of each.
    pub slot_bytes: u32,
    /// Slots that are taken now.
    pub taken: u16,
    /// Bytes of the pages behind it.
    pub page_bytes: u64,
}
