//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

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
    /// Give up a call after this many seconds.
    #[arg(long, global = true, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
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
    /// Where the data live.
    #[arg(long, default_value = "./pando-data", value_name = "DIR")]
    pub data: PathBuf,
    /// Number of mons: 1, 3 or 5; `pando up --mons 3` says the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    pub mons_count: u32,
    /// Number of OSDs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub osds: u32,
    /// Number of metadata servers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1))]
    pub mds: u32,
    /// Copies of all data, 1 to 3 [default: as many as there are OSDs, at most 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub replicas: Option<u32>,
    /// Where OSDs keep their bytes.
    #[arg(long, value_enum, default_value_t = Engine::Fjall)]
    pub engine: Engine,
    /// Memory of the metadata server for its cache; K, M and G are understood.
    #[arg(long, visible_alias = "budget", default_value = "256M", value_parser = parse_bytes, value_name = "BYTES")]
    pub mds_cache_bytes: u64,
    /// Largest file kept with its inode; a setting of the cluster from then on.
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub inline_limit: Option<u64>,
    /// Port of the first mon on 127.0.0.1; the others follow. 0 takes free ones.
    #[arg(long, default_value_t = 7100)]
    pub mon_port: u16,
}

impl UpArgs {
    /// Takes `--mons N` for the number of mons. Elsewhere the flag names mons, which `up` has no use for.
    pub fn with_mons(mut self, mons: Option<&str>) -> Result<Self, String> {
        if let Some(mons) = mons {
            let count = mons.parse().ok().filter(|count| (1..=5).contains(count));
            self.mons_count = count.ok_or_else(|| {
                format!("`up` starts its own mons: --mons is their number here, 1 to 5, not {mons:?}")
            })?;
        }
        Ok(self)
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
}

#[derive(Subcommand, Clone, Debug)]
pub enum RankCommand {
    /// List them.
    Ls,
    /// Take one off the map that owns nothing.
    Rm {
        /// Its number, as `5` or `mds.5`.
        #[arg(value_parser = parse_rank, value_name = "RANK")]
        rank: u32,
    },
}

#[derive(Subcommand, Clone, Debug)]
pub enum SubtreeCommand {
    /// List them.
    Ls,
}

fn parse_osd(text: &str) -> Result<u32, String> {
    text.strip_prefix("osd.").unwrap_or(text).parse().map_err(|_| "an OSD is named as `3` or `osd.3`".to_owned())
}

fn parse_rank(text: &str) -> Result<u32, String> {
    text.strip_prefix("mds.").unwrap_or(text).parse().map_err(|_| "a rank is named as `5` or `mds.5`".to_owned())
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
            up.with_mons(args.mons.as_deref()).map(|up| up.mons_count)
        };
        assert_eq!(mons(&["up"]), Ok(1));
        assert_eq!(mons(&["up", "--mons-count", "3"]), Ok(3));
        assert_eq!(mons(&["up", "--mons", "3"]), Ok(3));
        assert_eq!(mons(&["--mons", "5", "up"]), Ok(5));
        assert!(mons(&["up", "--mons", "10.0.0.1:7100"]).is_err() && mons(&["up", "--mons", "9"]).is_err());
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
