//! Random writes, cuts and appends of one file against plain bytes.

use pando_client::{Client, File, OpenOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::{end, pattern, small, within};

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, length: usize },
    Append { length: usize },
    SetLen { size: u64 },
    TruncatePath { size: u64 },
    Rewrite { length: usize },
    Read { offset: u64, length: usize },
    Reopen,
}

/// Sizes around the inline limit (4 KiB) and the size of an object (64 KiB here).
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0..10_usize, 4080..4110_usize, 0..20_000_usize, 65_500..65_570_usize, 0..200_000_usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (size(), size()).prop_map(|(offset, length)| Step::Write { offset: offset as u64, length }),
        2 => size().prop_map(|length| Step::Append { length }),
        1 => size().prop_map(|size| Step::SetLen { size: size as u64 }),
        1 => size().prop_map(|size| Step::TruncatePath { size: size as u64 }),
        1 => size().prop_map(|length| Step::Rewrite { length }),
        3 => (size(), size()).prop_map(|(offset, length)| Step::Read { offset: offset as u64, length }),
        1 => Just(Step::Reopen),
    ]
}

async fn open(client: &Client, path: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).open(client, path).await.unwrap()
}

fn overlay(model: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    if model.len() < offset + data.len() {
        model.resize(offset + data.len(), 0);
    }
    model[offset..offset + data.len()].copy_from_slice(data);
}

async fn check(client: &Client, path: &str, steps: &[Step]) {
    let mut model: Vec<u8> = Vec::new();
    let mut file = open(client, path).await;
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Write { offset, length } => {
                let data = pattern(number as u64, length);
                within(file.write_at(offset, &data)).await.unwrap();
                overlay(&mut model, offset as usize, &data);
            }
            Step::Append { length } => {
                let data = pattern(number as u64, length);
                assert_eq!(within(file.append_at_end(&data)).await.unwrap(), model.len() as u64, "step {number}");
                model.extend_from_slice(&data);
            }
            Step::SetLen { size } => {
                within(file.set_len(size)).await.unwrap();
                model.resize(size as usize, 0);
            }
            Step::TruncatePath { size } => {
                within(client.truncate(path, size)).await.unwrap();
                model.resize(size as usize, 0);
            }
            Step::Rewrite { length } => {
                model = pattern(number as u64, length);
                within(client.write(path, &model)).await.unwrap();
            }
            Step::Read { offset, length } => {
                let data = within(file.read_at(offset, length)).await.unwrap();
                let from = model.len().min(offset as usize);
                let to = model.len().min(from + length);
                assert!(data == model[from..to], "step {number} of {steps:?}");
            }
            Step::Reopen => {
                within(file.close()).await.unwrap();
                file = open(client, path).await;
            }
        }
        let size = within(client.metadata(path)).await.unwrap().len();
        assert_eq!(size, model.len() as u64, "after step {number} of {steps:?}");
    }
    within(file.close()).await.unwrap();
    assert!(within(client.read(path)).await.unwrap() == model, "{steps:?}");
}

#[test]
fn a_file_is_what_was_done_to_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (cluster, client) = runtime.block_on(small());
    let set = cluster.admin().admin();
    runtime.block_on(set.set_setting("object_size", "65536")).unwrap();
    let config = Config { cases: 24, max_shrink_iters: 60, failure_persistence: None, ..Config::default() };
    let number = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&(proptest::collection::vec(step(), 1..24),), |(steps,)| {
        number.set(number.get() + 1);
        let path = format!("/f{}", number.get());
        let checking = std::panic::AssertUnwindSafe(|| runtime.block_on(check(&client, &path, &steps)));
        let outcome = std::panic::catch_unwind(checking);
        outcome.map_err(|_| TestCaseError::fail("see above"))
    });
    outcome.unwrap();
    runtime.block_on(end(cluster, client));
}
