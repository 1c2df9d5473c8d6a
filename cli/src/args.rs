//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Parser, Subcommand, ValueEnum};
use pando_cluster_map::settings;
use pando_local_cluster::{MAX_MDS, MIN_MDS_CACHE_BYTES};
use pando_proto::{PgId, PoolId};

const DEFAULT_DATA: &str = "./pando-data";

/// Pando, a distributed file system.
///
/// Without a command: `pando up`. Exit codes: 0 all went well, 1 an operation
/// failed, 2 wrong usage, 3 the cluster cannot be reached.
#[derive(Parser, Clone, Debug)]
#[command(version)]
pub struct Args {
    /// Mons of the cluster, HOST:PORT separated by commas [default: $PANDO_MONS, else 127.0.0.1:7100].
    #[arg(long, global = true, value_name = "HOST:PORT,…")]
    pub mons: Option<String>,
    /// Print JSON: one object a line, with fields that stay.
    #[arg(long, global = true)]
    pub json: bool,
    /// Give up connecting, and then each call, after this many seconds [default: 5 to connect, 30 for a call].
    #[arg(long, global = true, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: Option<u64>,
    /// Act as this user; root unless given.
    #[arg(long, global = true, default_value_t = 0)]
    pub uid: u32,
    /// Act as this group.
    #[arg(long, global = true, default_value_t = 0)]
    pub gid: u32,
    /// Log what happens.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Run a whole cluster in this process until it is interrupted.
    Up(UpArgs),
    /// List directories.
    Ls(LsArgs),
    /// Print files.
    Cat(CatArgs),
    /// Copy a local file, or standard input, into the cluster.
    Put(PutArgs),
    /// Copy a file out of the cluster.
    Get(GetArgs),
    /// Make directories.
    Mkdir(MkdirArgs),
    /// Remove files or directories.
    Rm(RmArgs),
    /// Rename, or move into a directory.
    Mv(MvArgs),
    /// Make a link.
    Ln(LnArgs),
    /// Show attributes.
    Stat(StatArgs),
    /// Show space.
    Df,
    /// Show the state of the cluster.
    Status,
    /// Settings of the cluster.
    #[command(subcommand)]
    Setting(SettingCommand),
    /// Object storage daemons.
    #[command(subcommand)]
    Osd(OsdCommand),
    /// Placement groups.
    #[command(subcommand)]
    Pg(PgCommand),
    /// Metadata servers.
    #[command(subcommand)]
    Rank(RankCommand),
    /// Subtrees and who owns them.
    #[command(subcommand)]
    Subtree(SubtreeCommand),
    /// What moves subtrees for the sake of load.
    #[command(subcommand)]
    Balancer(BalancerCommand),
    /// Sessions of clients: who is connected, and for whom others wait.
    #[command(subcommand)]
    Session(SessionCommand),
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// A log-structured merge tree.
    Fjall,
    /// Plain files, records in redb.
    File,
    /// Nothing survives the process.
    Memory,
}

#[derive(clap::Args, Clone, Debug)]
pub struct UpArgs {
    /// Where the data live [default: ./pando-data, with `--engine memory` a temporary directory].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Number of mons: 1, 3 or 5; `pando up --mons 3` says the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_mon_count)]
    pub mons_count: u32,
    /// Number of OSDs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub osds: u32,
    /// Number of metadata servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MDS)))]
    pub mds: u32,
    /// Copies of all data, 1 to 3 [default: as many as there are OSDs, at most 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub replicas: Option<u32>,
    /// Where OSDs keep their bytes.
    #[arg(long, value_enum, default_value_t = Engine::Fjall)]
    pub engine: Engine,
    /// Memory of each metadata server for its cache, at least 1M; K, M and G are understood.
    #[arg(long, visible_alias = "budget", default_value = "256M", value_parser = parse_cache_bytes, value_name = "BYTES")]
    pub mds_cache_bytes: u64,
    /// Largest file kept with its inode, at most 256K; a setting of the cluster from then on.
    #[arg(long, value_parser = parse_inline_limit, value_name = "BYTES")]
    pub inline_limit: Option<u64>,
    /// Port of the first mon on 127.0.0.1; the others follow. 0 takes free ones.
    #[arg(long, default_value_t = 7100)]
    pub mon_port: u16,
}

