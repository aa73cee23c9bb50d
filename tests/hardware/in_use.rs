//! A device in use: refused by name before anything is written, for every kind of user.

use crate::machine::{self, name, tool};
use crate::rig::{Place, Sidecar, kvrail, run};

/// The namespace of all these tests.
const DEVICE: &str = "serial:kvr-main/2";

/// A user of the device: the commands to take and to release it, and the words of the refusal. `$D`
/// is the device's node.
struct User {
    takes: &'static str,
    leaves: &'static str,
    words: &'static [&'static str],
}

/// Releases the device on drop.
struct Taken(&'static User);

impl Taken {
    fn by(user: &'static User) -> Self {
        blank();
        shell(user.takes);
        Self(user)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        shell(self.0.leaves);
    }
}

static USERS: [User; 6] = [
    User {
        // Read-only: a file system that may write does.
        takes: "mkfs.ext4 -q $D && mkdir -p /tmp/mnt && mount -o ro $D /tmp/mnt",
        leaves: "umount /tmp/mnt",
        words: &["is mounted at /tmp/mnt", "umount /tmp/mnt"],
    },
    User {
        takes: "mkswap $D && swapon $D",
        leaves: "swapoff $D",
        words: &["is swap space", "swapoff"],
    },
    User {
        takes: "mdadm --create /dev/md7 --level=1 --raid-devices=1 --force --run $D",
        leaves: "mdadm --stop /dev/md7",
        words: &["is part of md", "mdadm --stop"],
    },
    User {
        takes: "pvcreate -qy $D && vgcreate -qy vg7 $D && lvcreate -qy -an -Zn -n lv -l 50%VG vg7 \
                && lvchange -qy -ay vg7/lv",
        leaves: "lvchange -an vg7/lv && vgremove -qyf vg7",
        words: &["(vg7-lv)", "vgchange -an"],
    },
    User {
        takes: "dmsetup create flat --table \"0 1024 linear $D 0\"",
        leaves: "dmsetup remove flat",
        words: &["(flat)", "dmsetup remove"],
    },
    User {
        takes: "printf 'n\\np\\n1\\n\\n+16M\\nw\\n' | fdisk $D",
        leaves: "true",
        words: &["it has partitions", "remove the partition table"],
    },
];

fn shell(script: &str) -> String {
    tool(&format!("D=/dev/{}; {script}", name("kvr-main", 2)))
}

/// Removes the content that earlier tests left.
fn blank() {
    shell("wipefs -qa $D; dd if=/dev/zero of=$D bs=1M count=2 conv=fsync status=none");
}

/// The first bytes of the device, where a label would be, as a checksum.
fn content() -> String {
    shell("sync; dd if=$D bs=1M count=4 iflag=direct status=none | md5sum")
}

#[test]
fn each_user_of_a_device_is_named_and_nothing_is_written() {
    if !machine::is_ours() {
        return;
    }
    for user in &USERS {
        let _taken = Taken::by(user);
        let before = content();
        for force in [&[][..], &["--force"]] {
            let made = run(kvrail().args(["volume", "create", "kv", DEVICE]).args(force));
            made.expect(3, user.words);
        }
        let listed = run(kvrail().args(["devices", "-v", DEVICE]));
        listed.expect(0, &[]);
        println!("{}", listed.stdout);
        assert_eq!(content(), before, "something was written");
    }
    // The partition table is still there: a partition must not pass for a namespace.
    let part = format!("/dev/{}p1", name("kvr-main", 2));
    let whole = format!("is a partition of {}", name("kvr-main", 2));
    run(kvrail().args(["devices", &part])).expect(2, &[&part, &whole]);
    blank();
    shell("partx -d $D || true"); // closing the device may have done it already
}

#[test]
fn two_sidecars_cannot_have_one_device() {
    if !machine::is_ours() {
        return;
    }
    let mut place = Place::empty(0);
    place.members = vec![DEVICE.into()];
    place.create(8 << 20, "256KiB").expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let holder = format!("process {} (kvrail) has it", sidecar.pid());
    let socket = format!("sidecar.socket={:?}", place.path("second"));
    run(place.serve().args(["--set", &socket])).expect(3, &["it is in use", &holder]);
    run(kvrail().args(["volume", "wipe", "kv", DEVICE])).expect(3, &[&holder]);
    run(kvrail().args(["volume", "create", "other", "--force", DEVICE])).expect(3, &[&holder]);
    let listed = run(kvrail().args(["devices", DEVICE]));
    assert!(listed.stdout.contains(&holder), "{}", listed.stdout);
    sidecar.stop();
    run(kvrail().args(["volume", "wipe", "kv", DEVICE])).expect(0, &[]);
}
