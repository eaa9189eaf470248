//! The servers of a run, as nodes of a `RedisLockCluster`: armed, and only then asked for votes.

use std::sync::Arc;
use std::time::Duration;

use redlock_operator::redlock::key::ARMED_KEY;
use redlock_operator::redlock::{Address, Client, Credentials, Endpoint, Marker, RedisNode, System};

/// How long arming one node may take: a node that does not answer stays out.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes the marker of each server that answers, as the operator does.
pub async fn arm(nodes: &[String], cap: Duration) {
    let arming = nodes.iter().map(|node| async move {
        if tokio::time::timeout(PATIENCE, arm_one(node, cap)).await.map_or(true, |armed| armed.is_err()) {
            eprintln!("engine: {node} does not answer and is not armed");
        }
    });
    futures::future::join_all(arming).await;
}

async fn arm_one(node: &str, cap: Duration) -> redis::RedisResult<()> {
    let mut connection = redis::Client::open(format!("redis://{node}"))?.get_multiplexed_async_connection().await?;
    let info: redis::InfoDict = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let marker = format!("{} {}", info.get::<String>("run_id").unwrap_or_default(), cap.as_millis());
    redis::cmd("SET").arg(ARMED_KEY).arg(marker).query_async(&mut connection).await
}

/// A client of these nodes, with a clock of its own, as a process of its own would have.
pub fn client(nodes: &[String], node_timeout: Duration) -> Client {
    let nodes = nodes.iter().map(|node| {
        let (host, port) = node.rsplit_once(':').expect("--nodes host:port,...");
        RedisNode::connect(Endpoint {
            name: node.clone(),
            address: Address::Tcp(host.to_owned(), port.parse().expect("--nodes host:port,...")),
            credentials: Credentials::None,
            marker: Marker::Required,
        })
    });
    Client::with_environment(nodes, node_timeout, Arc::new(System))
}
