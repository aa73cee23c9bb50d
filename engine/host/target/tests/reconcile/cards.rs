//! A port's address is that of a card: the named one, or the one nearest to the drives.

use kvrail_target::{Plan, TargetError, check, gather, plan};

use crate::fake::Flavor;
use crate::machine::{FAR, Machine, NEAR};
use crate::world::{features, wish};

/// GIDs of addresses that every host has.
const LOCAL_1: &str = "0000:0000:0000:0000:0000:ffff:7f00:0001";
const LOCAL_2: &str = "0000:0000:0000:0000:0000:ffff:7f00:0002";

const WISH: &str = r#"
[[subsystem]]
nqn = "nqn.2026-01.org.example:kv0"
hosts = ["nqn.2026-01.org.example:a"]
[[subsystem.namespace]]
nsid = 1
device = "serial:A/1"
[[port]]
id = 1
transport = "rdma"
nic = "nearest"
subsystems = ["nqn.2026-01.org.example:kv0"]
"#;

/// A drive and a card behind one switch, another card at the other socket.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.drive("nvme0", "A", &format!("{NEAR}/0000:02:00.0/0000:03:00.0"));
    machine.card("mlx5_0", &format!("{FAR}/0000:80:01.0/0000:81:00.0"), "far0", &[LOCAL_2]);
    machine.card("mlx5_1", &format!("{NEAR}/0000:02:01.0/0000:04:00.0"), "near0", &[LOCAL_1]);
    machine
}

fn planned(machine: &Machine, text: &str) -> Result<Plan, String> {
    let wish = wish(text);
    assert_eq!(check(&wish), []);
    let mut facts = gather(&wish, &machine.root(), &[]);
    facts.features = Some(features(Flavor::Stable));
    plan(&wish, &facts).map_err(|problems| {
        let error = TargetError::Refused(problems);
        format!("{error} {}", error.remedy())
    })
}

fn addresses(plan: &Plan) -> Vec<String> {
    let text = format!("{:?}", plan.desired);
    let parts = text.split("addr_traddr=").skip(1);
    parts.map(|part| part.split([',', ']']).next().unwrap().to_owned()).collect()
}

#[test]
fn the_address_is_that_of_the_card() {
    let machine = machine();
    for (nic, address, words) in [
        ("nearest", "127.0.0.1", "port 1 is at mlx5_1: to its drives through one PCIe switch"),
        ("mlx5_1", "127.0.0.1", "through one PCIe switch"),
        ("near0", "127.0.0.1", "at mlx5_1"),
        ("mlx5_0", "127.0.0.2", "across sockets; bytes cross both CPUs"),
        ("far0", "127.0.0.2", "at mlx5_0"),
    ] {
        let plan = planned(&machine, &WISH.replace("nearest", nic)).unwrap();
        assert_eq!(addresses(&plan), [address], "{nic}");
        assert!(plan.notes.iter().any(|note| note.contains(words)), "{nic}: {:?}", plan.notes);
    }
}

#[test]
fn cards_that_cannot_be_used_are_refused() {
    let near = format!("sys/devices/{NEAR}/0000:02:01.0/0000:04:00.0/infiniband/mlx5_1/ports/1");
    let named = WISH.replace("nearest", "mlx5_1");
    let two = "0000:0000:0000:0000:0000:ffff:7f00:0003";
    let refused = |spoil: &dyn Fn(&Machine), text: &str, parts: &[&str]| {
        let machine = machine();
        spoil(&machine);
        let words = planned(&machine, text).unwrap_err();
        for part in parts {
            assert!(words.contains(part), "lacks {part:?}: {words}");
        }
    };
    refused(
        &|_| {},
        &WISH.replace("nearest", "mlx5_7"),
        &["target.port.0.nic = mlx5_7", "no RDMA card", "(mlx5_0, mlx5_1)", "kvrail topology"],
    );
    let down = |machine: &Machine| machine.put(&format!("{near}/state"), "1: DOWN");
    refused(&down, &named, &["target.port.0.nic = mlx5_1", "no address at a port that is up"]);
    let more = |machine: &Machine| machine.put(&format!("{near}/gids/1"), two);
    refused(&more, &named, &["several addresses: 127.0.0.1, 127.0.0.3", "write the one"]);
    let again = "[[port]]\nid = 2\ntransport = \"rdma\"\nnic = \"mlx5_1\"\n\
                 subsystems = [\"nqn.2026-01.org.example:kv0\"]\n";
    let twice = format!("{WISH}{again}");
    refused(&|_| {}, &twice, &["target.port.1.nic = mlx5_1", "port 1, which listens there"]);
    let gone = |machine: &Machine| {
        for name in ["mlx5_0", "mlx5_1"] {
            let path = machine.root().path(format!("sys/class/infiniband/{name}"));
            std::fs::remove_file(path).unwrap();
        }
    };
    refused(&gone, WISH, &["target.port.0.nic = nearest", "can be used (there is none)"]);
}

/// The one that is left is the nearest, however far it is.
#[test]
fn the_nearest_is_one_that_can_be_used() {
    let machine = machine();
    let near = format!("sys/devices/{NEAR}/0000:02:01.0/0000:04:00.0/infiniband/mlx5_1/ports/1");
    machine.put(&format!("{near}/state"), "1: DOWN");
    let plan = planned(&machine, WISH).unwrap();
    assert_eq!(addresses(&plan), ["127.0.0.2"]);
}