impl UpArgs {
    /// Takes `--mons N` for the number of mons (elsewhere the flag names mons, which `up` has no use for), and
    /// checks what flags say together.
    pub fn checked(mut self, mons: Option<&str>) -> Result<Self, String> {
        if let Some(mons) = mons {
            self.mons_count = parse_mon_count(mons).map_err(|_| {
                format!("`up` starts its own mons: --mons is their number here, 1, 3 or 5, not {mons:?}")
            })?;
        }
        if self.replicas() > self.osds {
            let (replicas, osds) = (self.replicas(), self.osds);
            return Err(format!("{replicas} copies need {replicas} OSDs: use --osds {replicas} or --replicas {osds}"));
        }
        if self.mon_port != 0 && u32::from(self.mon_port) + self.mons_count > 1 + u32::from(u16::MAX) {
            let most = 1 + u32::from(u16::MAX) - self.mons_count;
            return Err(format!("{} mons from --mon-port {} on: use at most {most}", self.mons_count, self.mon_port));
        }
        Ok(self)
    }

    /// Copies of all data.
    pub fn replicas(&self) -> u32 {
        self.replicas.unwrap_or(self.osds.min(3))
    }

    /// Where the data live; `None` if nothing outlives the process.
    pub fn data(&self) -> Option<PathBuf> {
        match (&self.data, self.engine) {
            (None, Engine::Memory) => None,
            (data, _) => Some(data.clone().unwrap_or_else(|| DEFAULT_DATA.into())),
        }
    }
}

impl Default for UpArgs {
    fn default() -> Self {
        #[derive(Parser)]
        struct Alone {
            #[command(flatten)]
            up: UpArgs,
        }
        Alone::parse_from(["pando"]).up
    }
}

