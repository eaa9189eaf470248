//! What was missed while a connection was broken, or while this process was stopped.

use std::time::Duration;

use redlock_engine::master::{Heard, Master as _, News, Reading};
use redlock_engine::{Owner, Token};
use redlock_test_servers::server::{PATIENCE, Server, connected, key};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

#[tokio::test]
async fn a_subscriber_is_told_when_the_connection_was_broken_and_is_there_again() {
    let servers = Server::start_armed(1).await;
    let client = connected(&servers).await;
    let master = &client.masters()[0];
    let (wake, mut heard) = mpsc::unbounded_channel();
    let inbox = Token::new(7).expect("a token");
    master.subscribe(&key("a"), inbox, 5, wake, Instant::now() + PATIENCE).await.expect("subscribed");
    let killed: i64 = servers[0].run("CLIENT KILL TYPE pubsub").await;
    assert_eq!(killed, 1);
    // The releases of meanwhile are not told again.
    let told = timeout(PATIENCE, heard.recv()).await.expect("told");
    assert_eq!(told, Some(Heard { master: 5, news: News::Gap }));
    let owner = Owner::new("x", Token::new(8).expect("a token"), 1);
    let released = format!("PUBLISH {} {owner}", key("a").channel(inbox));
    assert_eq!(servers[0].run::<i64>(&released).await, 1, "it is subscribed again");
}

#[tokio::test]
async fn an_answer_is_taken_although_this_process_was_stopped_until_after_the_call_timeout() {
    let servers = Server::start_armed(1).await;
    let client = connected(&servers).await;
    let master = &client.masters()[0];
    let call_timeout = Duration::from_secs(1);
    let key = key("a");
    let call = master.read(&key, Instant::now() + call_timeout);
    // Nothing else of this runtime runs meanwhile.
    let stop = async { std::thread::sleep(call_timeout + Duration::from_millis(100)) };
    let (reading, ()) = tokio::join!(call, stop);
    assert_eq!(reading, Ok(Reading::default()));
}
