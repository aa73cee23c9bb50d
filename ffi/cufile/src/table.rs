//! The function table: every function of libcufile that is called, found once.
#![expect(unsafe_code, reason = "loads a library and finds its functions")]
// UNSAFETY: the library is never unloaded, so the pointers stay valid; signatures are those of
// the public API reference, their layouts are compared with the header by a script.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::abi::{CallError, Descriptor, DriverProperties, IoEvent, IoParams, Timespec};
use crate::error::CuFileError;

/// Names of the library: the one installed everywhere, then that of development packages.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// Keeps a library for the life of the process (`RTLD_NODELETE` of dlfcn.h on Linux): cuFile has
/// thread-local state, and unloading it has crashed programs.
const RTLD_NODELETE: c_int = 0x1000;

macro_rules! table {
    ($($field:ident: $symbol:literal fn($($argument:ty),*) $(-> $output:ty)?;)*) => {
        /// Functions of libcufile.
        #[derive(Debug)]
        pub(crate) struct FunctionTable {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $output)?,)*
            /// The file they are from.
            pub(crate) library: &'static str,
        }

        impl FunctionTable {
            /// Loads the library.
            pub(crate) fn load() -> Result<Self, CuFileError> {
                let (name, library) = open()?;
                // Never unloaded, whatever happens to the table.
                let library = ManuallyDrop::new(library);
                Ok(Self {
                    $($field: {
                        let missing = |_| CuFileError::Symbol {
                            library: name.to_owned(),
                            symbol: $symbol,
                        };
                        // SAFETY: the type is that of the API reference for this name; the library
                        // stays loaded for the life of the process.
                        let found = unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) $(-> $output)?>(
                                concat!($symbol, "\0").as_bytes(),
                            )
                        };
                        *found.map_err(missing)?
                    },)*
                    library: name,
                })
            }
        }
    };
}

table! {
    driver_open: "cuFileDriverOpen" fn() -> CallError;
    driver_close: "cuFileDriverClose_v2" fn() -> CallError;
    driver_properties: "cuFileDriverGetProperties" fn(*mut DriverProperties) -> CallError;
    version: "cuFileGetVersion" fn(*mut c_int) -> CallError;
    set_bool: "cuFileSetParameterBool" fn(c_uint, bool) -> CallError;
    handle_register: "cuFileHandleRegister" fn(*mut *mut c_void, *mut Descriptor) -> CallError;
    handle_deregister: "cuFileHandleDeregister" fn(*mut c_void);
    buffer_register: "cuFileBufRegister" fn(*const c_void, usize, c_int) -> CallError;
    buffer_deregister: "cuFileBufDeregister" fn(*const c_void) -> CallError;
    read: "cuFileRead" fn(*mut c_void, *mut c_void, usize, i64, i64) -> isize;
    write: "cuFileWrite" fn(*mut c_void, *const c_void, usize, i64, i64) -> isize;
    batch_set_up: "cuFileBatchIOSetUp" fn(*mut *mut c_void, c_uint) -> CallError;
    batch_submit: "cuFileBatchIOSubmit" fn(*mut c_void, c_uint, *mut IoParams, c_uint) -> CallError;
    batch_status: "cuFileBatchIOGetStatus"
        fn(*mut c_void, c_uint, *mut c_uint, *mut IoEvent, *mut Timespec) -> CallError;
    batch_destroy: "cuFileBatchIODestroy" fn(*mut c_void);
}

fn open() -> Result<(&'static str, Library), CuFileError> {
    let mut reason = String::new();
    for name in NAMES {
        // SAFETY: the initialisers of NVIDIA's library run here; they set up its own state only.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) } {
            Ok(library) => return Ok((name, library)),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(CuFileError::Missing { tried: NAMES.join(", "), reason })
}