#[derive(clap::Args, Clone, Debug)]
pub struct LsArgs {
    /// With attributes.
    #[arg(short, long)]
    pub long: bool,
    /// The directory itself, not what is in it.
    #[arg(short, long)]
    pub directory: bool,
    /// What to list.
    #[arg(default_value = "/")]
    pub paths: Vec<PathBuf>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct CatArgs {
    /// What to print.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct PutArgs {
    /// Directories with all below them.
    #[arg(short, long)]
    pub recursive: bool,
    /// A local file; `-` is standard input.
    pub local: PathBuf,
    /// Where to; into it if it is a directory.
    pub remote: PathBuf,
}

#[derive(clap::Args, Clone, Debug)]
pub struct GetArgs {
    /// Directories with all below them.
    #[arg(short, long)]
    pub recursive: bool,
    /// What to copy.
    pub remote: PathBuf,
    /// Where to; into it if it is a directory; `-` is standard output.
    pub local: PathBuf,
}

#[derive(clap::Args, Clone, Debug)]
pub struct MkdirArgs {
    /// Missing parents as well; no error if it is there.
    #[arg(short, long)]
    pub parents: bool,
    /// Permission bits, octal.
    #[arg(short, long, value_parser = parse_mode, default_value = "755")]
    pub mode: u32,
    /// What to make.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct RmArgs {
    /// Directories with all below them.
    #[arg(short, long)]
    pub recursive: bool,
    /// No error for what is not there.
    #[arg(short, long)]
    pub force: bool,
    /// What to remove.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(clap::Args, Clone, Debug)]
pub struct MvArgs {
    /// Fail if the target is there.
    #[arg(short, long, conflicts_with = "exchange")]
    pub no_replace: bool,
    /// Swap the two.
    #[arg(long)]
    pub exchange: bool,
    /// What to rename.
    pub from: PathBuf,
    /// Its new name, or a directory to move it into.
    pub to: PathBuf,
}

#[derive(clap::Args, Clone, Debug)]
pub struct LnArgs {
    /// A symlink.
    #[arg(short, long)]
    pub symbolic: bool,
    /// What it leads to.
    pub target: PathBuf,
    /// The new name.
    pub link: PathBuf,
}

#[derive(clap::Args, Clone, Debug)]
pub struct StatArgs {
    /// Follow symlinks.
    #[arg(short = 'L', long)]
    pub follow: bool,
    /// What to look at.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
}

#[derive(Subcommand, Clone, Debug)]
pub enum SettingCommand {
    /// Show one.
    Get {
        /// Which.
        name: String,
    },
    /// Change one.
    Set {
        /// Which.
        name: String,
        /// To what.
        value: String,
    },
    /// Show all.
    #[command(visible_alias = "ls")]
    List,
}

#[derive(Subcommand, Clone, Debug)]
pub enum OsdCommand {
    /// List them.
    Ls,
    /// Take one off the map that is gone for good.
    Rm {
        /// Its number, as `3` or `osd.3`.
        #[arg(value_parser = parse_osd, value_name = "OSD")]
        osd: u32,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum PgCommand {
    /// List them.
    Ls {
        /// Of this pool only: `metadata` or `data`.
        #[arg(long)]
        pool: Option<String>,
    },
    /// Make one copy the one that counts, for a group whose other copies are gone for good. What that copy lacks is lost.
    /// Without --accept-data-loss: says what that would be.
    Override {
        /// As `pando pg ls` shows it: POOL.INDEX.
        #[arg(value_parser = parse_pg, value_name = "PG")]
        pg: PgId,
        /// Holds the copy, as `3` or `osd.3`.
        #[arg(value_parser = parse_osd, value_name = "OSD")]
        osd: u32,
        /// Do it.
        #[arg(long)]
        accept_data_loss: bool,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum RankCommand {
    /// List them.
    Ls,
    /// Take one off the map that owns nothing.
    Rm(RankArgs),
    /// Have its subtrees move to others, and keep it empty.
    Drain(RankArgs),
    /// Let it have subtrees again.
    Undrain(RankArgs),
}

#[derive(clap::Args, Clone, Copy, Debug)]
pub struct RankArgs {
    /// Its number, as `5` or `mds.5`.
    #[arg(value_parser = parse_rank, value_name = "RANK")]
    pub rank: u32,
}

#[derive(Subcommand, Clone, Debug)]
pub enum SubtreeCommand {
    /// List them, with what the ranks said of their load.
    Ls,
    /// Make a directory a subtree of its own; nothing is copied.
    Split {
        /// The directory.
        path: PathBuf,
    },
    /// Merge one back into its parent; both have to be with the same rank.
    Merge(SubtreeArgs),
    /// Move one to another rank, while clients go on.
    Move {
        #[command(flatten)]
        subtree: SubtreeArgs,
        #[command(flatten)]
        to: RankArgs,
        /// Return when the move has begun, not when it is done.
        #[arg(long)]
        no_wait: bool,
    },
    /// Have one moved to a rank and left there, whatever the load.
    Pin {
        #[command(flatten)]
        subtree: SubtreeArgs,
        #[command(flatten)]
        to: RankArgs,
    },
    /// Take a pin away. A spread is ended by `spread --off`.
    Unpin(SubtreeArgs),
    /// Have the child directories of its root, also those made later, made subtrees and dealt over the ranks. At most 256
    /// of them; the others stay in it.
    Spread {
        #[command(flatten)]
        subtree: SubtreeArgs,
        /// No longer; what was dealt stays where it is until it is merged, by hand or for being idle.
        #[arg(long)]
        off: bool,
    },
    /// Say which subtree and rank serve a path, and why.
    Explain {
        /// What to look at: any path, or a subtree by its number, as `7` or `subtree.7`.
        #[arg(value_parser = OsStringValueParser::new().map(parse_place), value_name = "PATH|ID")]
        place: SubtreeName,
    },
}

#[derive(clap::Args, Clone, Debug)]
pub struct SubtreeArgs {
    /// Its root directory, as `/a/b`, or its number, as `7` or `subtree.7`.
    #[arg(value_parser = OsStringValueParser::new().try_map(parse_subtree), value_name = "PATH|ID")]
    pub subtree: SubtreeName,
}

/// How a subtree is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubtreeName {
    Path(PathBuf),
    Id(u64),
}

#[derive(Subcommand, Clone, Debug)]
pub enum BalancerCommand {
    /// What it decided lately, newest first, with its figures.
    Log {
        /// At most so many decisions; 0 for all that are kept.
        #[arg(short = 'n', long = "limit", default_value_t = 20)]
        limit: u32,
    },
    /// Only draining ranks are emptied.
    Off,
    /// Pins are obeyed too; what load would ask for is only recorded.
    Manual,
    /// Subtrees are moved, split and merged as load asks for.
    Auto,
}

#[derive(Subcommand, Clone, Debug)]
pub enum SessionCommand {
    /// List them, with the ranks that wait for word from them.
    Ls,
    /// End the session of a client that is gone for good: what it has open is closed, what it still asks is refused.
    Evict {
        /// Its number, as `7` or `client.7`.
        #[arg(value_parser = parse_session, value_name = "SESSION")]
        session: u64,
    },
}

fn parse_session(text: &str) -> Result<u64, String> {
    let number = text.strip_prefix("client.").unwrap_or(text).parse().ok().filter(|id| *id != 0);
    number.ok_or_else(|| "a session is named by its number, as `7` or `client.7`".to_owned())
}

/// A path need not be UTF-8.
fn parse_subtree(text: OsString) -> Result<SubtreeName, String> {
    if text.as_encoded_bytes().starts_with(b"/") {
        return Ok(SubtreeName::Path(text.into()));
    }
    let wrong = || "a subtree is named by its root, as `/a/b`, or by its number, as `7` or `subtree.7`".to_owned();
    text.to_str().and_then(subtree_number).map(SubtreeName::Id).ok_or_else(wrong)
}

/// The same, but what is no number is a path.
fn parse_place(text: OsString) -> SubtreeName {
    match text.to_str().and_then(subtree_number) {
        Some(id) => SubtreeName::Id(id),
        None => SubtreeName::Path(text.into()),
    }
}

fn subtree_number(text: &str) -> Option<u64> {
    text.strip_prefix("subtree.").unwrap_or(text).parse().ok().filter(|id| *id != 0)
}

fn parse_osd(text: &str) -> Result<u32, String> {
    text.strip_prefix("osd.").unwrap_or(text).parse().map_err(|_| "an OSD is named as `3` or `osd.3`".to_owned())
}

fn parse_pg(text: &str) -> Result<PgId, String> {
    let (pool, index) = text.split_once('.').unwrap_or_default();
    match (pool.parse(), index.parse()) {
        (Ok(pool), Ok(index)) => Ok(PgId { pool: PoolId(pool), index }),
        _ => Err("a placement group is named as `pando pg ls` shows it: `1.7`".to_owned()),
    }
}

fn parse_rank(text: &str) -> Result<u32, String> {
    text.strip_prefix("mds.").unwrap_or(text).parse().map_err(|_| "a rank is named as `5` or `mds.5`".to_owned())
}

fn parse_mon_count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| [1, 3, 5].contains(count));
    count.ok_or_else(|| "use 1, 3 or 5: an even number of mons bears no more failures than one less".to_owned())
}

fn parse_cache_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes < MIN_MDS_CACHE_BYTES { Err("use at least 1M".to_owned()) } else { Ok(bytes) }
}

fn parse_inline_limit(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let most = settings::find(settings::INLINE_LIMIT).map_or(u64::MAX, |known| known.max);
    if bytes > most { Err(format!("use at most {}K; larger files go to objects", most >> 10)) } else { Ok(bytes) }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1_u64 << 30,
        other => return Err(format!("`{other}` is no unit: use K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{digits}` is no number"))?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permission bits are octal, at most 7777".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definitions_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn no_command_means_up_with_its_defaults() {
        assert!(Args::parse_from(["pando"]).command.is_none());
        let up = UpArgs::default();
        assert_eq!((up.osds, up.mon_port, up.mds_cache_bytes), (3, 7100, 256 << 20));
    }

