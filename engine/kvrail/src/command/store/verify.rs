//! `kvrail store verify`.

use std::mem;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use kvrail_client::{
    Arena, BlockNote, BlockRequest, Class, Client, ClientError, ListedBlock, Namespace, Pages,
    Queue, Status,
};
use serde::Serialize;

use super::target::{CommandSession, TargetArgs};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json, print_table, print_text, table};
use kvrail_cli::progress::bar;
use kvrail_cli::stop::StopFlag;

const EXAMPLES: &str = "\
Examples:
  kvrail store verify                                all namespaces, a tenth of the drives' time
  kvrail store verify llama-70b --share 50%
  kvrail store verify --format json

Reads and checks every block on the drives while the store serves, at the lowest class. No block
counts as hit by that. A wrong one is read again; if it is wrong twice, the sidecar reads it, drops
it and logs its place. Status 5 when blocks were wrong, 1 when some could not be read.";

/// Blocks and bytes that are read at once.
const BATCH_BLOCKS: usize = 16;
const BATCH_BYTES: usize = 16 << 20;
/// Longest wait for one batch.
const BATCH_PATIENCE: Duration = Duration::from_secs(60);
/// Longest pause without a look at the signals.
const PAUSE: Duration = Duration::from_millis(100);
/// Keys of wrong blocks that are shown of each namespace.
const WRONG_SHOWN: usize = 100;

/// Arguments of `kvrail store verify`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// The namespace [default: all]
    namespace: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
    /// Read in this share of the time, in percent
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = share)]
    share: f64,
}

/// A share of at most 1.
fn share(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>();
    let percent = number.ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
    let percent = percent.ok_or("give percent above 0 and up to 100, such as 10%")?;
    Ok(percent / 100.0)
}

/// The result of one namespace.
#[derive(Debug, Default, Serialize)]
struct VerifiedNamespace {
    namespace: String,
    /// Blocks whose bytes were right, and their bytes.
    right: u64,
    right_bytes: u64,
    /// Blocks that were wrong twice.
    wrong: u64,
    /// The first of their keys.
    wrong_keys: Vec<String>,
    /// Blocks that were right when they were read once more.
    reread: u64,
    /// Blocks that were dropped, evicted or cleared meanwhile.
    gone: u64,
    /// Blocks that no drive has yet, and that were not looked at.
    in_memory: u64,
    /// Blocks that could not be read, and the first reason.
    failed: u64,
    failure: Option<String>,
    /// Pages of records that could not be read: their blocks were not looked at.
    unreadable_pages: u32,
}

#[derive(Serialize)]
struct VerifyReport {
    store: String,
    seconds: f64,
    namespaces: Vec<VerifiedNamespace>,
}

/// Verifies.
pub(super) fn run(args: &VerifyArgs, context: &Context) -> Result<(), Failure> {
    let stop = StopFlag::register()?;
    let session = args.target.attach(context)?;
    let begun = Instant::now();
    let mut reader = NamespaceReader::open(&session, args.share)?;
    let mut reports = Vec::new();
    for store in session.stores(args.target.store())? {
        let known = session.ask(|client| client.store(store.name())?.namespaces())?;
        let wanted = |name: &str| args.namespace.as_deref().is_none_or(|asked| asked == name);
        let known: Vec<_> = known.into_iter().filter(|space| wanted(&space.name)).collect();
        let bar = bar(context, BAR, None);
        bar.set_length(known.iter().map(|space| space.bytes).sum());
        let mut namespaces = Vec::new();
        for name in known.iter().map(|space| space.name.as_str()) {
            let space = session.namespace(store, name)?;
            namespaces.push(reader.run(&session, &space, (&stop, &bar))?);
        }
        bar.finish_and_clear();
        let seconds = begun.elapsed().as_secs_f64();
        reports.push(VerifyReport { store: store.name().to_owned(), seconds, namespaces });
    }
    if let Some(name) = &args.namespace
        && reports.iter().all(|report| report.namespaces.is_empty())
    {
        // The sidecar's own words.
        session.namespace(session.store(args.target.store())?, name)?;
    }
    print(&reports, context)?;
    judge(&reports)
}

const BAR: &str = "verifying {bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} \
                   {eta} left";

/// Reads one namespace after the other, with the same memory.
#[derive(Debug)]
struct NamespaceReader {
    arena: Arena,
    queue: Queue,
    share: f64,
}

impl NamespaceReader {
    fn open(session: &CommandSession, share: f64) -> Result<Self, Failure> {
        let open = |client: &Client| {
            Ok((client.create_arena(BATCH_BYTES, Pages::Base)?, client.open_queue(BATCH_BLOCKS)?))
        };
        let (arena, queue) = session.ask(open)?;
        Ok(Self { arena, queue, share })
    }

    fn run(
        &mut self,
        session: &CommandSession,
        space: &Namespace,
        (stop, bar): (&StopFlag, &ProgressBar),
    ) -> Result<VerifiedNamespace, Failure> {
        let mut verified = VerifiedNamespace {
            namespace: space.name().to_owned(),
            ..VerifiedNamespace::default()
        };
        let before = self.reread();
        let mut listing = space.list();
        while let Some(page) = session.ask(|_| listing.next_page())? {
            verified.unreadable_pages += page.unreadable;
            let listed = page.blocks.len() as u64;
            // What only memory has would be written for that.
            let mut stored = page.blocks;
            stored.retain(|block| block.offset.is_some());
            verified.in_memory += listed - stored.len() as u64;
            let mut rest = &stored[..];
            while !rest.is_empty() {
                let begun = Instant::now();
                let (batch, later) = rest.split_at(Self::batch(rest));
                session.ask(|client| self.read((client, space), batch, &mut verified))?;
                bar.inc(batch.iter().map(|block| u64::from(block.length)).sum());
                self.pause(begun.elapsed(), stop)?;
                rest = later;
            }
        }
        verified.reread = self.reread() - before;
        Ok(verified)
    }

