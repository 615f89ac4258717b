//! A volume of a ConfigMap, as the kubelet writes it (pkg/volume/util/atomic_writer.go of Kubernetes): files
//! are symlinks through `..data`, which is replaced as a whole.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub(crate) struct Volume {
    path: PathBuf,
    /// How often it was written.
    times: AtomicU32,
}

impl Volume {
    /// A new one with these files.
    pub(crate) fn new(path: &Path, files: &[(&str, &str)]) -> Volume {
        fs::create_dir(path).expect("a folder");
        let volume = Volume { path: path.to_owned(), times: AtomicU32::new(0) };
        volume.write(files);
        volume
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts these files in the place of those that are there.
    pub(crate) fn write(&self, files: &[(&str, &str)]) {
        let data = self.path.join("..data");
        let before = fs::read_link(&data).ok();
        let times = self.times.fetch_add(1, Relaxed);
        let now = format!("..2026_11_27_01_02_03.{times}");
        fs::create_dir(self.path.join(&now)).expect("a folder");
        for (name, text) in files {
            fs::write(self.path.join(&now).join(name), text).expect("a file");
        }
        symlink(&now, self.path.join("..data_tmp")).expect("a link");
        fs::rename(self.path.join("..data_tmp"), &data).expect("it is replaced");
        for (name, _) in files {
            let link = self.path.join(name);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(name), link).expect("a link");
            }
        }
        if let Some(before) = before {
            fs::remove_dir_all(self.path.join(before)).expect("a folder");
        }
    }
}
