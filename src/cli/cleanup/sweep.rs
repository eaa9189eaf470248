//! Takes the finalizer off all objects of a kind, page by page.
//!
//! Only metadata is read, so that an object which this version does not understand is freed like the others.

use std::io;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, ObjectMeta};
use kube::core::PartialObjectMeta;

use super::Error;
use crate::api::{DistributedLock, RedisLockCluster};
use crate::contract::names;
use crate::operator::api_server::{self, ApiServer, Category, Object};
use crate::operator::{error_chain, finalizer};

/// Objects in one answer of the API server.
const PAGE: u32 = 500;
/// Objects that are changed at a time.
const AT_A_TIME: usize = 16;
/// How often an object is tried that others change meanwhile.
const ATTEMPTS: u32 = 5;
/// How often a list is begun again of which the API server has forgotten the state.
const LISTS: u32 = 5;

/// A kind whose objects the operator keeps by a finalizer.
pub(super) trait Finalized: Object {
    /// The finalizer.
    const FINALIZER: &'static str;
    /// Labels that all such objects have.
    const LABELS: Option<&'static str>;
}

impl Finalized for Pod {
    const FINALIZER: &'static str = names::MASTER_FINALIZER;
    const LABELS: Option<&'static str> = Some(names::MASTER_SELECTOR);
}

impl Finalized for RedisLockCluster {
    const FINALIZER: &'static str = names::CLUSTER_FINALIZER;
    const LABELS: Option<&'static str> = None;
}

impl Finalized for DistributedLock {
    const FINALIZER: &'static str = names::LOCK_FINALIZER;
    const LABELS: Option<&'static str> = None;
}

/// How many objects of a kind had the finalizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    /// It is off, or would be.
    pub(super) off: usize,
    /// It could not be taken off.
    pub(super) kept: usize,
}

/// Takes the finalizer off all objects of a kind, or with `dry_run` none, and prints a line an object.
pub(super) async fn sweep<K: Finalized>(
    api: &ApiServer,
    dry_run: bool,
    out: &mut (impl io::Write + Send),
) -> Result<Swept, Error> {
    let first = ListParams { label_selector: K::LABELS.map(str::to_owned), ..ListParams::default().limit(PAGE) };
    let (mut swept, mut page, mut lists) = (Swept::default(), first.clone(), 1);
    loop {
        let found = match api.list_metadata::<K>(&page).await {
            Ok(found) => found,
            // The kind is not defined, so it has no objects.
            Err(error) if error.category() == Category::NotFound => return Ok(swept),
            // What was freed already is not found again.
            Err(error) if has_expired(&error) && lists < LISTS && !dry_run => {
                (page, lists) = (first.clone(), lists + 1);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let next = found.metadata.continue_.filter(|next| !next.is_empty());
        let ours = found.items.into_iter().filter(|object| finalizer::is_on(&object.metadata, K::FINALIZER));
        let mut freed = futures::stream::iter(ours)
            .map(|object| async move {
                let freed = if dry_run { Ok(()) } else { free::<K>(api, object.metadata.clone()).await };
                (object.metadata, freed)
            })
            .buffer_unordered(AT_A_TIME);
        while let Some((object, freed)) = freed.next().await {
            let what = if dry_run { "finalizer would be taken off" } else { "finalizer is off" };
            match freed {
                Ok(()) => {
                    swept.off += 1;
                    tell(out, &format!("{}: {what}: {}", named::<K>(&object), K::FINALIZER))?;
                }
                Err(error @ api_server::Error::NotLeading) => return Err(error.into()),
                Err(error) => {
                    swept.kept += 1;
                    tell(out, &format!("{}: {}", named::<K>(&object), error_chain(&error)))?;
                }
            }
        }
        let Some(next) = next else { return Ok(swept) };
        page.continue_token = Some(next);
    }
}

/// Takes the finalizer off an object. One that is gone has none.
async fn free<K: Finalized>(api: &ApiServer, mut object: ObjectMeta) -> Result<(), api_server::Error> {
    let (namespace, name) = (object.namespace.clone().unwrap_or_default(), object.name.clone().unwrap_or_default());
    for _ in 1..ATTEMPTS {
        match finalizer::remove::<K>(api, &object, K::FINALIZER).await {
            // It was changed since it was listed, or is another of its name.
            Err(error) if matches!(error.category(), Category::Invalid | Category::Conflict) => {}
            result => return result,
        }
        match api.get_metadata::<K>(&namespace, &name).await? {
            Some(PartialObjectMeta { metadata, .. }) => object = metadata,
            None => return Ok(()),
        }
    }
    finalizer::remove::<K>(api, &object, K::FINALIZER).await
}

/// Whether the API server has forgotten the state of which it has listed the first pages.
fn has_expired(error: &api_server::Error) -> bool {
    let api_server::Error::Request { source, .. } = error else { return false };
    matches!(&**source, kube::Error::Api(status) if status.code == 410)
}

fn named<K: Finalized>(object: &ObjectMeta) -> String {
    let [namespace, name] = [&object.namespace, &object.name].map(|part| part.as_deref().unwrap_or_default());
    format!("{} {namespace}/{name}", K::kind(&()).to_lowercase())
}

/// Prints a line. That nobody reads it any more is no reason to stop.
pub(super) fn tell(out: &mut impl io::Write, line: &str) -> Result<(), Error> {
    match writeln!(out, "{line}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
