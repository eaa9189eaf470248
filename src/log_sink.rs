//! Where log lines go: into a bounded channel, and from there by a thread of its own to the output.
//!
//! # Invariant
//! To log never waits and never fails. Whoever reads the output may be slow, gone, or have a full disk: then lines are lost
//! and counted, and nothing else is. A renewal or a release must not wait for a reader of logs.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written. A burst of this size is not lost on a reader that is alive.
const BACKLOG: usize = 4096;
/// How long the end of the process waits for the lines that wait.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Lines that were lost, in this process.
static LOST: LazyLock<Counter<u64, AtomicU64>> = LazyLock::new(Counter::default);

/// What the thread is sent.
enum Message {
    Line(Vec<u8>),
    /// Say when all lines before this were written, or lost.
    Flush(SyncSender<()>),
}

/// The way to the output. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogSink {
    messages: SyncSender<Message>,
}

/// Registers the number of lost lines.
pub(crate) fn register(registry: &mut Registry) {
    registry.register("log_lines_lost", "Log lines that could not be written", LOST.clone());
}

/// Writes lines until the last sink is dropped.
fn write(messages: &Receiver<Message>, mut output: impl Write) {
    for message in messages {
        match message {
            Message::Line(line) => {
                if output.write_all(&line).is_err() {
                    LOST.inc();
                }
            }
            // Who asked may have given up.
            Message::Flush(done) => drop(done.try_send(())),
        }
    }
}

impl LogSink {
    /// Writes to standard error, past the lock that the standard library holds meanwhile: a thread that panics must not wait for it.
    pub(crate) fn to_stderr() -> io::Result<Self> {
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Self::to(File::from(stderr))
    }

    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, receiver) = sync_channel(BACKLOG);
        thread::Builder::new().name("log".to_owned()).spawn(move || write(&receiver, output))?;
        Ok(Self { messages })
    }

    /// Waits a little until all lines are written.
    pub(crate) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        // A full channel has a reader that does not read.
        if self.messages.try_send(Message::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(LAST_LINES);
        }
    }
}

impl Write for LogSink {
    /// Takes each line whole, and never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.messages.try_send(Message::Line(line.to_vec())).is_err() {
            LOST.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogSink {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Instant;

    use super::*;

    #[test]
    fn lines_come_in_their_order_and_a_flush_waits_for_them() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut sink = LogSink::to(writer).unwrap();
        for n in 0..100 {
            writeln!(sink, "line {n}").unwrap();
        }
        LogSink::flush(&sink);
        drop(sink);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let expected: Vec<_> = (0..100).map(|n| format!("line {n}")).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_output_that_nobody_reads_or_that_is_closed_holds_nobody_up() {
        let line = vec![b'x'; 128];
        let (unread, full) = io::pipe().unwrap();
        let (closed, broken) = io::pipe().unwrap();
        drop(closed);
        for output in [full, broken] {
            let (mut sink, lost, began) = (LogSink::to(output).unwrap(), LOST.get(), Instant::now());
            for _ in 0..2 * BACKLOG {
                sink.write_all(&line).unwrap();
            }
            LogSink::flush(&sink);
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
            assert!(LOST.get() > lost, "what is lost is counted");
        }
        drop(unread);
    }
}
