//! A record that outlives the program that wrote it, and blows with the tree's fuse.

use std::sync::{Arc, Mutex, PoisonError};

use kvrail_target::{RecordStore, TargetError, TargetRecord};

use super::Fuse;

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryStore {
    kept: Arc<Mutex<Option<TargetRecord>>>,
    fuse: Fuse,
}

impl MemoryStore {
    pub(crate) fn with(&self, fuse: &Fuse) -> Self {
        Self { kept: Arc::clone(&self.kept), fuse: fuse.clone() }
    }
}

impl RecordStore for MemoryStore {
    fn load(&self) -> Result<Option<TargetRecord>, TargetError> {
        Ok(self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn save(&mut self, record: &TargetRecord) -> Result<(), TargetError> {
        self.fuse.before().map_err(|errno| TargetError::Record {
            path: "/state/record.json".into(),
            step: "writing",
            cause: errno.to_string(),
        })?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(record.clone());
        self.fuse.after();
        Ok(())
    }
}
