//! `kvrail store explain`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use indicatif::HumanDuration;
use kvrail_client::{
    BlockKey, EventKind, KeyBlock, KeyFate, KeyReport, KeyState, KeyWorth, Remembered,
};
use serde::Serialize;

use super::target::{TargetArgs, ago};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, human_bytes, print_json, print_text};

/// A block that counts as used so much earlier than the coldest ones was made to go first.
const DEMOTED_PERCENT: u32 = 90;

const EXAMPLES: &str = "\
Examples:
  kvrail store explain llama-70b 0f0e0d0c0b0a09080706050403020100    as lists show it
  kvrail store explain llama-70b --text 'request 17, block 3'        the engine's key, folded here
  kvrail store explain llama-70b --bytes 00ff17                      the same in hexadecimal";

/// Arguments of `kvrail store explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct KeyArgs {
    /// The key: 128 bits as 32 hexadecimal digits
    #[arg(value_parser = bits)]
    key: Option<BlockKey>,
    /// The engine's own key, as text; it is folded
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// The engine's own key, as hexadecimal digits; it is folded
    #[arg(long, value_name = "HEX", value_parser = folded)]
    bytes: Option<BlockKey>,
}

fn bits(text: &str) -> Result<BlockKey, String> {
    let mut bytes = [0; 16];
    hex::decode_to_slice(text, &mut bytes).map_err(|error| {
        format!("{error}; a key has 32 hexadecimal digits (--text and --bytes fold other keys)")
    })?;
    Ok(BlockKey::from_bits(u128::from_be_bytes(bytes)))
}

fn folded(text: &str) -> Result<BlockKey, String> {
    let bytes = hex::decode(text).map_err(|error| format!("{error}; give hexadecimal digits"))?;
    Ok(BlockKey::of(&bytes))
}

