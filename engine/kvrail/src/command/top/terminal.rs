//! The terminal that `kvrail top` draws on: raw, on its second screen, until it is dropped.

use std::io::{self, Write, stdin, stdout};
use std::panic;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Second screen, no cursor, long lines are cut.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// How long the rest of a key that sends several bytes may take.
const REST: Duration = Duration::from_millis(50);

/// A key that `kvrail top` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalKey {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    /// Escape or Ctrl-C.
    End,
}

/// Raw, until it is dropped.
pub(super) struct Terminal(Termios);

impl Terminal {
    /// Takes the terminal of standard input and output.
    pub(super) fn take() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        let taken = Self(before.clone());
        // A panic's message belongs on the first screen.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave(&before);
            hook(info);
        }));
        write(ENTER)?;
        Ok(taken)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> io::Result<(usize, usize)> {
        let size = tcgetwinsize(stdout())?;
        Ok((size.ws_col.into(), size.ws_row.into()))
    }

    pub(super) fn show(&self, frame: &str) -> io::Result<()> {
        write(frame)
    }

    /// The keys that were pressed; none after this time.
    pub(super) fn keys(&self, wait: Duration) -> io::Result<Vec<TerminalKey>> {
        let mut bytes = Vec::new();
        let mut wait = wait;
        while is_readable(wait)? {
            let mut some = [0; 64];
            let count = read(stdin(), &mut some)?;
            if count == 0 {
                return Ok(vec![TerminalKey::End]); // the terminal is gone
            }
            bytes.extend_from_slice(&some[..count]);
            if !is_cut(&bytes) {
                break;
            }
            wait = REST;
        }
        Ok(keys(&bytes))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave(&self.0);
    }
}

fn leave(before: &Termios) {
    // Nothing can be done for a terminal that is gone.
    let _gone = write(LEAVE);
    let _gone = tcsetattr(stdin(), OptionalActions::Now, before);
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn is_readable(wait: Duration) -> io::Result<bool> {
    let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
    let input = stdin();
    let mut keyboard = [PollFd::new(&input, PollFlags::IN)];
    Ok(poll(&mut keyboard, Some(&wait))? > 0)
}

/// Whether bytes end inside of a key.
fn is_cut(bytes: &[u8]) -> bool {
    let Some(at) = bytes.iter().rposition(|byte| *byte == 0x1b) else { return false };
    match &bytes[at + 1..] {
        [] => true,
        [b'[' | b'O', sequence @ ..] => !sequence.iter().any(|byte| ends_sequence(*byte)),
        _ => false,
    }
}

fn ends_sequence(byte: u8) -> bool {
    (0x40..0x7f).contains(&byte)
}

/// The keys in a terminal's bytes. Keys without a function here are left out.
fn keys(bytes: &[u8]) -> Vec<TerminalKey> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let [first, behind @ ..] = rest {
        let (key, taken) = match (first, behind) {
            (0x1b, [b'[' | b'O', sequence @ ..]) => escaped(sequence),
            (0x1b | 0x03, _) => (Some(TerminalKey::End), 0),
            (byte, _) if byte.is_ascii_graphic() => (Some(TerminalKey::Char(char::from(*byte))), 0),
            _ => (None, 0),
        };
        keys.extend(key);
        rest = &behind[taken..];
    }
    keys
}

/// The key of a sequence behind its introducer, and how many bytes that and the sequence have.
fn escaped(sequence: &[u8]) -> (Option<TerminalKey>, usize) {
    let length = sequence.iter().position(|byte| ends_sequence(*byte)).map_or(0, |at| at + 1);
    let key = match &sequence[..length] {
        b"A" => Some(TerminalKey::Up),
        b"B" => Some(TerminalKey::Down),
        b"H" | b"1~" | b"7~" => Some(TerminalKey::Home),
        b"5~" => Some(TerminalKey::PageUp),
        b"6~" => Some(TerminalKey::PageDown),
        _ => None,
    };
    (key, length + 1)
}

#[cfg(test)]
mod tests {
    use super::TerminalKey::{Char, Down, End, Home, PageDown, PageUp, Up};
    use super::{is_cut, keys};

    #[test]
    fn keys_are_read_from_what_terminals_send() {
        assert_eq!(keys(b"sq"), [Char('s'), Char('q')]);
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H"), [Up, Down, PageUp, PageDown, Home]);
        assert_eq!(keys(b"\x1b[15~\x1b[1;5Cr"), [Char('r')], "others mean nothing");
        for ends in [&b"\x1b"[..], b"\x03"] {
            assert_eq!(keys(ends), [End]);
        }
        assert_eq!(keys("ü\r".as_bytes()), []);
    }

    #[test]
    fn a_key_that_is_cut_is_waited_for() {
        for cut in [&b"\x1b"[..], b"\x1b[", b"\x1bO", b"q\x1b[5", b"\x1b[1;5"] {
            assert!(is_cut(cut), "{cut:?}");
        }
        for whole in [&b""[..], b"q", b"\x1b[A", b"\x1b[5~", b"\x1b[5~q"] {
            assert!(!is_cut(whole), "{whole:?}");
        }
    }
}
