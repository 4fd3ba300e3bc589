//! The data folder that all clusters of a process are copied from: initdb takes longer than all the rest of their start.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crc::{CRC_32_ISCSI, Crc};
use tempfile::TempDir;

use crate::{Binaries, Error, builder, data, watchdog::Watchdog};

/// By the folder of the programs. Never dropped: the watchdog removes what is left when the process ends.
static TEMPLATES: Mutex<BTreeMap<PathBuf, Template>> = Mutex::new(BTreeMap::new());

struct Template {
    folder: TempDir,
    _watchdog: Watchdog,
}

impl Template {
    fn data(&self) -> PathBuf {
        self.folder.path().join("template")
    }

    fn make(binaries: &Binaries) -> Result<Self, Error> {
        let folder = builder::folder(&binaries.account)?;
        let watchdog = Watchdog::over(folder.path())?;
        let template = Self { folder, _watchdog: watchdog };
        data::init(binaries, &template.data())?;
        Ok(template)
    }
}

/// Makes a new database cluster in `data`, with a system identifier of its own.
pub(crate) fn init(binaries: &Binaries, data: &Path) -> Result<(), Error> {
    let from = {
        let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
        match templates.get(binaries.folder()) {
            Some(template) => template.data(),
            None => {
                let template = Template::make(binaries)?;
                let from = template.data();
                templates.insert(binaries.folder().to_owned(), template);
                from
            }
        }
    };
    data::copy(&binaries.account, &from, data)?;
    rename(data)
}

/// What lies behind the control file's fields up to its checksum, at the most (`PG_CONTROL_MAX_SAFE_SIZE`).
const CONTROL: usize = 512;
/// Where a segment of the write-ahead log says whose it is (`XLogLongPageHeaderData`).
const OWNER: usize = 24;

/// Gives a data folder that no server ran on another system identifier.
fn rename(data: &Path) -> Result<(), Error> {
    let control = data.join("global/pg_control");
    let segment = data.join("pg_wal/000000010000000000000001");
    let mut fields = head::<CONTROL>(&control)?;
    let owner = head::<{ OWNER + 8 }>(&segment)?;
    let crc = Crc::<u32>::new(&CRC_32_ISCSI);
    let is_checksum = |at: &usize| crc.checksum(&fields[..*at]).to_ne_bytes() == fields[*at..*at + 4];
    let checksum = (8..CONTROL - 4).step_by(4).find(is_checksum);
    let Some(checksum) = checksum.filter(|_| owner[OWNER..] == fields[..8]) else {
        return Err(Error::state("this version of PostgreSQL keeps its system identifier elsewhere"));
    };
    // The server prints it as a signed number.
    let system = (RandomState::new().build_hasher().finish() >> 1).to_ne_bytes();
    fields[..8].copy_from_slice(&system);
    let sum = crc.checksum(&fields[..checksum]).to_ne_bytes();
    fields[checksum..checksum + 4].copy_from_slice(&sum);
    write(&control, &fields, 0)?;
    write(&segment, &system, OWNER as u64)
}

fn head<const N: usize>(path: &Path) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0));
    read.map_err(Error::io(format!("cannot read {}", path.display())))?;
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8], at: u64) -> Result<(), Error> {
    let written = fs::OpenOptions::new().write(true).open(path).and_then(|file| file.write_all_at(bytes, at));
    written.map_err(Error::io(format!("cannot write {}", path.display())))
}