    #[test]
    fn the_number_of_mons_goes_by_both_flags() {
        let mons = |line: &[&str]| {
            let args = Args::parse_from([&["pando"], line].concat());
            let Some(Command::Up(up)) = args.command else { panic!("no up") };
            up.checked(args.mons.as_deref()).map(|up| up.mons_count)
        };
        assert_eq!(mons(&["up"]), Ok(1));
        assert_eq!(mons(&["up", "--mons-count", "3"]), Ok(3));
        assert_eq!(mons(&["up", "--mons", "3"]), Ok(3));
        assert_eq!(mons(&["--mons", "5", "up"]), Ok(5));
        assert!(mons(&["up", "--mons", "10.0.0.1:7100"]).is_err() && mons(&["up", "--mons", "9"]).is_err());
        assert!(mons(&["up", "--mons", "2"]).unwrap_err().contains("1, 3 or 5"));
    }

    #[test]
    fn only_a_cluster_in_memory_has_no_directory_of_its_own() {
        let data = |line: &[&str]| {
            let Some(Command::Up(up)) = Args::parse_from([&["pando", "up"], line].concat()).command else {
                panic!("no up")
            };
            up.data()
        };
        assert_eq!(data(&[]), Some(DEFAULT_DATA.into()));
        assert_eq!(data(&["--engine", "memory"]), None);
        assert_eq!(data(&["--engine", "memory", "--data", "x"]), Some("x".into()));
    }

    #[test]
    fn subtrees_go_by_path_and_number() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = || OsString::from_vec(b"/a/\xff".to_vec());
        let parse = |text: &str| parse_subtree(text.into());
        assert_eq!(parse("/a/b"), Ok(SubtreeName::Path("/a/b".into())));
        assert_eq!((parse("7"), parse("subtree.7")), (Ok(SubtreeName::Id(7)), Ok(SubtreeName::Id(7))));
        assert!(parse("0").is_err() && parse("a/b").is_err() && parse("").is_err());
        assert_eq!(parse_subtree(odd()), Ok(SubtreeName::Path(odd().into())));
        assert!(parse_subtree(OsString::from_vec(b"7\xff".to_vec())).is_err());
        assert_eq!(
            (parse_place("7".into()), parse_place("subtree.7".into())),
            (SubtreeName::Id(7), SubtreeName::Id(7))
        );
        assert_eq!(
            (parse_place("a".into()), parse_place(odd())),
            (SubtreeName::Path("a".into()), SubtreeName::Path(odd().into()))
        );
    }

    #[test]
    fn sizes_and_modes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert!(parse_bytes("4x").is_err() && parse_bytes("").is_err() && parse_bytes("99999999999G").is_err());
        assert_eq!(parse_mode("1755"), Ok(0o1755));
        assert!(parse_mode("8").is_err() && parse_mode("77777").is_err());
    }
}
