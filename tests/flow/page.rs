//! The live page in a real browser, where there is one (Debian package `chromium`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvrail_client::{Client, Pages, Request, StatusReport};
use kvrail_protocol::{DeviceState, troubles};

use crate::rig::{LONG, Place, Sidecar};

/// Milliseconds of the browser's clock, which runs ahead whenever the browser is idle.
const LOOKS: &str = "--virtual-time-budget=60000";

/// Reads and writes until `stop` is set.
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
    browser(&format!("--screenshot={}", picture.display()), LOOKS, address)?;
    browser("--dump-dom", LOOKS, address)
}

/// The browser's output after this time; `None`, with a line printed, where there is no browser.
fn browser(output: &str, looks: &str, address: &str) -> Option<String> {
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", looks]);
    let Ok(done) = browser.args(["--window-size=1400,1000", output, address]).output() else {
        println!("skipped: no chromium in PATH (Debian package chromium)");
        return None;
    };
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// A sidecar, and where its page is.
fn with_page(place: &Place) -> (Sidecar, String) {
    let (sidecar, address) = Sidecar::start_with_metrics(place);
    (sidecar, format!("http://{address}/"))
}

#[test]
fn a_browser_shows_what_happens() {
    let place = Place::with_volume(2, 8 << 20);
    let (sidecar, address) = with_page(&place);
    let (client, stop) = (sidecar.attach(), AtomicBool::new(false));
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.png");
    let shown = thread::scope(|scope| {
        scope.spawn(|| traffic(&client, &stop));
        let mut shown = browse(&address, &picture);
        // On a busy machine nothing may have moved in the second that is shown.
        for _ in 0..2 {
            if shown.as_ref().is_some_and(|text| text.contains("<b>0 B/s</b>")) {
                shown = browse(&address, &picture);
            }
        }
        stop.store(true, Ordering::Relaxed);
        shown
    });
    drop(client);
    sidecar.stop();
    let Some(shown) = shown else { return };
    println!("the page looks like {}", picture.display());
    let member = place.members[1].display().to_string();
    for word in
        ["● serving", "Throughput", "Latency at the slowest drive", "the test", "turns", &member]
    {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    // A drawn line, and numbers that are not all zero.
    let moved = shown.split("<b>").nth(2).and_then(|rest| rest.split('<').next());
    assert!(moved.is_some_and(|rate| rate.ends_with("iB/s")), "{moved:?} in {shown}");
    assert!(std::fs::metadata(&picture).unwrap().len() > 20_000);
}

/// Answers for the page in the sidecar's place, as fast as it requests them: a second passes
/// between two, now and then one fails, and twice the sidecar's epoch changes.
const ANSWERS: &str = r#"<script>
let asked = 0;
window.fetch = async (what) => {
  asked += 1;
  document.body.dataset.asked = asked;
  if (asked % 500 < 3) throw new Error("no answer");
  const report = structuredClone(REPORT);
  report.sidecar.uptime_ms += 1000 * asked;
  report.sidecar.epoch += Math.floor(asked / 3000);
  report.devices[0].reads.bytes += 1048576 * asked;
  return { ok: true, json: async () => report };
};
</script>"#;

/// Answers three times, then accepts requests without an answer, as a stopped sidecar does.
const SILENCE: &str = r#"<script>
let asked = 0;
window.fetch = (what, options = {}) => {
  asked += 1;
  const report = structuredClone(REPORT);
  report.sidecar.uptime_ms += 1000 * asked;
  if (asked <= 3) return Promise.resolve({ ok: true, json: async () => report });
  return new Promise((_, refuse) => options.signal?.addEventListener("abort",
    () => refuse(options.signal.reason)));
};
</script>"#;

/// Two hours of the browser's clock.
const HOURS: &str = "--virtual-time-budget=7200000";

/// Points of a chart, and elements of the page: their numbers must not grow.
const POINTS_MAX: usize = 600;
const ELEMENTS_MAX: usize = 400;

/// What a browser shows of the page of a sidecar, with answers from this script in its place.
fn with_answers(
    place: &Place,
    (answers, looks): (&str, &str),
    change: impl FnOnce(&mut StatusReport),
) -> Option<String> {
    let (sidecar, address) = with_page(place);
    let mut report = sidecar.status();
    change(&mut report);
    let report = serde_json::to_string(&report).unwrap();
    let host = address.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET / HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    sidecar.stop();
    let (_, page) = text.split_once("\r\n\r\n").unwrap();
    let answers = answers.replace("REPORT", &report);
    let file = place.path("page.html");
    std::fs::write(&file, page.replacen("<script>", &format!("{answers}<script>"), 1)).unwrap();
    browser("--dump-dom", looks, &format!("file://{}", file.display()))
}

#[test]
fn a_page_shows_that_its_sidecar_does_not_answer() {
    let place = Place::with_volume(2, 8 << 20);
    let Some(shown) = with_answers(&place, (SILENCE, LOOKS), |_| ()) else { return };
    let (shown, _) = shown.split_once("<script>").unwrap();
    for word in ["● no answer", "does not answer: nothing for 5 s", "class=\"stale\""] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
}

#[test]
fn the_dot_follows_the_list_of_troubles() {
    let place = Place::with_volume(2, 8 << 20);
    let lose = |report: &mut StatusReport| {
        report.devices[1].state = DeviceState::Gone;
        report.troubles = troubles(report);
    };
    let Some(shown) = with_answers(&place, (ANSWERS, LOOKS), lose) else { return };
    let (shown, _) = shown.split_once("<script>").unwrap();
    for word in ["<span class=\"warn\">● degraded", "is gone. put the same drive back"] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
}

#[test]
fn a_page_that_is_open_for_hours_stays_as_it_is() {
    let place = Place::with_volume(2, 8 << 20);
    let Some(shown) = with_answers(&place, (ANSWERS, HOURS), |_| ()) else { return };
    let asked = shown.split_once("data-asked=\"").map(|(_, rest)| rest.split('"').next().unwrap());
    let asked: u64 =
        asked.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{shown}"));
    assert!(asked > 3600, "the page made {asked} requests");
    let (shown, _) = shown.split_once("<script>").unwrap();
    assert!(shown.contains("● serving") && shown.contains("1.0 MiB/s"), "{shown}");
    let lines = shown.split("<path d=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let points = lines.map(|line| line.matches(',').count()).max().expect("charts");
    assert!((100..=POINTS_MAX).contains(&points), "{points} points");
    let elements = shown.matches("</").count();
    assert!(elements < ELEMENTS_MAX, "{elements} elements");
}
