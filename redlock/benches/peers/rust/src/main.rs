//! Runs the rslock crate with the benchmark's common flags.

mod bench;

use std::process::ExitCode;
use std::time::Duration;

use bench::{Bench, Client, Config};

/// rslock over all masters; `acquire` repeats `lock` (3 tries, 0-200 ms random delay) without end.
struct RsLock {
    manager: rslock::LockManager,
    key: Vec<u8>,
    ttl: Duration,
}

impl Client for RsLock {
    type Held = rslock::LockGuard;

    async fn lock(&self) -> Result<Self::Held, String> {
        self.manager.acquire(self.key.as_slice(), self.ttl).await.map_err(|e| e.to_string())
    }

    async fn unlock(&self, held: Self::Held) -> Result<(), String> {
        held.release().await;
        Ok(())
    }
}

fn main() -> ExitCode {
    let config = match Config::parse(std::env::args().skip(1)) {
        Ok(config) => config,
        Err(message) => {
            eprintln!("peers-rust: {message}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("peers-rust: {error}");
            return ExitCode::FAILURE;
        }
    };
    let managers: Vec<_> = (0..config.instances)
        .map(|_| {
            let uris: Vec<String> = config.masters.iter().map(|n| format!("redis://{n}")).collect();
            rslock::LockManager::new(uris)
        })
        .collect();
    let clients: Vec<_> = (0..config.clients)
        .map(|i| RsLock {
            manager: managers[i % managers.len()].clone(),
            key: config.key(i).into_bytes(),
            ttl: config.ttl,
        })
        .collect();
    let masters = config.masters.len();
    let line = runtime.block_on(Bench::new(config).run(
        "rslock",
        masters,
        "acquire(): 3 tries with 0-200 ms random delay, repeated without end; waits for all masters",
        clients,
    ));
    println!("{line}");
    // clients that are still stuck in a library call must not keep the process
    runtime.shutdown_background();
    ExitCode::SUCCESS
}
