//! A stream to a port of a pod, through the API server: pod addresses need not be routable from here.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::Portforwarder;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// A stream to a port of a pod. The connection ends when it is dropped.
pub struct Forward {
    stream: DuplexStream,
    task: Portforwarder,
}

/// Connects to `port` of the pod `name`.
pub async fn connect(pods: &Api<Pod>, name: &str, port: u16) -> Result<Forward, String> {
    let mut task = tokio::time::timeout(Duration::from_secs(5), pods.portforward(name, &[port]))
        .await
        .map_err(|_| format!("no port-forward to {name} in time"))?
        .map_err(|error| format!("port-forward to {name}: {error}"))?;
    let stream = task.take_stream(port).expect("the stream of the only port is taken once");
    Ok(Forward { stream, task })
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AsyncRead for Forward {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Forward {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
