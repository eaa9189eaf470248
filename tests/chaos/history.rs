//! What observers have seen: spans of time in which somebody said the same of a lock, by one clock for all processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use redlock_engine::Owner;
use redlock_test_servers::stamp::Stamp;

/// Who says that a lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A sidecar tells its application, by the uid of its pod.
    Sidecar(String),
    /// A contender that uses another library, by its number, believes it.
    Library(u32),
    /// A master has the key, by the process of its server: two processes of one master are two servers.
    Server(i32),
}

/// A grant: its fencing token, or the value of its key where it has none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Grant {
    Token(u64),
    Value(String),
}

/// A source said at least once that a lock is held by a grant, and nothing else from its first word on to its last.
///
/// Each word was true at some time between its request and its answer. A grant is never made anew, so the lock was held by it from
/// the first answer to the last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: Source,
    pub(crate) lock: usize,
    pub(crate) grant: Grant,
    pub(crate) first_sent: Stamp,
    pub(crate) first_received: Stamp,
    pub(crate) last_sent: Stamp,
    pub(crate) last_received: Stamp,
}

/// All spans, which many threads add to.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Spans>>);

#[derive(Debug, Default)]
struct Spans {
    ended: Vec<Span>,
    open: HashMap<(Source, usize), Span>,
}

// === impl Grant ===

impl Grant {
    /// The grant of a key's value.
    pub(crate) fn of(value: &str) -> Self {
        match value.parse::<Owner>() {
            Ok(owner) => Self::Token(owner.token().get()),
            Err(_) => Self::Value(value.to_owned()),
        }
    }

    /// The fencing token.
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Token(token) => Some(*token),
            Self::Value(_) => None,
        }
    }
}

// === impl History ===

impl History {
    /// A source has answered a request about a lock: held by a grant, or not held as far as it knows.
    pub(crate) fn said(&self, source: &Source, lock: usize, grant: Option<Grant>, sent: Stamp, received: Stamp) {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (source.clone(), lock);
        if let Some(open) = spans.open.get_mut(&place) {
            if grant.as_ref() == Some(&open.grant) {
                (open.last_sent, open.last_received) = (sent, received);
                return;
            }
            let ended = spans.open.remove(&place);
            spans.ended.extend(ended);
        }
        if let Some(grant) = grant {
            let (first_sent, first_received, last_sent, last_received) = (sent, received, sent, received);
            let source = source.clone();
            spans
                .open
                .insert(place, Span { source, lock, grant, first_sent, first_received, last_sent, last_received });
        }
    }

    /// A source held a lock from one moment to another, by its own word.
    pub(crate) fn held(&self, source: &Source, lock: usize, grant: Grant, from: Stamp, to: Stamp) {
        let span = Span {
            source: source.clone(),
            lock,
            grant,
            first_sent: from,
            first_received: from,
            last_sent: to,
            last_received: to,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).ended.push(span);
    }

    /// A source says nothing any more: its process has ended.
    pub(crate) fn is_silent(&self, source: &Source) {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let silent: Vec<_> = spans.open.extract_if(|(of, _), _| of == source).map(|(_, span)| span).collect();
        spans.ended.extend(silent);
    }

    /// The uid of the pod whose sidecar says that it leads, if one does.
    pub(crate) fn leader(&self, lock: usize) -> Option<String> {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spans.open.keys().find_map(|(source, of)| match source {
            Source::Sidecar(pod) if *of == lock => Some(pod.clone()),
            _ => None,
        })
    }

    /// All spans so far, by when they were first known.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = spans.ended.iter().chain(spans.open.values()).cloned().collect();
        all.sort_by_key(|span| span.first_received);
        all
    }
}
