//! What a data directory of a whole cluster holds, and what may change between starts.

use std::io::Write as _;
use std::path::Path;

use pando_osd::engine::EngineKind;
use pando_proto::{Error, Reason};
use pando_rpc::directory::create_data_directory;
use serde::{Deserialize, Serialize};

use crate::Options;
use crate::lock::{self, Lock};

const FILE: &str = "cluster.toml";
/// Version of [`Layout`] on disk. Its keys are part of it: a program that does not know one of them must not start.
///
/// 2 added `cluster_id`.
const FORMAT: u32 = 2;

/// Written when the cluster is made, and once more when its mons have named it; kept in `cluster.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layout {
    pub(crate) format: u32,
    pub(crate) mons: u32,
    pub(crate) osds: u32,
    pub(crate) replicas: u32,
    pub(crate) engine: String,
    /// Of the mons, in order: their addresses are in the map, so they stay.
    pub(crate) mon_ports: Vec<u16>,
    /// As `pando status` shows it; `None` until the mons have made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<String>,
}

impl Layout {
    /// Opens and locks the layout of `dir`, or makes one from `options` in an empty or missing directory.
    ///
    /// Errors: a directory that another process uses or that holds something else, a newer format, options that
    /// contradict what is there.
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<(Self, Lock), Error> {
        let file = dir.join(FILE);
        if Self::read(&file)?.is_none() {
            return Self::create(dir, &file, options);
        }
        let lock = Lock::take(dir)?;
        Self::open_locked(dir, options).map(|layout| (layout, lock))
    }

    fn open_locked(dir: &Path, options: &Options) -> Result<Self, Error> {
        let file = dir.join(FILE);
        let gone = || unusable(&file, &std::io::ErrorKind::NotFound.into());
        let mut layout = Self::read(&file)?.ok_or_else(gone)?;
        layout.check(dir, options)?;
        layout.move_mon(dir, &file, options)?;
        layout.check_mon_dirs(dir)?;
        Ok(layout)
    }

