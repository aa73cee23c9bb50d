//! The live page in a real browser, where there is one (Debian package `chromium`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvrail_client::{BlockKey, BlockRequest, Client, Identity, Pages, Request, StatusReport};
use kvrail_protocol::{DeviceState, troubles};
use serde_json::Value;

use crate::rig::{LONG, Place, Sidecar, eventually};

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

/// Puts and gets blocks of a store until `stop` is set.
fn store_traffic(client: &Client, stop: &AtomicBool) {
    let identity = Identity::new([("model", "test")]).unwrap();
    let space = client.store("kv").unwrap().namespace("page", &identity).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    // Relaxed: pairs with the store of its test, a moment later is soon enough.
    for number in (0_u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
        let key = BlockKey::of(&(number % 200).to_le_bytes());
        for request in [BlockRequest::put, BlockRequest::get] {
            queue.submit(request(&space, key, arena.lease(65_536).unwrap())).unwrap();
            assert!(queue.wait(LONG).unwrap().is_some());
        }
    }
}

/// The page shows what was before it was opened, and each member's segments, as soon as it is
/// there: a browser's first looks are enough.
#[test]
fn a_browser_shows_history_and_maps_at_once() {
    let mut place = Place::with_store_of(2, 64 << 20, &["--segment", "2MiB"]);
    place.configure("[memory_tier]\nbytes = \"32MiB\"");
    let (sidecar, address) = with_page(&place);
    let (client, stop) = (sidecar.attach(), AtomicBool::new(false));
    let samples = || {
        let history: Value = serde_json::from_str(&fetched(&address, "/history")).unwrap();
        let hits = history["rings"][0]["series"]["hits"].as_array().unwrap();
        hits.iter().filter(|hits| hits.as_u64().is_some_and(|hits| hits > 0)).count()
    };
    let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("history.png");
    let shown = thread::scope(|scope| {
        scope.spawn(|| store_traffic(&client, &stop));
        eventually("there are two samples", || samples() >= 2);
        let picture = format!("--screenshot={}", picture.display());
        let shown =
            browser(&picture, SOON, &address).and_then(|_| browser("--dump-dom", SOON, &address));
        stop.store(true, Ordering::Relaxed);
        shown
    });
    let maps: Value = serde_json::from_str(&fetched(&address, "/segments")).unwrap();
    drop(client);
    sidecar.stop();
    let members = maps["members"].as_array().unwrap();
    assert_eq!(members.len(), 2);
    for member in members {
        let ages = member["age_s"].as_array().unwrap();
        assert_eq!(ages.len() as u64, member["segments"].as_u64().unwrap());
        let idle = member["idle_ticks"].as_array().unwrap();
        assert!(ages.iter().any(Value::is_u64) && ages.iter().any(Value::is_null), "{member}");
        assert!(idle.iter().any(Value::is_u64) && member["open"][0].is_u64(), "{member}");
    }
    let Some(shown) = shown else { return };
    let (shown, _) = shown.split_once("<script>").unwrap();
    let past = ["Keys per second", "Hit ratio", "Fill of stores", "Troubles and lost drives"];
    for word in past.into_iter().chain(["Memory tiers", "From memory", "came in"]) {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    let past = shown.split_once("id=\"past\"").unwrap().1;
    let line = past.split("<path d=\"").nth(1).unwrap().split('"').next().unwrap();
    assert!(line.starts_with('M') && line.contains('L'), "{line}");
    // Age and heat of each member.
    assert_eq!(shown.matches("class=\"map\"").count(), 4, "{shown}");
    assert_eq!(shown.matches(">Heat: blocks used<").count(), 2, "{shown}");
    assert!(std::fs::metadata(&picture).unwrap().len() > 20_000);
}

/// Answers to what the page requests beside the status: as large as they can be.
const OTHERS: &str = r#"
const NAMES = ["covered_ms", "hits", "memory_hits", "misses", "read_bytes", "written_bytes",
  "get_p99_ns", "drive_p99_ns", "troubles", "lost_drives", "stored_bytes", "capacity_bytes"];
const OTHERS = {
  history: { rings: [[10, 360], [60, 720], [600, 1008], [3600, 1440]].map(([step_s, slots]) =>
    ({ step_s, slots, series: Object.fromEntries(NAMES.map((name) =>
      [name, Array.from({ length: slots }, (_, at) => at % 7 ? 1000 + at : null)])) })) },
  segments: { members: [0, 1].map((device) => ({ device, segments: 65536, segments_of_cell: 128,
    tick_bytes: 1 << 20, open: [5], ...Object.fromEntries(["age_s", "idle_ticks",
      "filled_percent"].map((name) => [name, Array.from({ length: 512 }, (_, at) => at)])) })) },
};
"#;

/// Answers for the page in the sidecar's place, as fast as it requests them: a second passes
/// between two, now and then one fails, and twice the sidecar's epoch changes.
const ANSWERS: &str = r#"<script>
let asked = 0;
window.fetch = async (what) => {
  if (OTHERS[what]) return { ok: true, json: async () => structuredClone(OTHERS[what]) };
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
  if (what !== "status") return Promise.reject(new Error("no answer"));
  asked += 1;
  const report = structuredClone(REPORT);
  report.sidecar.uptime_ms += 1000 * asked;
  if (asked <= 3) return Promise.resolve({ ok: true, json: async () => report });
  return new Promise((_, refuse) => options.signal?.addEventListener("abort",
    () => refuse(options.signal.reason)));
};
</script>"#;

/// A frame as wide as a telephone, and how wide its page is.
const FRAME: &str = r#"<iframe id="frame" width="360" height="3000"></iframe>
<script>
document.getElementById("frame").srcdoc = PAGE;
setInterval(() => {
  const { scrollWidth, clientWidth } = document.getElementById("frame").contentDocument
    .documentElement;
  const drawn = document.getElementById("frame").contentDocument.querySelectorAll("svg").length;
  document.body.dataset.widths = `${scrollWidth} of ${clientWidth}, ${drawn} charts`;
}, 1000);
</script>"#;

/// A few seconds of the browser's clock.
const SOON: &str = "--virtual-time-budget=5000";

/// Two hours of the browser's clock.
const HOURS: &str = "--virtual-time-budget=7200000";

/// Points of a chart, and elements of the page: their numbers must not grow.
const POINTS_MAX: usize = 600;
const ELEMENTS_MAX: usize = 500;

/// The body of an answer of this endpoint.
pub(crate) fn fetched(address: &str, path: &str) -> String {
    let host = address.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The page of a sidecar, with answers from this script in its place.
fn with_answers(place: &Place, answers: &str, change: impl FnOnce(&mut StatusReport)) -> String {
    let (sidecar, address) = with_page(place);
    let mut report = sidecar.status();
    change(&mut report);
    let report = serde_json::to_string(&report).unwrap();
    let page = fetched(&address, "/");
    sidecar.stop();
    let answers = answers.replace("REPORT", &report);
    let answers = answers.replacen("<script>", &format!("<script>{OTHERS}"), 1);
    page.replacen("<script>", &format!("{answers}<script>"), 1)
}

/// What a browser shows of such a page.
fn shown(place: &Place, page: &str, looks: &str) -> Option<String> {
    let file = place.path("page.html");
    std::fs::write(&file, page).unwrap();
    browser("--dump-dom", looks, &format!("file://{}", file.display()))
}

#[test]
fn a_page_shows_that_its_sidecar_does_not_answer() {
    let place = Place::with_volume(2, 8 << 20);
    let page = with_answers(&place, SILENCE, |_| ());
    let Some(shown) = shown(&place, &page, LOOKS) else { return };
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
        report.notes = vec!["a hint".into()];
    };
    let page = with_answers(&place, ANSWERS, lose);
    let Some(shown) = shown(&place, &page, LOOKS) else { return };
    let (shown, _) = shown.split_once("<script>").unwrap();
    // Troubles come first, hints last.
    let words = [
        "<span class=\"warn\">● degraded",
        "is gone. put the same drive back",
        "id=\"tiles\"",
        "Since the start",
        "Segments of stores",
        "<th>poller</th>",
        "Note: a hint",
    ];
    let places = words.map(|word| shown.find(word));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {shown}");
}

#[test]
fn a_narrow_screen_shows_all_without_scrolling_aside() {
    let place = Place::with_store(2, 64 << 20);
    let page = with_answers(&place, ANSWERS, |report| {
        report.sidecar.socket = format!("/run/{}/kvrail.sock", "long".repeat(30));
    });
    let page = serde_json::to_string(&page).unwrap().replace("</", "<\\/");
    let Some(shown) = shown(&place, &FRAME.replace("PAGE", &page), LOOKS) else { return };
    let widths =
        shown.split_once("data-widths=\"").map(|(_, rest)| rest.split('"').next().unwrap());
    assert_eq!(widths, Some("360 of 360, 14 charts"), "{shown}");
}

#[test]
fn a_page_that_is_open_for_hours_stays_as_it_is() {
    let place = Place::with_store(2, 64 << 20);
    let page = with_answers(&place, ANSWERS, |report| {
        report.shards.iter_mut().for_each(|shard| shard.state = "serving".into());
        report.troubles = troubles(report);
    });
    let Some(shown) = shown(&place, &page, HOURS) else { return };
    let asked = shown.split_once("data-asked=\"").map(|(_, rest)| rest.split('"').next().unwrap());
    let asked: u64 =
        asked.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{shown}"));
    assert!(asked > 3600, "the page made {asked} requests");
    let (shown, _) = shown.split_once("<script>").unwrap();
    assert!(shown.contains("● serving") && shown.contains("1.0 MiB/s"), "{shown}");
    assert_eq!(shown.matches("class=\"map\"").count(), 4, "{shown}");
    let lines = shown.split("<path d=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let points = lines.map(|line| line.matches(',').count()).max().expect("charts");
    assert!((100..=POINTS_MAX).contains(&points), "{points} points");
    let elements = shown.matches("</").count();
    assert!(elements < ELEMENTS_MAX, "{elements} elements");
}
