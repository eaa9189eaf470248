//! Logs: to standard error, as text for people or as JSON for programs. A log that cannot be written stops nothing.

use std::io::{IsTerminal, stderr};

use clap::{Args, ValueEnum};
use tracing::error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::log_sink::LogSink;

/// Options of the log.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// Format of the log.
    #[arg(long, env = "REDLOCK_LOG_FORMAT", value_enum, default_value_t = Format::Text)]
    log_format: Format,
    /// What to log: a level (error, warn, info, debug, trace) or a filter such as `info,redlock_engine=debug`.
    #[arg(long, visible_alias = "log", env = "RUST_LOG", default_value = "info", value_parser = parse_filter)]
    log_level: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people.
    #[value(alias = "plain")]
    Text,
    /// One object per line.
    Json,
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl LogArgs {
    /// Starts logging. Where there is no standard error, nothing is logged.
    pub(super) fn init(&self) -> Option<LogSink> {
        let sink = LogSink::to_stderr().ok()?;
        let plain = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.log_level))
            .with_writer(sink.clone())
            .with_ansi(stderr().is_terminal());
        // It fails if the program has a log already, which is then used.
        let _ = match self.log_format {
            Format::Text => plain.finish().try_init(),
            Format::Json => plain.json().flatten_event(true).finish().try_init(),
        };
        // The standard library's own report would wait for standard error.
        std::panic::set_hook(Box::new(|panic| error!("{panic}")));
        Some(sink)
    }
}
