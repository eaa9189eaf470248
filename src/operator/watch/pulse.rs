//! Whether each watch is alive: what the client of the API server sees of its requests.
//!
//! A watch that is open and silent, one whose connection is dead, and one that is forbidden look alike to a reader of
//! events. So the transport itself is asked: an answer to a watch, and each part of one, is a beat (the API server sends
//! bookmarks about each minute, also if nothing changes). A watch that is not open is down.
//!
//! The transport also bounds what kube leaves unbounded: the wait for the head of any answer, and for the next part of an
//! answer that is no watch. Without that, a request on a connection that drops all packets is noticed only when the kernel gives the
//! connection up, after a quarter of an hour. (For the parts of a watch, kube's own bound is its timeout and 5 s.)

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::{BoxError, Layer, Service};

/// How long the head of an answer, or the next part of one that is no watch, may take.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a watch may be down before it is reported: it is opened anew every few minutes, and an API server may restart.
const GRACE: Duration = Duration::from_secs(15);

/// The pulses of all watches, by the path of their requests. Cheap to clone; a layer of the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulses(Arc<Mutex<BTreeMap<String, Pulse>>>);

/// The pulse of a watch.
#[derive(Clone, Debug)]
struct Pulse {
    /// When it was last heard of.
    last_beat: Instant,
    /// Since when it is not open; `None` while it is.
    down_since: Option<Instant>,
    /// Why it could not be opened, if it could not.
    why: Option<String>,
    /// How often it was opened.
    opened: u64,
}

/// A service that notes what comes of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Transport<S> {
    inner: S,
    pulses: Pulses,
}

/// The body of an answer.
pub(crate) struct Answer<B> {
    inner: B,
    kind: Kind,
}

/// What kind of answer it is.
enum Kind {
    /// That of the watch of this path, which was opened so often by then.
    Watch(String, u64, Pulses),
    /// Another, whose next part must come before this.
    Bounded(Pin<Box<Sleep>>),
}

/// The API server was silent for too long.
#[derive(Debug, thiserror::Error)]
#[error("no answer of the API server within {SILENCE:?}")]
struct Silent;

// === impl Pulses ===

impl Pulses {
    /// How long the watch of `resource` that was silent for longest (there is one for each watched namespace) has been silent;
    /// `None` if there is none yet.
    pub(crate) fn silence(&self, resource: &str) -> Option<Duration> {
        let all = self.all();
        let of_resource = all.iter().filter(|(path, _)| resource_of(path) == resource);
        of_resource.map(|(_, pulse)| pulse.last_beat.elapsed()).max()
    }

    /// The watches that have been down for too long, and why; `None` if all are well.
    pub(crate) fn trouble(&self) -> Option<String> {
        let down: Vec<_> = self.all().iter().filter_map(|(path, pulse)| pulse.trouble(path)).collect();
        (!down.is_empty()).then(|| down.join("; "))
    }

    /// The watch of this path is heard of.
    #[cfg(test)]
    pub(crate) fn hear(&self, path: &str) {
        self.asked(path);
        self.opened(path);
    }

    /// A watch is asked for.
    fn asked(&self, path: &str) {
        let now = Instant::now();
        let first = || Pulse { last_beat: now, down_since: Some(now), why: None, opened: 0 };
        self.all().entry(path.to_owned()).or_insert_with(first);
    }

    fn with<T: Default>(&self, path: &str, act: impl FnOnce(&mut Pulse) -> T) -> T {
        // Requests of paths that are not watched are nobody's pulse.
        self.all().get_mut(path).map(act).unwrap_or_default()
    }

    /// It is open. Returns how often it was opened by now.
    fn opened(&self, path: &str) -> u64 {
        self.with(path, |pulse| {
            let opened = pulse.opened + 1;
            *pulse = Pulse { last_beat: Instant::now(), down_since: None, why: None, opened };
            opened
        })
    }

    fn beat(&self, path: &str) {
        self.with(path, |pulse| pulse.last_beat = Instant::now());
    }

    /// The one that was opened as the `opened`th has ended. The next may be open already.
    fn closed(&self, path: &str, opened: u64) {
        self.with(path, |pulse| {
            if pulse.opened == opened {
                pulse.down_since = pulse.down_since.or_else(|| Some(Instant::now()));
            }
        });
    }

    fn refused(&self, path: &str, why: String) {
        self.with(path, |pulse| {
            pulse.down_since = pulse.down_since.or_else(|| Some(Instant::now()));
            pulse.why = Some(why);
        });
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Pulse>> {
        // Each change is one assignment after another of values that may be there alone.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request asks for: its path, and the fields by which it selects (those of several watches of one path differ).
fn watched(uri: &Uri) -> String {
    let fields =
        uri.query().into_iter().flat_map(|query| query.split('&')).find(|part| part.starts_with("fieldSelector="));
    fields.map_or_else(|| uri.path().to_owned(), |fields| format!("{}?{fields}", uri.path()))
}

/// The last part of the path of a request for objects.
fn resource_of(path: &str) -> &str {
    let path = path.split('?').next().unwrap_or(path);
    path.rsplit_once('/').map_or(path, |(_, resource)| resource)
}

// === impl Pulse ===

impl Pulse {
    fn trouble(&self, path: &str) -> Option<String> {
        let down_for = self.down_since.map(|since| since.elapsed()).filter(|down_for| *down_for > GRACE)?;
        let why = self.why.as_deref().unwrap_or("it is not open");
        Some(format!("the watch of {path} is down for {}s: {why}", down_for.as_secs()))
    }
}

// === impl Transport ===

impl<S> Layer<S> for Pulses {
    type Service = Transport<S>;

    fn layer(&self, inner: S) -> Transport<S> {
        Transport { inner, pulses: self.clone() }
    }
}

impl<S, R, B> Service<Request<R>> for Transport<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = Response<Answer<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let path = watched(request.uri());
        let is_get = request.method() == Method::GET;
        let is_watch = is_get && request.uri().query().is_some_and(|q| q.split('&').any(|part| part == "watch=true"));
        let pulses = self.pulses.clone();
        if is_watch {
            pulses.asked(&path);
        }
        let answer = timeout(SILENCE, self.inner.call(request));
        Box::pin(async move {
            let answer = match answer.await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(BoxError::from(Silent)),
            };
            let opened = match &answer {
                Ok(answer) if answer.status().is_success() && is_watch => pulses.opened(&path),
                Ok(answer) if !answer.status().is_success() && is_get => {
                    pulses.refused(&path, answer.status().to_string());
                    0
                }
                Err(error) if is_get => {
                    pulses.refused(&path, error.to_string());
                    0
                }
                _ => 0,
            };
            let kind =
                if is_watch { Kind::Watch(path, opened, pulses) } else { Kind::Bounded(Box::pin(sleep(SILENCE))) };
            answer.map(|answer| answer.map(|inner| Answer { inner, kind }))
        })
    }
}

// === impl Answer ===

impl<B> HttpBody for Answer<B>
where
    B: HttpBody + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        match (&mut self.kind, &frame) {
            (Kind::Watch(path, _, pulses), Poll::Ready(Some(Ok(_)))) => pulses.beat(path),
            (Kind::Bounded(end), Poll::Ready(_)) => end.as_mut().reset(Instant::now() + SILENCE),
            (Kind::Bounded(end), Poll::Pending) => {
                if end.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Some(Err(Silent.into())));
                }
            }
            (Kind::Watch(..), _) => {}
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        if let Kind::Watch(path, opened, pulses) = &self.kind {
            pulses.closed(path, *opened);
        }
    }
}

#[cfg(test)]
mod tests;