    fn read(file: &Path) -> Result<Option<Self>, Error> {
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(&text, file).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                let dir = file.parent().unwrap_or(file).display();
                let text = format!("{dir} is not a directory: choose another path with --data");
                Err(Error::new(Reason::InvalidRequest, text))
            }
            Err(error) => Err(unusable(file, &error)),
        }
    }

    /// The id of the cluster, once it is known.
    ///
    /// Errors: one that is none.
    pub(crate) fn id(&self) -> Result<Option<[u8; 16]>, Error> {
        let parse = |text: &String| {
            let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
            let refused = || Error::new(Reason::InvalidRequest, format!("`{text}` in {FILE} is no cluster id"));
            number.map(u128::to_be_bytes).ok_or_else(refused)
        };
        self.cluster_id.as_ref().map(parse).transpose()
    }

    /// Keeps the id that the mons gave the cluster, durably.
    ///
    /// Errors: another one is kept already.
    pub(crate) fn learn_id(&mut self, dir: &Path, id: [u8; 16]) -> Result<(), Error> {
        match self.id()? {
            Some(known) if known == id => Ok(()),
            Some(known) => {
                let (known, id) = (hex(&known), hex(&id));
                let text = format!(
                    "{} is the directory of cluster {known}, but the mons' directories in it belong to cluster {id}: put \
                     back those of the same cluster",
                    dir.display()
                );
                Err(Error::new(Reason::WrongCluster, text))
            }
            None => {
                self.cluster_id = Some(hex(&id));
                self.write(dir, &dir.join(FILE))
            }
        }
    }

    /// A mon whose directory is gone would begin anew, as one that never heard of the cluster's data.
    fn check_mon_dirs(&self, dir: &Path) -> Result<(), Error> {
        let Some(id) = &self.cluster_id else { return Ok(()) };
        let mut mons = (0..self.mons).map(|mon| dir.join(format!("mon.{mon}")));
        let Some(lost) = mons.find(|mon| std::fs::read_dir(mon).map_or(true, |mut entries| entries.next().is_none()))
        else {
            return Ok(());
        };
        let text = format!(
            "{} is missing or empty, but cluster {id} in {} was made with it: put that directory back, for without it \
             the mon does not know what it has confirmed; a new cluster needs another --data",
            lost.display(),
            dir.display()
        );
        Err(Error::new(Reason::Storage, text))
    }

    /// A single mon may move to another port: it tells the map itself.
    fn move_mon(&mut self, dir: &Path, file: &Path, options: &Options) -> Result<(), Error> {
        if options.mon_port == 0 || self.mon_ports.first() == Some(&options.mon_port) {
            return Ok(());
        }
        if self.mons > 1 {
            let text = format!(
                "the mons of the cluster in {} have the ports {:?}: use --mon-port {}",
                dir.display(),
                self.mon_ports,
                self.mon_ports.first().copied().unwrap_or_default()
            );
            return Err(Error::new(Reason::InvalidRequest, text));
        }
        check_free(&[options.mon_port])?;
        self.mon_ports = vec![options.mon_port];
        self.write(dir, file)
    }

    fn write(&self, dir: &Path, file: &Path) -> Result<(), Error> {
        let text = toml::to_string(&Self { format: FORMAT, ..self.clone() })
            .map_err(|error| Error::new(Reason::Internal, error.to_string()))?;
        write_durably(dir, file, &text).map_err(|error| unusable(file, &error))
    }

    fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let broken = |error: toml::de::Error| {
            let text = format!("{} cannot be read ({}): it is not written by hand; restore it", file.display(), error);
            Error::new(Reason::InvalidRequest, text)
        };
        let version: Version = toml::from_str(text).map_err(broken)?;
        if version.format > FORMAT {
            let text = format!(
                "{} has format {}, this program knows {FORMAT}: use a newer pando",
                file.display(),
                version.format
            );
            return Err(Error::new(Reason::NewerFormat, text));
        }
        toml::from_str(text).map_err(broken)
    }

    fn create(dir: &Path, file: &Path, options: &Options) -> Result<(Self, Lock), Error> {
        if !is_free(dir).map_err(|error| unusable(dir, &error))? {
            let text = format!(
                "{} is not empty and holds no Pando cluster: choose another directory with --data",
                dir.display()
            );
            return Err(Error::new(Reason::InvalidRequest, text));
        }
        let layout = Self {
            format: FORMAT,
            mons: options.mons,
            osds: options.osds,
            replicas: options.replicas,
            engine: options.engine.to_string(),
            mon_ports: mon_ports(options)?,
            cluster_id: None,
        };
        // Before anything is made: a start that cannot work leaves nothing behind.
        check_free(&layout.mon_ports)?;
        create_data_directory(dir).map_err(|error| unusable(dir, &error))?;
        let lock = Lock::take(dir)?;
        // Another process may just have made it, and have ended already.
        if file.exists() {
            return Self::open_locked(dir, options).map(|layout| (layout, lock));
        }
        layout.write(dir, file)?;
        Ok((layout, lock))
    }

    fn check(&self, dir: &Path, options: &Options) -> Result<(), Error> {
        let differ = |what: &str, here: String, asked: String| {
            let text = format!(
                "the cluster in {} has {here} {what}, {asked} were asked for: use --{what} {here}, or another --data",
                dir.display()
            );
            Err(Error::new(Reason::InvalidRequest, text))
        };
        if self.mons != options.mons {
            return differ("mons", self.mons.to_string(), options.mons.to_string());
        }
        if self.osds > options.osds {
            return differ("osds", self.osds.to_string(), options.osds.to_string());
        }
        if self.replicas != options.replicas {
            return differ("replicas", self.replicas.to_string(), options.replicas.to_string());
        }
        if self.engine != options.engine.to_string() {
            return differ("engine", self.engine.clone(), options.engine.to_string());
        }
        // Its mons would wait for ever for the copies that its OSDs had.
        if options.engine == EngineKind::Memory {
            let text = format!(
                "the cluster in {} was kept in memory, so that its files ended with its process: remove that directory, \
                 or choose another one with --data",
                dir.display()
            );
            return Err(Error::new(Reason::InvalidRequest, text));
        }
        Ok(())
    }
}

/// Whether a cluster can be made here: nothing is there but, at most, the lock of a start that came no further.
fn is_free(dir: &Path) -> std::io::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        entries => entries?,
    };
    for entry in entries {
        if entry?.file_name() != lock::FILE {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As `pando status` shows ids.
fn hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

/// Ports for the mons: consecutive from `mon_port`, or free ones.
pub(crate) fn mon_ports(options: &Options) -> Result<Vec<u16>, Error> {
    if options.mon_port != 0 {
        let last = u32::from(options.mon_port) + options.mons - 1;
        if last > u32::from(u16::MAX) {
            let text = format!("ports {} to {last} for {} mons: they end at 65535", options.mon_port, options.mons);
            return Err(Error::new(Reason::InvalidRequest, text));
        }
        return Ok((options.mon_port..).take(options.mons as usize).collect());
    }
    // Held together, so that they differ; another process may still take one before the mon binds it, and then that
    // mon says so.
    let held: Result<Vec<_>, _> =
        (0..options.mons).map(|_| std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))).collect();
    let ports: Result<Vec<_>, _> = held.and_then(|held| held.iter().map(|socket| socket.local_addr()).collect());
    let ports = ports.map_err(|error| Error::new(Reason::Unavailable, format!("no free port: {error}")))?;
    Ok(ports.into_iter().map(|address| address.port()).collect())
}

