//! One stream of events of several watches of a kind, one a namespace, as if it came of one watch.
//!
//! A store is filled by a list of all objects: whatever a list does not name is gone. So the list of one namespace must not come
//! through as it is. The first lists are held back until each namespace has one, and come as one list. A later list of one
//! namespace comes together with what the store shows of the others.

use std::sync::Arc;

use kube::ResourceExt;
use kube::runtime::watcher::Event;

/// What is held back. No IO.
#[derive(Debug)]
pub(super) struct Merge<K> {
    sources: Vec<Source<K>>,
    /// Changes that came after the first list of their namespace and before that of another.
    early: Vec<Event<K>>,
    /// Whether all have been listed.
    has_begun: bool,
}

/// The watch of one namespace.
#[derive(Debug)]
struct Source<K> {
    namespace: String,
    /// What it has listed and nobody was told of yet.
    list: Vec<K>,
    is_listed: bool,
}

// === impl Merge ===

impl<K: ResourceExt + Clone> Merge<K> {
    /// Nothing was listed yet of these namespaces.
    pub(super) fn new(namespaces: impl IntoIterator<Item = String>) -> Self {
        let source = |namespace| Source { namespace, list: Vec::new(), is_listed: false };
        Self { sources: namespaces.into_iter().map(source).collect(), early: Vec::new(), has_begun: false }
    }

    /// What comes of an event of the watch at `index`, where the store shows `known`.
    pub(super) fn take(&mut self, index: usize, event: Event<K>, known: impl FnOnce() -> Vec<Arc<K>>) -> Vec<Event<K>> {
        let Some(source) = self.sources.get_mut(index) else { return Vec::new() };
        match event {
            Event::Init => {
                source.list.clear();
                let namespace = source.namespace.clone();
                self.early.retain(|change| changed(change).is_none_or(|object| namespace_of(object) != namespace));
            }
            Event::InitApply(object) => source.list.push(object),
            Event::InitDone => {
                source.is_listed = true;
                return if self.has_begun { self.list_again(index, &known()) } else { self.begin() };
            }
            change if self.has_begun => return vec![change],
            change => self.early.push(change),
        }
        Vec::new()
    }

    /// The first list of all, when each has one, and what has changed since.
    fn begin(&mut self) -> Vec<Event<K>> {
        if !self.sources.iter().all(|source| source.is_listed) {
            return Vec::new();
        }
        self.has_begun = true;
        let objects = self.sources.iter_mut().flat_map(|source| std::mem::take(&mut source.list));
        let mut events = listed(objects.collect());
        events.append(&mut self.early);
        events
    }

    /// A later list of one namespace, with all that is known of the others.
    fn list_again(&mut self, index: usize, known: &[Arc<K>]) -> Vec<Event<K>> {
        let Some(source) = self.sources.get_mut(index) else { return Vec::new() };
        let mut objects = std::mem::take(&mut source.list);
        let others = known.iter().filter(|object| namespace_of(object.as_ref()) != source.namespace);
        objects.extend(others.map(|object| K::clone(object)));
        listed(objects)
    }
}

fn listed<K>(objects: Vec<K>) -> Vec<Event<K>> {
    let applied = objects.into_iter().map(Event::InitApply);
    std::iter::once(Event::Init).chain(applied).chain(std::iter::once(Event::InitDone)).collect()
}

/// What a change is about.
fn changed<K>(event: &Event<K>) -> Option<&K> {
    match event {
        Event::Apply(object) | Event::Delete(object) => Some(object),
        _ => None,
    }
}

/// The namespace of an object; of a namespace, itself.
fn namespace_of<K: ResourceExt>(object: &K) -> String {
    object.namespace().unwrap_or_else(|| object.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        // Named by its namespace and a number.
        object.metadata.namespace = name.split('-').next().map(str::to_owned);
        object
    }

    fn take(merge: &mut Merge<ConfigMap>, index: usize, events: &[Event<ConfigMap>], known: &[&str]) -> Vec<String> {
        let known = || known.iter().map(|name| Arc::new(object(name))).collect();
        let all = events.iter().cloned().flat_map(|event| merge.take(index, event, known));
        let name = |object: ConfigMap| object.metadata.name.unwrap_or_default();
        let told = all.map(|event| match event {
            Event::Init => "init".to_owned(),
            Event::InitApply(object) => format!("listed {}", name(object)),
            Event::InitDone => "done".to_owned(),
            Event::Apply(object) => format!("applied {}", name(object)),
            Event::Delete(object) => format!("deleted {}", name(object)),
        });
        told.collect()
    }

    #[test]
    fn the_first_lists_come_as_one_and_later_ones_hide_nothing_of_other_namespaces() {
        let mut merge = Merge::new(["a".to_owned(), "b".to_owned()]);
        let list = |names: &[&str]| listed(names.iter().map(|name| object(name)).collect());
        assert_eq!(take(&mut merge, 0, &list(&["a-1", "a-2"]), &[]), [""; 0], "b is not listed yet");
        let changes = [Event::Apply(object("a-3")), Event::Delete(object("a-1"))];
        assert_eq!(take(&mut merge, 0, &changes, &[]), [""; 0]);
        let first = ["init", "listed a-1", "listed a-2", "listed b-1", "done", "applied a-3", "deleted a-1"];
        assert_eq!(take(&mut merge, 1, &list(&["b-1"]), &[]), first);
        assert_eq!(take(&mut merge, 1, &[Event::Apply(object("b-2"))], &[]), ["applied b-2"]);

        let known = ["a-2", "a-3", "b-1", "b-2"];
        let again = ["init", "listed a-4", "listed b-1", "listed b-2", "done"];
        assert_eq!(take(&mut merge, 0, &list(&["a-4"]), &known), again, "a-2 and a-3 are gone");
    }

    #[test]
    fn a_first_list_that_is_begun_anew_counts_once() {
        let mut merge = Merge::new(["a".to_owned(), "b".to_owned()]);
        let list = |names: &[&str]| listed(names.iter().map(|name| object(name)).collect());
        take(&mut merge, 0, &list(&["a-1"]), &[]);
        take(&mut merge, 0, &[Event::Apply(object("a-3"))], &[]);
        take(&mut merge, 0, &list(&["a-2"]), &[]);
        assert_eq!(take(&mut merge, 1, &list(&[]), &[]), ["init", "listed a-2", "done"]);
    }
}