    /// Blocks that were right at the second time, of all namespaces so far.
    fn reread(&self) -> u64 {
        self.queue.verified().reread - self.queue.verified().wrong
    }

    /// Blocks that are read at once: as many as the memory has room for.
    fn batch(blocks: &[ListedBlock]) -> usize {
        let unit = |it: &ListedBlock| (it.length as usize).next_multiple_of(64 << 10);
        let mut bytes = 0;
        let fits = blocks.iter().take(BATCH_BLOCKS).take_while(|block| {
            bytes += unit(block);
            bytes <= BATCH_BYTES
        });
        fits.count().max(1)
    }

    fn read(
        &mut self,
        (client, space): (&Client, &Namespace),
        blocks: &[ListedBlock],
        verified: &mut VerifiedNamespace,
    ) -> Result<(), ClientError> {
        let large = blocks[0].length as usize;
        if large > self.arena.bytes() {
            // Grows to the largest block there is, and stays so.
            let larger = client.create_arena(large, Pages::Base)?;
            mem::replace(&mut self.arena, larger).detach()?;
        }
        for (tag, block) in (0..).zip(blocks) {
            let lease = self.arena.lease(block.length as usize)?;
            let get = BlockRequest::get(space, block.key, lease);
            let submitted = self.queue.submit(get.class(Class::Background).tag(tag));
            submitted.expect("the queue has room for a batch");
        }
        for _ in blocks {
            let Some(done) = self.queue.wait(BATCH_PATIENCE)? else {
                return Err(ClientError::Timeout { what: "a read", after: BATCH_PATIENCE });
            };
            let block = &blocks[usize::try_from(done.tag).expect("a place of the batch")];
            verified.count(block, done.status, done.note, done.bytes);
        }
        Ok(())
    }

    /// Leaves the drives to others for the rest of the time.
    fn pause(&self, busy: Duration, stop: &StopFlag) -> Result<(), Failure> {
        let until = Instant::now() + busy.mul_f64(1.0 / self.share - 1.0);
        loop {
            if stop.is_set() {
                return Err(Failure::new(Exit::Interrupted, "interrupted; nothing was changed"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(PAUSE));
        }
    }
}

impl VerifiedNamespace {
    fn count(&mut self, block: &ListedBlock, status: Status, note: BlockNote, bytes: u64) {
        match (status, note) {
            (Status::Ok, _) => {
                self.right += 1;
                self.right_bytes += bytes;
            }
            (Status::Miss, BlockNote::Wrong) => {
                self.wrong += 1;
                if self.wrong_keys.len() < WRONG_SHOWN {
                    self.wrong_keys.push(block.key.to_string());
                }
            }
            // Another block has the key now.
            (Status::Miss | Status::TooSmall, _) => self.gone += 1,
            (other, _) => {
                self.failed += 1;
                let why = || format!("{}: {}", block.key, other.meaning());
                self.failure.get_or_insert_with(why);
            }
        }
    }
}

fn print(reports: &[VerifyReport], context: &Context) -> Result<(), Failure> {
    if context.format == Format::Json {
        return print_json(&reports);
    }
    if reports.iter().all(|report| report.namespaces.is_empty()) {
        return print_text("no namespaces");
    }
    let mut table = table(&["STORE", "NAMESPACE", "RIGHT", "BYTES", "WRONG", "GONE", "FAILED"]);
    for (store, it) in reports
        .iter()
        .flat_map(|report| report.namespaces.iter().map(|space| (&report.store, space)))
    {
        table.add_row([
            store.clone(),
            it.namespace.clone(),
            it.right.to_string(),
            human_bytes(it.right_bytes),
            it.wrong.to_string(),
            it.gone.to_string(),
            it.failed.to_string(),
        ]);
    }
    print_table(&table)
}

/// The exit status.
fn judge(reports: &[VerifyReport]) -> Result<(), Failure> {
    let all = || reports.iter().flat_map(|report| &report.namespaces);
    let wrong: u64 = all().map(|space| space.wrong).sum();
    if wrong > 0 {
        let keys: Vec<_> = all().flat_map(|space| &space.wrong_keys).take(8).cloned().collect();
        let what = format!("{wrong} blocks were wrong, such as {}", keys.join(", "));
        return Err(Failure::new(Exit::WrongData, what).with_remedy(
            "they are misses now and their places are in the sidecar's log: see dmesg and the \
             drive's SMART log",
        ));
    }
    let failed: u64 = all().map(|space| space.failed).sum();
    let pages: u32 = all().map(|space| space.unreadable_pages).sum();
    if failed > 0 || pages > 0 {
        let why = all().find_map(|space| space.failure.clone()).unwrap_or_default();
        let what = format!("{failed} blocks and {pages} pages of records could not be read: {why}");
        let failure = Failure::new(Exit::Failed, what);
        return Err(failure.with_remedy("see `kvrail status --verbose` and dmesg"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_share_is_percent() {
        assert_eq!((share("10%"), share("100 %"), share("0.5")), (Ok(0.1), Ok(1.0), Ok(0.005)));
        for wrong in ["0", "101%", "-1", "NaN", "ten", ""] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
