//! Namespaces of a store, as an operator sees them.

use kvrail_protocol::{Answer, Ask, NamespaceInfo, StoreInfo, VolumeContent};

use crate::client::Client;
use crate::error::ClientError;
use crate::volume::Volume;

impl Client {
    /// All namespaces of a store.
    ///
    /// # Errors
    /// `Denied` when the volume is no store; `SidecarGone`; `Timeout`.
    pub fn namespaces(&self, store: &Volume) -> Result<Vec<NamespaceInfo>, ClientError> {
        let ask = Ask::ListNamespaces { volume: store.id().0 };
        match self.ask("listing the namespaces", ask)? {
            Answer::Namespaces(all) => Ok(all),
            other => Err(ClientError::protocol(format!("answer to list: {other:?}"))),
        }
    }

    /// Makes all blocks of a namespace unreachable, for everybody. Returns its next uid.
    ///
    /// # Errors
    /// `Denied` when there is no such namespace, or a member cannot do it; `SidecarGone`;
    /// `Timeout`.
    pub fn clear_namespace(&self, store: &Volume, name: &str) -> Result<u64, ClientError> {
        let ask = Ask::ClearNamespace { volume: store.id().0, name: name.into() };
        match self.ask("clearing the namespace", ask)? {
            Answer::Namespace { uid, .. } => Ok(uid),
            other => Err(ClientError::protocol(format!("answer to clear: {other:?}"))),
        }
    }

    /// Forgets a namespace and its blocks, for everybody.
    ///
    /// # Errors
    /// As `clear_namespace`.
    pub fn remove_namespace(&self, store: &Volume, name: &str) -> Result<(), ClientError> {
        let ask = Ask::RemoveNamespace { volume: store.id().0, name: name.into() };
        match self.ask("removing the namespace", ask)? {
            Answer::NamespaceRemoved => Ok(()),
            other => Err(ClientError::protocol(format!("answer to remove: {other:?}"))),
        }
    }

    fn ask(&self, what: &'static str, ask: Ask) -> Result<Answer, ClientError> {
        self.shared().control().call(what, ask, &[]).map(|packet| packet.message)
    }
}

impl Volume {
    /// What is to know of it, if it is a store.
    #[must_use]
    pub fn store_info(&self) -> Option<StoreInfo> {
        match self.info.content {
            VolumeContent::Raw => None,
            VolumeContent::Store(info) => Some(info),
        }
    }
}
