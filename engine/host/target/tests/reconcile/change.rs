//! Any wish may follow any other.

use crate::fake::{FakeTree, Flavor, MemoryStore};
use crate::world::{ORDINARY, access_of, apply, assert_never_wider, desired, open};

/// Small changes of `ORDINARY`, to be combined.
const EDITS: [(&str, &str); 8] = [
    ("device = \"serial:B/1\"", "device = \"pci:0000:01:00.0/2\""),
    ("model = \"kv\"\n", ""),
    ("address = \"192.0.2.2\"\nservice = 4421", "address = \"192.0.2.1\"\nservice = 4422"),
    ("inline_data_bytes = 4096\n", ""),
    (
        "\"nqn.2026-01.org.example:a\", \"nqn.2026-01.org.example:b\"",
        "\"nqn.2026-01.org.example:a\"",
    ),
    ("hosts = [\"nqn.2026-01.org.example:b\"]", "allow_any_host = true"),
    ("dhchap_hash = \"hmac(sha512)\"\n", ""),
    (
        "\"nqn.2026-01.org.example:kv0\", \"nqn.2026-01.org.example:kv1\"]",
        "\"nqn.2026-01.org.example:kv0\"]",
    ),
];

fn edited(mask: usize) -> String {
    let mut text = ORDINARY.to_owned();
    for (bit, (from, to)) in EDITS.iter().enumerate() {
        if mask & (1 << bit) != 0 {
            assert!(text.contains(from), "{from}");
            text = text.replacen(from, to, 1);
        }
    }
    text
}

#[test]
fn every_edit_leads_to_the_same_tree_as_a_fresh_start() {
    let flavor = Flavor::Recent;
    let masks = 1 << EDITS.len();
    for mask in 0..masks {
        // Each is reached from another that differs in many places.
        let (from, to) =
            (desired(&edited(mask), flavor), desired(&edited(mask * 73 % masks), flavor));
        let (tree, store) = (FakeTree::new(flavor), MemoryStore::default());
        let nothing = tree.text();
        apply(&tree, &store, &from);
        apply(&tree, &store, &to);
        let fresh = FakeTree::new(flavor);
        apply(&fresh, &MemoryStore::default(), &to);
        assert_eq!(tree.text(), fresh.text(), "{mask}");
        let allowed = [access_of(&from, flavor), access_of(&to, flavor)];
        assert_never_wider(&tree, &[&allowed[0], &allowed[1]], "edit");
        open(&tree, &store).undo().unwrap();
        assert_eq!(tree.text(), nothing, "{mask}");
    }
}
