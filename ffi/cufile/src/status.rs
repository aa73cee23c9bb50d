//! cuFile's status numbers as numbers: a newer library may return unknown values.

use std::fmt;

macro_rules! numbers {
    ($type:ident($inner:ty): $($name:ident = $number:literal $text:literal;)*) => {
        impl $type {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// The name of the number, where it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some(stringify!($name)),)* _ => None }
            }

            /// Its meaning, where that is known.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self.0 { $($number => $text,)* _ => "a number this version does not know" }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = self.name().unwrap_or("UNKNOWN");
                write!(f, "{name} ({}): {}", self.0, self.meaning())
            }
        }
    };
}

/// Status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct OpStatus(pub i32);

numbers! { OpStatus(i32):
    SUCCESS = 0 "done";
    DRIVER_NOT_INITIALIZED = 5001 "nvidia-fs is not loaded and compatibility mode is not allowed";
    DRIVER_INVALID_PROPS = 5002 "an invalid property";
    DRIVER_UNSUPPORTED_LIMIT = 5003 "a property out of range";
    DRIVER_VERSION_MISMATCH = 5004 "nvidia-fs is of another version";
    DRIVER_VERSION_READ_ERROR = 5005 "the version of nvidia-fs cannot be read";
    DRIVER_CLOSING = 5006 "the driver is being closed";
    PLATFORM_NOT_SUPPORTED = 5007 "no GPUDirect Storage on this platform";
    IO_NOT_SUPPORTED = 5008 "no GPUDirect Storage for this file";
    DEVICE_NOT_SUPPORTED = 5009 "no GPUDirect Storage for this GPU";
    NVFS_DRIVER_ERROR = 5010 "nvidia-fs refused an ioctl";
    CUDA_DRIVER_ERROR = 5011 "the CUDA driver reported an error";
    CUDA_POINTER_INVALID = 5012 "not a GPU address";
    CUDA_MEMORY_TYPE_INVALID = 5013 "memory of a kind that cannot be used";
    CUDA_POINTER_RANGE_ERROR = 5014 "the range leaves its allocation";
    CUDA_CONTEXT_MISMATCH = 5015 "memory of another CUDA context";
    INVALID_MAPPING_SIZE = 5016 "more than may be pinned";
    INVALID_MAPPING_RANGE = 5017 "beyond what is mapped";
    INVALID_FILE_TYPE = 5018 "a file of a kind that cannot be used";
    INVALID_FILE_OPEN_FLAG = 5019 "the file was opened with flags that cannot be used";
    DIO_NOT_SET = 5020 "the file was not opened with O_DIRECT";
    INVALID_VALUE = 5022 "an invalid argument";
    MEMORY_ALREADY_REGISTERED = 5023 "the memory is registered already";
    MEMORY_NOT_REGISTERED = 5024 "the memory is not registered";
    PERMISSION_DENIED = 5025 "no permission for driver or file";
    DRIVER_ALREADY_OPEN = 5026 "the driver is open already";
    HANDLE_NOT_REGISTERED = 5027 "the file is not registered; often there is no udev entry for it";
    HANDLE_ALREADY_REGISTERED = 5028 "the file is registered already";
    DEVICE_NOT_FOUND = 5029 "no such GPU";
    INTERNAL_ERROR = 5030 "an error inside of cuFile";
    GETNEWFD_FAILED = 5031 "no new file descriptor";
    NVFS_SETUP_ERROR = 5033 "nvidia-fs cannot be set up; no GPU driver, or no permission";
    IO_DISABLED = 5034 "the configuration forbids GPUDirect Storage for this file";
    BATCH_SUBMIT_FAILED = 5035 "a batch could not be submitted";
    GPU_MEMORY_PINNING_FAILED = 5036 "GPU memory could not be pinned";
    BATCH_FULL = 5037 "the batch is full";
    ASYNC_NOT_SUPPORTED = 5038 "no stream operations here";
    INTERNAL_BATCH_SETUP_ERROR = 5039 "a batch could not be set up; later perhaps";
    INTERNAL_BATCH_SUBMIT_ERROR = 5040 "a batch could not be submitted; later perhaps";
    INTERNAL_BATCH_GETSTATUS_ERROR = 5041 "the status of a batch could not be read";
    INTERNAL_BATCH_CANCEL_ERROR = 5042 "a batch could not be cancelled";
    NOMEM_ERROR = 5043 "out of memory";
    IO_ERROR = 5044 "the file could not be read or written";
    INTERNAL_BUF_REGISTER_ERROR = 5045 "the memory could not be registered";
    HASH_OPR_ERROR = 5046 "an error in cuFile's tables";
    INVALID_CONTEXT_ERROR = 5047 "no usable CUDA context on this thread";
    NVFS_INTERNAL_DRIVER_ERROR = 5048 "an error inside of nvidia-fs";
    BATCH_NOCOMPAT_ERROR = 5049 "the batch needs compatibility mode, which is off";
}

/// State of one entry of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct BatchStatus(pub u32);

numbers! { BatchStatus(u32):
    WAITING = 0x01 "not submitted yet";
    PENDING = 0x02 "in flight";
    INVALID = 0x04 "malformed, or could not be queued";
    CANCELED = 0x08 "cancelled";
    COMPLETE = 0x10 "done";
    TIMEOUT = 0x20 "timed out";
    FAILED = 0x40 "failed";
}

impl BatchStatus {
    /// Whether the library is done with the entry. An unknown number is no end.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::INVALID | Self::CANCELED | Self::COMPLETE | Self::TIMEOUT | Self::FAILED
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{BatchStatus, OpStatus};

    #[test]
    fn known_and_unknown_numbers_have_a_text() {
        assert_eq!(OpStatus::HANDLE_NOT_REGISTERED.name(), Some("HANDLE_NOT_REGISTERED"));
        assert!(OpStatus(5027).to_string().contains("udev"));
        let unknown = OpStatus(5999).to_string();
        assert!(unknown.contains("UNKNOWN (5999)"), "{unknown}");
    }

    #[test]
    fn only_ends_are_final() {
        let open = [BatchStatus::WAITING, BatchStatus::PENDING, BatchStatus(0), BatchStatus(128)];
        assert!(open.iter().all(|status| !status.is_final()));
        assert!(BatchStatus::COMPLETE.is_final() && BatchStatus::CANCELED.is_final());
    }
}
