//! Compiles the protos with protox: no system `protoc` is needed.

use prost::Message as _;
use std::path::PathBuf;

const PROTOS: [&str; 8] = [
    "pando/mon/v1/map.proto",
    "pando/mon/v1/cluster.proto",
    "pando/mds/v1/namespace.proto",
    "pando/mds/v1/session.proto",
    "pando/mds/v1/subtree.proto",
    "pando/mds/v1/records.proto",
    "pando/osd/v1/osd.proto",
    "pando/osd/v1/replication.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("pando.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .extern_path(".google.rpc", "::tonic_types::pb")
        .compile_fds(descriptors)?;
    Ok(())
}
