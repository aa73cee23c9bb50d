//! Maps of machines as their sysfs shows them: one socket with a switch, two sockets, sub-NUMA
//! nodes, no NIC, software RDMA, remote drives.

mod support;

use kvrail_topology::{Detail, Device, DeviceKind, Map, PathKind, svg, text, tree};

use support::{GID, Machine, one_socket};

fn path(map: &Map, a: &str, b: &str) -> PathKind {
    let device = |name: &str| map.devices.iter().find(|device| device.name == name).unwrap();
    assert_eq!(map.path(device(a), device(b)), map.path(device(b), device(a)), "{a} {b}");
    map.path(device(a), device(b))
}

#[test]
fn one_switch_brings_drive_nic_and_gpu_together() {
    let map = one_socket().map();
    assert_eq!(path(&map, "nvme0", "mlx5_0"), PathKind::Switch);
    assert_eq!(path(&map, "nvme0", "gpu0"), PathKind::Switch);
    assert_eq!(path(&map, "nvme1", "mlx5_0"), PathKind::Root);
    assert_eq!(path(&map, "nvme1", "nvme1"), PathKind::Same);
    assert_eq!(map.pairs().len(), 6);
    let warnings = map.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("nvme1 to NIC mlx5_0 (the nearest): through the root complex"));
    assert!(warnings[1].contains("nvme1 to GPU gpu0"));
    // -1 and one node: the kernel need not report it.
    assert!(map.devices.iter().all(|device| device.place.node == Some(0)));
}

