//! The servers of a run, as masters of a `RedisLockCluster`: armed before they are asked for votes.

use std::sync::Arc;
use std::time::Duration;

use redlock_engine::key::ARMED_KEY;
use redlock_engine::{Address, Client, Credentials, Endpoint, Marker, RedisMaster, System};

/// Timeout of arming one master: a master that does not answer is not armed.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes the marker of each server that answers, as the operator does.
pub async fn arm(masters: &[String], cap: Duration) {
    let arming = masters.iter().map(|master| async move {
        if tokio::time::timeout(PATIENCE, arm_one(master, cap)).await.map_or(true, |armed| armed.is_err()) {
            eprintln!("engine: {master} does not answer and is not armed");
        }
    });
    futures::future::join_all(arming).await;
}

async fn arm_one(master: &str, cap: Duration) -> redis::RedisResult<()> {
    let mut connection = redis::Client::open(format!("redis://{master}"))?.get_multiplexed_async_connection().await?;
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let marker = format!("{} {}", info.get::<String>("run_id").unwrap_or_default(), cap.as_millis());
    redis::cmd("SET").arg(ARMED_KEY).arg(marker).query_async(&mut connection).await
}

/// A client of these masters with a clock of its own, as each process has one.
pub fn client(masters: &[String], call_timeout: Duration) -> Client {
    let masters = masters.iter().map(|master| {
        let (host, port) = master.rsplit_once(':').expect("--masters host:port,...");
        RedisMaster::connect(Endpoint {
            name: master.clone(),
            address: Address::Tcp(host.to_owned(), port.parse().expect("--masters host:port,...")),
            credentials: Credentials::None,
            marker: Marker::Required,
        })
    });
    Client::with_environment(masters, call_timeout, Arc::new(System)).expect("valid settings")
}
