//! What a data directory of a whole cluster holds, and what may change between starts.

use std::io::Write as _;
use std::path::Path;

use pando_proto::{Error, Reason};
use serde::{Deserialize, Serialize};

use crate::Options;

const FILE: &str = "cluster.toml";
/// Version of [`Layout`] on disk.
const FORMAT: u32 = 1;

/// Written once when the cluster is made; kept in `cluster.toml`.
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
}

impl Layout {
    /// Opens the layout of `dir`, or makes one from `options` in an empty directory.
    ///
    /// Errors: a directory that holds something else, a newer format, options that contradict what is there.
    pub(crate) fn open(dir: &Path, options: &Options) -> Result<Self, Error> {
        std::fs::create_dir_all(dir).map_err(|error| unusable(dir, &error))?;
        let file = dir.join(FILE);
        let mut layout = match std::fs::read_to_string(&file) {
            Ok(text) => Self::parse(&text, &file)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::create(dir, &file, options)?,
            Err(error) => return Err(unusable(&file, &error)),
        };
        layout.check(dir, options)?;
        layout.move_mon(dir, &file, options)?;
        Ok(layout)
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
        let text = toml::to_string(self).map_err(|error| Error::new(Reason::Internal, error.to_string()))?;
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

    fn create(dir: &Path, file: &Path, options: &Options) -> Result<Self, Error> {
        let mut entries = std::fs::read_dir(dir).map_err(|error| unusable(dir, &error))?;
        if entries.next().is_some() {
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
        };
        // Before anything is made: a start that cannot work leaves nothing behind.
        check_free(&layout.mon_ports)?;
        layout.write(dir, file)?;
        Ok(layout)
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
        Ok(())
    }
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

fn unusable(path: &Path, error: &std::io::Error) -> Error {
    Error::new(Reason::Storage, format!("{}: {error}: check the path and its permissions", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_osd::engine::EngineKind;

    fn options() -> Options {
        Options { mon_port: 0, ..Options::default() }
    }

    #[test]
    fn the_same_options_open_it_again_and_others_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let first = Layout::open(dir.path(), &options()).unwrap();
        assert_eq!(Layout::open(dir.path(), &options()).unwrap(), first);
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
