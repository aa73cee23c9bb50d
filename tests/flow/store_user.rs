//! A client of a store: one queue, one arena, one namespace.

use kvrail_client::{
    Arena, BlockKey, BlockRequest, Client, Identity, Namespace, Pages, Queue, Status,
};

use crate::rig::{LONG, Sidecar, eventually};

pub(crate) struct StoreUser {
    pub(crate) client: Client,
    pub(crate) arena: Arena,
    pub(crate) queue: Queue,
    pub(crate) space: Namespace,
}

impl StoreUser {
    /// Attaches, and opens the namespace `main`.
    pub(crate) fn open(sidecar: &Sidecar) -> Self {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "test")]).unwrap();
        let space = client.store("kv").unwrap().namespace("main", &identity).unwrap();
        let arena = client.create_arena(4 << 20, Pages::Base).unwrap();
        let queue = client.open_queue(64).unwrap();
        Self { client, arena, queue, space }
    }

    /// Runs one request.
    pub(crate) fn run(&mut self, request: BlockRequest) -> Status {
        self.queue.submit(request).unwrap();
        self.queue.wait(LONG).unwrap().expect("one is in flight").status
    }

    /// Puts a block. A store on a busy drive declines puts for a while.
    pub(crate) fn put(&mut self, key: BlockKey, bytes: usize, metadata: &[u8]) {
        eventually("a put is taken", || {
            let lease = self.arena.lease(bytes).unwrap();
            let put = BlockRequest::put(&self.space, key, lease).metadata(metadata);
            match self.run(put) {
                Status::Ok => true,
                Status::Declined => false,
                other => panic!("{other}"),
            }
        });
    }
}
