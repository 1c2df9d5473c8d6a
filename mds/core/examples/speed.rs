//! What an operation costs in the namespace alone, in microseconds: `cargo run --release -p pando-mds-core --example speed`.

// The clock is for the report, not for the namespace.
#![allow(clippy::disallowed_methods)]

use std::time::Instant;

use bytes::Bytes;
use pando_mds_core::api::{BatchId, Context, Outcome};
use pando_mds_core::{Config, Namespace};
use pando_proto::mds::operation::Op;
use pando_proto::mds::*;
use pando_proto::{ClientId, Ino, ShardId};

const BATCH: u64 = 64;

struct Shell {
    ns: Namespace,
    operations: u64,
    next: u64,
}

impl Shell {
    fn run(&mut self, operation: &Operation) -> u64 {
        let context = Context { now: self.operations as i64, client: ClientId(1), ..Context::default() };
        loop {
            match self.ns.apply(operation, &context) {
                Outcome::Done(done) => {
                    done.result.expect("operations of this program succeed");
                    let Some(change) = done.change else { return 0 };
                    let writes = change.writes.len() as u64;
                    self.operations += 1;
                    self.ns.commit(change, BatchId(self.operations / BATCH + 1));
                    if self.operations.is_multiple_of(BATCH) {
                        self.ns.durable(BatchId(self.operations / BATCH));
                    }
                    return writes;
                }
                Outcome::NeedInos(shard) => self.add_inos(shard),
                other => panic!("{other:?}"),
            }
        }
    }

    fn add_inos(&mut self, shard: ShardId) {
        let first = Ino::new(shard, self.next).expect("numbers are small here");
        self.ns.add_inos(first, 100_000);
        self.next += 100_000;
    }
}

fn target(path: &str) -> Option<Target> {
    Some(Target { base: 0, path: Bytes::copy_from_slice(path.as_bytes()) })
}

fn caller() -> Option<Caller> {
    Some(Caller { uid: 1000, gid: 1000, groups: vec![4, 24, 27] })
}

fn measure(what: &str, operations: &[Operation], rounds: usize, shell: &mut Shell) {
    let start = Instant::now();
    for _ in 0..rounds {
        for operation in operations {
            shell.run(operation);
        }
    }
    let count = (operations.len() * rounds) as f64;
    println!("{what:<28} {:>8.3} us", start.elapsed().as_secs_f64() * 1e6 / count);
}

fn main() {
    let mut shell = Shell { ns: Namespace::new(Config::default()), operations: 0, next: 2 };
    let context = Context { now: 0, client: ClientId(0), ..Context::default() };
    let root = shell.ns.make_root(&context).expect("there is none yet");
    shell.ns.commit(root, BatchId(1));
    let open = Op::SetAttr(SetAttrRequest { target: target(""), mode: Some(0o777), ..Default::default() });
    shell.run(&Operation { op: Some(open) });
    let mut dirs = Vec::new();
    for a in 0..10 {
        dirs.push(format!("dir{a}"));
        dirs.extend((0..10).map(|b| format!("dir{a}/sub{b}")));
    }
    let operation = |op| Operation { op: Some(op) };
    let mkdirs: Vec<_> = dirs
        .iter()
        .map(|path| operation(Op::Mkdir(MkdirRequest { caller: caller(), target: target(path), mode: 0o755 })))
        .collect();
    measure("mkdir", &mkdirs, 1, &mut shell);
    let data = Bytes::from(vec![7; 1024]);
    let paths: Vec<String> = (0..50_000).map(|i| format!("dir{}/sub{}/file-{i}", i % 10, i / 10 % 10)).collect();
    let ops = |make: &dyn Fn(&str) -> Op| paths.iter().map(|path| operation(make(path))).collect::<Vec<_>>();
    let create = ops(&|path| {
        Op::WriteFile(WriteFileRequest {
            caller: caller(),
            target: target(path),
            flags: OpenFlag::Create as u32 | OpenFlag::Truncate as u32,
            mode: 0o644,
            data: data.clone(),
        })
    });
    measure("write_file, new, 1 KiB", &create, 1, &mut shell);
    let stat = ops(&|path| Op::Stat(StatRequest { caller: caller(), target: target(path), follow: true }));
    let read = ops(&|path| Op::ReadFile(ReadFileRequest { caller: caller(), target: target(path) }));
    measure("stat", &stat, 10, &mut shell);
    measure("read_file, 1 KiB", &read, 10, &mut shell);
    measure("read_file, 1 KiB, 1000 files", &read[..1000], 200, &mut shell);
    measure("write_file, over, 1 KiB", &create, 1, &mut shell);
    let unlink = ops(&|path| Op::Unlink(UnlinkRequest { caller: caller(), target: target(path) }));
    println!("{:?}", shell.ns.usage());
    measure("unlink", &unlink, 1, &mut shell);
    println!("{:?}", shell.ns.usage());
}