/// Errors: the first port that another process listens on.
fn check_free(ports: &[u16]) -> Result<(), Error> {
    for port in ports {
        std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, *port)).map_err(|error| {
            let text = format!(
                "127.0.0.1:{port} is in use by another process, or not yours to use ({error}): stop that process, or \
                 choose another port with --mon-port (0 takes a free one)"
            );
            Error::new(Reason::Unavailable, text)
        })?;
    }
    Ok(())
}

fn write_durably(dir: &Path, file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension("toml.new");
    let mut out = std::fs::File::create(&new)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&new, file)?;
    std::fs::File::open(dir)?.sync_all()
}

pub(crate) fn unusable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Reason::Storage, format!("{}: {error}: check the path and its permissions", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { mon_port: 0, ..Options::default() }
    }

    #[test]
    fn the_same_options_open_it_again_and_others_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let first = Layout::open(dir.path(), &options()).unwrap().0;
        assert_eq!(Layout::open(dir.path(), &options()).unwrap().0, first);
        assert!(Layout::open(dir.path(), &Options { osds: 4, ..options() }).is_ok(), "OSDs may be added");
        for other in [
            Options { osds: 2, ..options() },
            Options { replicas: 1, ..options() },
            Options { mons: 3, ..options() },
            Options { engine: EngineKind::File, ..options() },
        ] {
            let error = Layout::open(dir.path(), &other).unwrap_err();
            assert_eq!(error.reason, Reason::InvalidRequest);
            assert!(error.message.contains("use --"), "{error}");
        }
    }

    #[test]
    fn a_directory_has_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (_, lock) = Layout::open(dir.path(), &options()).unwrap();
        let error = Layout::open(dir.path(), &options()).unwrap_err();
        assert_eq!(error.reason, Reason::InUse);
        let told = format!("another `pando up` uses this directory (pid {})", std::process::id());
        assert!(error.message.contains(&told), "{error}");
        drop(lock);
        Layout::open(dir.path(), &options()).unwrap();
    }

    #[test]
    fn a_start_that_cannot_work_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mon_port = held.local_addr().unwrap().port();
        let error = Layout::open(&data, &Options { mon_port, ..options() }).unwrap_err();
        assert!(error.message.contains("in use"), "{error}");
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn the_id_is_kept_and_the_directories_of_its_mons_have_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let (mut layout, lock) = Layout::open(dir.path(), &options()).unwrap();
        layout.learn_id(dir.path(), [0xab; 16]).unwrap();
        layout.learn_id(dir.path(), [0xab; 16]).unwrap();
        let error = layout.learn_id(dir.path(), [0xcd; 16]).unwrap_err();
        assert_eq!(error.reason, Reason::WrongCluster);
        assert!(error.message.contains(&"ab".repeat(16)) && error.message.contains(&"cd".repeat(16)), "{error}");
        drop(lock);
        let error = Layout::open(dir.path(), &options()).unwrap_err();
        assert_eq!(error.reason, Reason::Storage);
        assert!(error.message.contains("mon.0 is missing or empty"), "{error}");
        std::fs::create_dir(dir.path().join("mon.0")).unwrap();
        assert!(Layout::open(dir.path(), &options()).is_err(), "an empty one is as bad");
        std::fs::write(dir.path().join("mon.0/something"), "").unwrap();
        assert_eq!(Layout::open(dir.path(), &options()).unwrap().0.id().unwrap(), Some([0xab; 16]));
    }

    /// Written by the first version.
    #[test]
    fn a_layout_without_an_id_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let old = "format = 1\nmons = 1\nosds = 3\nreplicas = 3\nengine = \"fjall\"\nmon_ports = [7100]\n";
        std::fs::write(dir.path().join(FILE), old).unwrap();
        let (mut layout, _lock) = Layout::open(dir.path(), &options()).unwrap();
        assert_eq!((layout.mon_ports.clone(), layout.id().unwrap()), (vec![7100], None));
        layout.learn_id(dir.path(), [1; 16]).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(text.contains("format = 2") && text.contains(&"01".repeat(16)), "{text}");
    }

    #[test]
    fn what_was_in_memory_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        Layout::open(dir.path(), &options().memory()).unwrap();
        let error = Layout::open(dir.path(), &options().memory()).unwrap_err();
        assert!(error.message.contains("kept in memory"), "{error}");
    }

    #[test]
    fn a_foreign_directory_and_a_newer_format_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("precious"), "data").unwrap();
        assert!(Layout::open(dir.path(), &options()).unwrap_err().message.contains("not empty"));
        std::fs::write(dir.path().join(FILE), "format = 9\nnew = true").unwrap();
        assert_eq!(Layout::open(dir.path(), &options()).unwrap_err().reason, Reason::NewerFormat);
        std::fs::write(dir.path().join(FILE), "\0").unwrap();
        assert_eq!(Layout::open(dir.path(), &options()).unwrap_err().reason, Reason::InvalidRequest);
        assert!(dir.path().join("precious").exists());
    }
}
