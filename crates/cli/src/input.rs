//! Texts that are read: of files, and of standard input that is not a terminal, while the model loads.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

/// How long a pipe beside a prompt may be silent. A pipe that is merely inherited never says anything, nor ends.
const PATIENCE: Duration = Duration::from_secs(3);

/// The text of a file.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))
}

enum Event {
    /// The first bytes came, or the end.
    Alive,
    /// The end came.
    All(io::Result<Vec<u8>>),
}

/// What is being piped in.
pub struct Piped {
    events: Receiver<Event>,
    started: Instant,
}

impl Piped {
    /// Begins to read, unless standard input is a terminal.
    pub fn start() -> Option<Piped> {
        if io::stdin().is_terminal() {
            return None;
        }
        let (sender, events) = channel();
        thread::spawn(move || read(io::stdin(), &sender));
        Some(Piped {
            events,
            started: Instant::now(),
        })
    }

    /// All of it, however long that takes.
    pub fn all(self) -> anyhow::Result<String> {
        let last = self.events.iter().find_map(|event| match event {
            Event::Alive => None,
            Event::All(bytes) => Some(bytes),
        });
        let bytes = last
            .unwrap_or_else(|| Ok(Vec::new()))
            .context("cannot read standard input")?;
        String::from_utf8(bytes).context("standard input is not UTF-8")
    }

    /// All of it, or `None` if nothing came for a while, not even the end.
    pub fn all_unless_silent(self) -> anyhow::Result<Option<String>> {
        match self
            .events
            .recv_timeout(PATIENCE.saturating_sub(self.started.elapsed()))
        {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Ok(Some(String::new())),
            Ok(Event::All(Err(error))) => Err(error).context("cannot read standard input"),
            Ok(_) => self.all().map(Some),
        }
    }
}

/// A send fails only when nobody waits any more.
fn read(mut source: impl Read, sender: &Sender<Event>) {
    let mut bytes = vec![0; 1 << 16];
    let first = loop {
        match source.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            first => break first,
        }
    };
    let all = first.and_then(|len| {
        let _ = sender.send(Event::Alive);
        bytes.truncate(len);
        if len > 0 {
            source.read_to_end(&mut bytes).map(|_| ())
        } else {
            Ok(())
        }
    });
    let _ = sender.send(Event::All(all.map(|()| bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piped(source: impl Read + Send + 'static, started: Instant) -> Piped {
        let (sender, events) = channel();
        thread::spawn(move || read(source, &sender));
        Piped { events, started }
    }

    #[test]
    fn what_comes_is_read_to_its_end() {
        let text = "long ".repeat(100_000);
        let source = io::Cursor::new(text.clone().into_bytes());
        assert_eq!(piped(source.clone(), Instant::now()).all().unwrap(), text);
        assert_eq!(piped(source, Instant::now()).all_unless_silent().unwrap(), Some(text));
        assert_eq!(
            piped(io::empty(), Instant::now()).all_unless_silent().unwrap(),
            Some(String::new())
        );
        assert!(piped(&b"\xff"[..], Instant::now()).all().is_err());
    }

    #[test]
    fn a_silent_pipe_is_given_up() {
        struct Silent;
        impl Read for Silent {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                thread::park();
                Ok(0)
            }
        }
        let Some(long_ago) = Instant::now().checked_sub(PATIENCE) else {
            return;
        };
        assert_eq!(piped(Silent, long_ago).all_unless_silent().unwrap(), None);
    }
}
