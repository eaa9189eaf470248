//! `redlock crds`: writes the `CustomResourceDefinition`s.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::api::crds;

/// Why the definitions could not be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// They cannot be written as YAML.
    #[error("failed to write a CustomResourceDefinition as YAML: {0}")]
    Yaml(#[from] serde_yaml::Error),
    /// A file cannot be written.
    #[error("failed to write {}: {error}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Why it cannot be written.
        error: io::Error,
    },
    /// Standard output cannot be written to.
    #[error("failed to write to standard output: {0}")]
    Stdout(#[from] io::Error),
}

/// Writes the definitions to files in `out`, or as chart templates to files in `chart`, or to standard output.
pub(super) fn write(out: Option<&Path>, chart: Option<&Path>) -> Result<(), Error> {
    match (out, chart) {
        (Some(dir), _) => write_files(dir, crds::to_yaml),
        (None, Some(dir)) => write_files(dir, crds::to_chart_template),
        (None, None) => {
            let documents: Result<Vec<_>, _> = crds::all().iter().map(|(_, crd)| crds::to_yaml(crd)).collect();
            match io::stdout().write_all(documents?.join("---\n").as_bytes()) {
                // The reader has closed its end: `redlock crds | head`.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                result => Ok(result?),
            }
        }
    }
}

fn write_files<F>(dir: &Path, render: F) -> Result<(), Error>
where
    F: Fn(&crds::Definition) -> Result<String, serde_yaml::Error>,
{
    let failed = |path: &Path, error| Error::File { path: path.to_owned(), error };
    fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    for (file, crd) in crds::all() {
        let path = dir.join(file);
        fs::write(&path, render(&crd)?).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
