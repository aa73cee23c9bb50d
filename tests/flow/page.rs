//! The live page in a real browser, where there is one (Debian package `chromium`).

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvrail_client::{Client, Pages, Request};

use crate::rig::{LONG, Place, Sidecar, eventually};

/// Its clock runs ahead whenever it has nothing to do; so many of its milliseconds it looks.
const LOOKS: &str = "--virtual-time-budget=60000";

/// Reads and writes until it is told to stop.
fn traffic(client: &Client, stop: &AtomicBool) {
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    // Relaxed: pairs with the store below, a moment later is soon enough.
    while !stop.load(Ordering::Relaxed) {
        for request in [Request::write, Request::read] {
            queue.submit(request(&volume, 0, arena.lease(65_536).unwrap())).unwrap();
            assert!(queue.wait(LONG).unwrap().is_some());
        }
    }
}

/// What a browser shows of an address, as text; the picture lies at `picture`.
fn browse(address: &str, picture: &Path) -> Option<String> {
    let browser = |argument: &str| {
        let mut browser = Command::new("chromium");
        browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", LOOKS]);
        browser.args(["--window-size=1400,1000", argument, address]).output().ok()
    };
    browser(&format!("--screenshot={}", picture.display()))?;
    Some(String::from_utf8_lossy(&browser("--dump-dom")?.stdout).into_owned())
}

#[test]
fn a_browser_shows_what_happens() {
    let place = Place::with_volume(2, 8 << 20);
    let mut command = place.serve();
    command.args(["--set", "metrics.listen=127.0.0.1:0"]);
    let sidecar = Sidecar::start_as(&place, command);
    let mark = "metrics and page: ";
    eventually("it says where", || sidecar.said().contains(mark));
    let said = sidecar.said();
    let address = said.split_once(mark).unwrap().1.lines().next().unwrap();
    let (client, stop) = (sidecar.attach(), AtomicBool::new(false));
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.png");
    let shown = thread::scope(|scope| {
        scope.spawn(|| traffic(&client, &stop));
        let shown = browse(address, &picture);
        stop.store(true, Ordering::Relaxed);
        shown
    });
    drop(client);
    sidecar.stop();
    let Some(shown) = shown else {
        println!("skipped: no chromium in PATH (Debian package chromium)");
        return;
    };
    println!("the page looks like {}", picture.display());
    let member = place.members[1].display().to_string();
    for word in ["● serving", "Throughput", "Latency at the drives", "the test", "turns", &member]
    {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    // A line that was drawn, and numbers that are not all nothing.
    let moved = shown.split("<b>").nth(2).and_then(|rest| rest.split('<').next());
    assert!(moved.is_some_and(|it| it.ends_with("iB/s")), "{moved:?} in {shown}");
    assert!(std::fs::metadata(&picture).unwrap().len() > 20_000);
}