impl KeyArgs {
    fn key(&self) -> BlockKey {
        let text = self.text.as_ref().map(|text| BlockKey::of(text.as_bytes()));
        self.key.or(self.bytes).or(text).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct ShownBlock<'a> {
    store: &'a str,
    namespace: &'a str,
    key: String,
    /// Of the device whose number is the report's.
    path: String,
    #[serde(flatten)]
    report: &'a KeyReport,
}

/// Explains.
pub(super) fn run(args: &ExplainArgs, context: &Context) -> Result<(), Failure> {
    let session = args.target.attach(context)?;
    let store = session.store(args.target.store())?;
    let key = args.key.key();
    let namespace = session.namespace(store, &args.namespace)?;
    let report = session.ask(|_| namespace.explain(key))?;
    let devices = session.ask(kvrail_client::Client::status)?.devices;
    let path = devices.into_iter().find(|device| device.index == report.device);
    let path = path.map_or_else(|| "?".to_owned(), |device| device.name);
    if context.format == Format::Json {
        let (store, namespace, key) = (store.name(), args.namespace.as_str(), key.to_string());
        return print_json(&ShownBlock { store, namespace, key, path, report: &report });
    }
    print_text(&format!("key {key}, member {} ({path})\n{}", report.member, text(&report)))
}

fn text(report: &KeyReport) -> String {
    match &report.state {
        KeyState::There(block) if block.in_memory => {
            format!(
                "{}\n  memory   clients copy it from the memory tier{}",
                there(block),
                came(report)
            )
        }
        KeyState::There(block) => there(block),
        KeyState::Putting { length, .. } if report.in_memory => {
            format!(
                "is in the memory tier with {length} bytes{}, and is to be written later, or never",
                came(report)
            )
        }
        KeyState::Putting { length, written } => {
            format!("is being put: {written} of {length} bytes are written")
        }
        KeyState::Dropped => "was dropped, or a put of it was given up, during recovery".into(),
        KeyState::Warming => "is not found yet: the member has not read all of its records".into(),
        KeyState::Distrusted => {
            "is not served: records of durable drops are missing in or behind its segment, so it \
             may have been dropped"
                .into()
        }
        KeyState::Absent => absent(report),
    }
}

fn absent(report: &KeyReport) -> String {
    let Some((event, seconds)) = &report.event else {
        let Remembered { all_s, this_s, one_in } = report.remembered;
        let time = |seconds| HumanDuration(Duration::from_secs(seconds));
        return format!(
            "is not there: never put in this namespace, or gone more than {} ago\n  since the \
             sidecar's start, keys that went are remembered for {},\n  one key in {one_in} for an \
             hour",
            time(this_s),
            time(all_s)
        );
    };
    let ago = HumanDuration(Duration::from_secs(*seconds));
    match event.kind {
        EventKind::Evicted => {
            format!("is not there: evicted {ago} ago with {} bytes", event.length)
        }
        EventKind::Dropped => format!("is not there: dropped by a client {ago} ago"),
        EventKind::Cleared => format!("is not there: its namespace was cleared {ago} ago"),
    }
}

/// When it came into memory, if the sidecar sends that.
fn came(report: &KeyReport) -> String {
    report.memory_age_s.map_or_else(String::new, |seconds| {
        format!(", in which it came {} ago", HumanDuration(Duration::from_secs(seconds.into())))
    })
}

fn there(it: &KeyBlock) -> String {
    let hold = it.held_ms.map_or_else(|| "none".to_owned(), |left| format!("{left} ms more"));
    let next = match it.next {
        KeyFate::Moved => "moved, because it was used lately or is held",
        KeyFate::Evicted => "evicted: others were used later",
    };
    let worth = match it.worth {
        KeyWorth::Low => "less than that of others",
        KeyWorth::Normal => "as that of others",
        KeyWorth::High => "more than that of others: it is retained",
        KeyWorth::Over => "none: the time that it was to be kept for is over",
    };
    let until = it.worth_until_unix_s.map_or_else(String::new, until);
    let turn = match it.segments_ahead {
        0 => "its segment is the oldest".to_owned(),
        ahead => format!("{ahead} segments of its pool are older"),
    };
    let doubt = if it.suspect { "\n  doubt    a reader reported wrong bytes" } else { "" };
    format!(
        "is there\n  length   {} ({} bytes)\n  segment  {}, epoch {}, opened {} ago\n  offset   {} \
         of the member's area\n  check    {:016x}\n  worth    {worth}{until}{}\n  hold     \
         {hold}\n  reclaim  {turn}; then it is {next}{doubt}",
        human_bytes(it.length.into()),
        it.length,
        it.segment,
        it.epoch,
        ago(it.opened_unix_s),
        it.offset,
        it.check,
        use_of(it),
    )
}

/// The end of a block's worth.
fn until(unix_s: u32) -> String {
    let end = UNIX_EPOCH + Duration::from_secs(unix_s.into());
    match end.duration_since(SystemTime::now()) {
        Ok(left) => format!(", for {} more", HumanDuration(left)),
        Err(_) => ", until now".to_owned(),
    }
}

/// When a block counts as used, beside the coldest ones of its pool.
fn use_of(it: &KeyBlock) -> String {
    let Some(age) = it.age_percent else { return String::new() };
    let used = format!("\n  use      {age} % of the store's bytes were used since it was");
    match it.coldest_age_percent {
        None => used,
        Some(coldest) if age < coldest + DEMOTED_PERCENT => {
            format!("{used}, {coldest} % since the coldest were")
        }
        Some(coldest) => format!(
            "{used}, {coldest} % since the coldest were:\n           it was demoted, or its time \
             is over"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use super::{
        KeyBlock, KeyFate, KeyReport, KeyState, KeyWorth, Remembered, ShownBlock, absent, bits,
        folded, text, there,
    };
    use kvrail_client::BlockKey;

    /// A parser keeps one of two fields with the same name.
    #[test]
    fn no_field_of_the_json_is_there_twice() {
        let remembered = Remembered { all_s: 3, this_s: 3600, one_in: 64 };
        let (state, event) = (KeyState::Absent, None);
        let report = KeyReport {
            member: 1,
            device: 3,
            state,
            in_memory: false,
            memory_age_s: None,
            event,
            remembered,
        };
        assert!(absent(&report).contains("more than 60 minutes ago"), "{}", absent(&report));
        let (key, path) = ("0".repeat(32), "/dev/nvme3n1".to_owned());
        let shown = ShownBlock { store: "kv", namespace: "n", key, path, report: &report };
        let text = serde_json::to_string(&shown).unwrap();
        assert_eq!(text.matches("\"device\":").count(), 1, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["device"], &value["path"]), (&3.into(), &"/dev/nvme3n1".into()));
    }

    fn block() -> KeyBlock {
        KeyBlock {
            segment: 1,
            epoch: 2,
            opened_unix_s: 3,
            segments_ahead: 4,
            offset: 5,
            length: 6,
            check: 7,
            worth: KeyWorth::High,
            worth_until_unix_s: None,
            age_percent: Some(20),
            coldest_age_percent: Some(80),
            held_ms: None,
            suspect: false,
            in_memory: false,
            next: KeyFate::Moved,
        }
    }

    #[test]
    fn hints_are_in_the_text() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let end = u32::try_from((now + Duration::from_secs(7230)).as_secs()).unwrap();
        let mut block = KeyBlock { worth_until_unix_s: Some(end), ..block() };
        let text = there(&block);
        assert!(text.contains("it is retained, for 2 hours more\n  use      20 % of"), "{text}");
        assert!(text.contains("it was, 80 % since the coldest were\n"), "{text}");
        (block.worth, block.worth_until_unix_s, block.age_percent) =
            (KeyWorth::Normal, None, Some(181));
        let text = there(&block);
        assert!(text.contains("as that of others\n"), "{text}");
        assert!(text.contains("it was demoted"), "{text}");
        (block.age_percent, block.coldest_age_percent) = (None, None);
        assert!(!there(&block).contains("  use "), "an earlier sidecar");
    }

    #[test]
    fn memory_is_in_the_text_with_an_age_where_the_sidecar_sends_one() {
        let mut report = KeyReport {
            member: 1,
            device: 3,
            state: KeyState::There(KeyBlock { in_memory: true, ..block() }),
            in_memory: true,
            memory_age_s: None,
            event: None,
            remembered: Remembered { all_s: 3, this_s: 3600, one_in: 64 },
        };
        let words = "\n  memory   clients copy it from the memory tier";
        assert!(text(&report).ends_with(words), "{}", text(&report));
        report.memory_age_s = Some(120);
        let ends = format!("{words}, in which it came 2 minutes ago");
        assert!(text(&report).ends_with(&ends), "{}", text(&report));
        report.state = KeyState::Putting { length: 7, written: 0 };
        let words = "with 7 bytes, in which it came 2 minutes ago, and is to be written later";
        assert!(text(&report).contains(words), "{}", text(&report));
        report.state = KeyState::There(block());
        assert!(!text(&report).contains("  memory "), "{}", text(&report));
    }

    #[test]
    fn keys_are_bits_or_folded_bytes() {
        let key = BlockKey::of(b"a");
        assert_eq!(bits(&key.to_string()), Ok(key));
        assert_eq!(folded("61"), Ok(key));
        for wrong in ["", "61", "x".repeat(32).as_str()] {
            assert!(bits(wrong).unwrap_err().contains("32 hexadecimal digits"), "{wrong}");
        }
        assert!(folded("6").is_err());
    }
}
