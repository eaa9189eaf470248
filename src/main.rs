//! The command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    redlock_operator::cli::run(std::env::args_os())
}
