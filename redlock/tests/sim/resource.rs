//! The resource that a lock guards. It refuses tokens smaller than the largest that it has seen.

use redlock_engine::Owner;

/// A guarded resource.
#[derive(Default)]
pub struct Resource {
    largest: u64,
    /// Owners whose writes were accepted, the latest last, each with its position in the order of grants.
    writers: Vec<(String, u64)>,
}

impl Resource {
    /// A write arrives. Returns whether it is accepted. The error is a violation: a writer that writes again after another,
    /// or, where grants are `in_order`, a writer whose grant is older than the last writer's.
    pub fn write(&mut self, owner: &Owner, elected: u64, in_order: bool) -> Result<bool, String> {
        let (token, owner) = (owner.token().get(), owner.to_string());
        if token < self.largest {
            return Ok(false);
        }
        self.largest = token;
        let violation = match self.writers.last() {
            Some((last, _)) if *last == owner => return Ok(true),
            Some((last, later)) if in_order && *later > elected => {
                format!("{owner} wrote after {last}, a later holder")
            }
            Some((last, _)) if self.writers.iter().any(|(writer, _)| *writer == owner) => {
                format!("{owner} wrote before and after {last}")
            }
            _ => {
                self.writers.push((owner, elected));
                return Ok(true);
            }
        };
        Err(violation)
    }
}