#[test]
fn what_devices_are_is_told() {
    let map = one_socket().map();
    let nic = map.of(DeviceKind::Nic).next().unwrap();
    let Detail::Nic { firmware, ports, software_on } = &nic.detail else { panic!("{nic:?}") };
    assert_eq!((firmware.as_str(), software_on), ("16.35.4030", &None));
    assert_eq!(ports[0].addresses, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!((ports[0].gids, ports[0].interfaces.as_slice()), (2, &["eth0".to_owned()][..]));
    assert!(ports[0].is_active());
    let gpu = map.of(DeviceKind::Gpu).next().unwrap();
    assert_eq!(gpu.model, "NVIDIA H200");
    assert!(gpu.line().contains("BAR1 16384 MiB"), "{}", gpu.line());
    let drive = map.of(DeviceKind::Drive).next().unwrap();
    assert!(drive.line().contains("EXAMPLE 1TB, 0000:03:00.0, nvme0n1, 32 GT/s x4"));
}

/// As on an H200, whose first window takes two registers: it was read as having no second.
#[test]
fn windows_of_64_bits_take_two_lines() {
    let machine = one_socket();
    machine.put(
        "sys/bus/pci/devices/0000:05:00.0/resource",
        "0x0000040042000000 0x0000040042ffffff 0x000000000014220c\n\
         0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
         0x0000038000000000 0x000003bfffffffff 0x000000000014220c\n\
         0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
         0x0000040040000000 0x0000040041ffffff 0x000000000014220c\n\
         0x0000000000000000 0x0000000000000000 0x0000000000000000",
    );
    let map = machine.map();
    let gpu = map.of(DeviceKind::Gpu).next().unwrap();
    assert!(gpu.line().contains("BAR1 262144 MiB"), "{}", gpu.line());
}

#[test]
fn the_tree_shows_where_ways_part() {
    let drawn = text(&tree(&one_socket().map()));
    let expected = "\
machine
└─ socket 0
   └─ node 0: CPUs 0-31
      └─ host bridge pci0000:00
         ├─ switch 0000:01:00.0
         │  ├─ drive nvme0: EXAMPLE 1TB, 0000:03:00.0, nvme0n1, 32 GT/s x4
         │  ├─ NIC mlx5_0: MT4119 MT_0000000008, 0000:04:00.0, port 1 ACTIVE Ethernet \
100 Gb/sec (4X EDR) eth0 192.0.2.1
         │  └─ GPU gpu0: NVIDIA H200, 0000:05:00.0, BAR1 16384 MiB
         └─ drive nvme1: EXAMPLE 1TB, 0000:06:00.0, nvme1n1, 32 GT/s x4";
    assert_eq!(drawn, expected);
}

/// Two sockets, the first with two nodes; host bridges of their own everywhere.
fn two_sockets() -> Machine {
    let machine = Machine::new(&[(0, "0-15"), (0, "16-31"), (1, "32-63")]);
    machine
        .drive("nvme0", "pci0000:10/0000:10:01.0/0000:11:00.0", 0)
        .drive("nvme1", "pci0000:20/0000:20:01.0/0000:21:00.0", 1)
        .drive("nvme2", "pci0000:80/0000:80:01.0/0000:81:00.0", 2)
        .nic("mlx5_0", "pci0000:18/0000:18:01.0/0000:19:00.0", 0, GID)
        .nic("mlx5_1", "pci0000:18/0000:18:01.0/0000:19:00.1", 0, GID);
    machine
}

#[test]
fn sockets_nodes_and_bridges_are_told_apart() {
    let map = two_sockets().map();
    assert_eq!(path(&map, "nvme0", "mlx5_0"), PathKind::Bridges);
    assert_eq!(path(&map, "nvme1", "mlx5_0"), PathKind::Nodes);
    assert_eq!(path(&map, "nvme2", "mlx5_0"), PathKind::Sockets);
    assert_eq!(path(&map, "mlx5_1", "mlx5_0"), PathKind::Same, "two functions of one device");
    let warnings = map.warnings();
    let sockets = warnings.iter().filter(|text| text.contains("across sockets"));
    assert_eq!((warnings.len(), sockets.count()), (3, 1), "{warnings:?}");
    let drawn = text(&tree(&map));
    assert!(drawn.contains("socket 1") && drawn.contains("node 1: CPUs 16-31"), "{drawn}");
}

#[test]
fn unknown_nodes_are_not_guessed() {
    let machine = Machine::new(&[(0, "0-31"), (1, "32-63")]);
    machine.drive("nvme0", "pci0000:10/0000:10:01.0/0000:11:00.0", -1).nic(
        "mlx5_0",
        "pci0000:80/0000:80:01.0/0000:81:00.0",
        1,
        GID,
    );
    let map = machine.map();
    assert_eq!(path(&map, "nvme0", "mlx5_0"), PathKind::Unknown);
    assert!(text(&tree(&map)).contains("node unknown"));
}

#[test]
fn nested_switches_are_still_peers() {
    let machine = Machine::new(&[(0, "0-31")]);
    let upper = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0";
    machine
        .drive("nvme0", &format!("{upper}/0000:03:00.0/0000:04:00.0/0000:05:00.0"), 0)
        .gpu("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:09:00.0", 0);
    let map = machine.map();
    assert_eq!(path(&map, "nvme0", "gpu0"), PathKind::Switches);
    assert_eq!(map.warnings(), [""; 0], "no NIC, and the GPU is near");
}

#[test]
fn a_machine_without_anything_is_a_tree_of_cpus() {
    let map = Machine::new(&[(0, "0-1")]).map();
    assert_eq!(map.devices, []);
    assert_eq!(text(&tree(&map)), "machine\n└─ socket 0\n   └─ node 0: CPUs 0-1");
    assert!(svg(&map).contains("node 0: CPUs 0-1"));
}

#[test]
fn a_slow_link_is_said() {
    let machine = one_socket();
    let switch = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    machine.put(&format!("{switch}/0000:02:00.0/0000:03:00.0/current_link_width"), "2");
    let warnings = machine.map().warnings();
    let slow = warnings.iter().find(|text| text.contains("drive nvme0: its link"));
    assert!(slow.unwrap().contains("32 GT/s x2 (of 32 GT/s x4)"), "{warnings:?}");
}

#[test]
fn software_rdma_sits_where_its_interface_sits_or_nowhere() {
    let machine = Machine::new(&[(0, "0-1")]);
    let card = machine.function("pci0000:00/0000:00:03.0", 0, "0x020000");
    machine.link("sys/class/net/eth0/device", &card);
    machine.drive("nvme0", "pci0000:00/0000:00:04.0", 0);
    for (name, netdev) in [("rxe1", "dum0"), ("rxe0", "eth0")] {
        if name == "rxe0" {
            let warnings = machine.map().warnings();
            assert_eq!(warnings, [""; 0], "no drive is far from what is nowhere");
        }
        let dir = format!("sys/devices/virtual/infiniband/{name}");
        machine.rdma(name, &dir, GID, "Ethernet");
        machine.put(&format!("{dir}/parent"), netdev);
    }
    let map = machine.map();
    let place =
        |name: &str| map.devices.iter().find(|device| device.name == name).unwrap().place.clone();
    assert_eq!(place("rxe0").pci.unwrap().to_string(), "0000:00:03.0");
    assert_eq!(place("rxe1").route, [""; 0]);
    let drawn = text(&tree(&map));
    assert!(drawn.contains("not on PCIe") && drawn.contains("software, on dum0"), "{drawn}");
}

#[test]
fn infiniband_ports_have_the_addresses_of_their_interface() {
    let machine = Machine::new(&[(0, "0-1")]);
    let card = machine.function("pci0000:00/0000:00:03.0", 0, "0x020700");
    let dir = format!("{card}/infiniband/mlx5_0");
    machine.rdma("mlx5_0", &dir, "fe80:0000:0000:0000:0c42:a103:0000:0001", "InfiniBand");
    machine.put(&format!("{card}/net/ib0/mtu"), "2044");
    machine.link(&format!("{dir}/device"), &card);
    machine.put("proc/net/route", "ib0\t0002000A\t00000000\t1\t0\t0\t0\t00FFFFFF\t0\t0\t0");
    machine.put("proc/net/fib_trie", "Local:\n     |-- 10.0.2.15\n        /32 host LOCAL");
    let map = machine.map();
    let Detail::Nic { ports, .. } = &map.devices[0].detail else { panic!("{map:?}") };
    assert_eq!(ports[0].addresses, ["10.0.2.15".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn a_remote_drive_sits_where_its_nic_sits() {
    let machine = one_socket();
    let remote = "sys/devices/virtual/nvme-fabrics/ctl/nvme7";
    for (file, text) in [
        ("transport", "rdma"),
        ("address", "traddr=192.0.2.9,trsvcid=4420,host_traddr=192.0.2.1"),
        ("serial", "9"),
    ] {
        machine.put(&format!("{remote}/{file}"), text);
    }
    machine.link("sys/class/nvme/nvme7", remote);
    let map = machine.map();
    let found: Vec<&Device> = map.of(DeviceKind::RemoteDrive).collect();
    let Detail::Drive { via, .. } = &found[0].detail else { panic!("{map:?}") };
    assert_eq!(via.as_deref(), Some("mlx5_0"));
    assert_eq!(path(&map, "nvme7", "gpu0"), PathKind::Switch);
    assert!(text(&tree(&map)).contains("remote, through mlx5_0"));
}

#[test]
fn the_picture_holds_every_device_and_is_well_formed() {
    let machine = one_socket();
    machine.put("proc/driver/nvidia/gpus/0000:05:00.0/information", "Model: <A> & B");
    let map = machine.map();
    let picture = svg(&map);
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
    assert!(picture.contains("&lt;A&gt; &amp; B") && !picture.contains("<A>"));
    for device in &map.devices {
        assert!(picture.contains(&format!(">{}</text>", device.name)), "{}", device.name);
    }
    let opened = picture.matches("<text").count();
    assert_eq!(opened, picture.matches("</text>").count());
}
