//! Counting and timing of operations.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest time a histogram tells apart, in nanoseconds; longer ones count as this.
const LONGEST: u64 = 600_000_000_000;
/// Two digits: percentiles are good to 1 %.
const DIGITS: u8 = 2;

/// Percentiles of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 90 % are not slower.
    pub p90: f64,
    /// 99 % are not slower.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

/// How many operations took so long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Not longer than this, in microseconds, and longer than the bucket before.
    pub up_to_us: f64,
    /// How many.
    pub count: u64,
}

/// Latencies by name of operation.
#[derive(Default)]
pub struct Recorder {
    histograms: BTreeMap<&'static str, Histogram<u64>>,
    sum: Duration,
    longest: Duration,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("the bounds are constants that fit")
}

impl Recorder {
    /// Counts an operation that began at `start` and ends now.
    pub fn ended(&mut self, name: &'static str, start: Instant) {
        self.record(name, start.elapsed());
    }

    /// Counts an operation.
    pub fn record(&mut self, name: &'static str, took: Duration) {
        let histogram = self.histograms.entry(name).or_insert_with(histogram);
        self.sum += took;
        self.longest = self.longest.max(took);
        histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST).max(1));
    }

    /// Takes another's counts in.
    pub fn merge(&mut self, other: Self) {
        self.sum += other.sum;
        self.longest = self.longest.max(other.longest);
        for (name, histogram) in other.histograms {
            match self.histograms.entry(name) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(histogram);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    entry.get_mut().add(&histogram).expect("all histograms have the same bounds");
                }
            }
        }
    }

    /// All operations.
    pub fn total(&self) -> u64 {
        self.histograms.values().map(Histogram::len).sum()
    }

    /// Percentiles by name.
    pub fn latencies(&self) -> BTreeMap<String, Latency> {
        let micros = |nanos: u64| (nanos as f64 / 10.0).round() / 100.0;
        let summary = |histogram: &Histogram<u64>| Latency {
            count: histogram.len(),
            p50: micros(histogram.value_at_quantile(0.5)),
            p90: micros(histogram.value_at_quantile(0.9)),
            p99: micros(histogram.value_at_quantile(0.99)),
            max: micros(histogram.max()),
        };
        self.histograms.iter().map(|(name, histogram)| ((*name).to_owned(), summary(histogram))).collect()
    }
}

impl Recorder {
    /// Of all operations: the time that clients waited.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The slowest operation.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// All operations by how long they took; each bucket reaches twice as far as the one before.
    pub fn distribution(&self) -> Vec<Bucket> {
        let mut all = histogram();
        for histogram in self.histograms.values() {
            all.add(histogram).expect("all histograms have the same bounds");
        }
        let buckets = all.iter_log(1000, 2.0);
        buckets
            .map(|step| Bucket {
                up_to_us: (step.value_iterated_to() + 1) as f64 / 1000.0,
                count: step.count_since_last_iteration(),
            })
            .collect()
    }
}

/// First start and last end of a phase over all clients.
#[derive(Default)]
pub struct Span(Mutex<Option<(Instant, Instant)>>);

impl Span {
    /// A client worked from `start` to now.
    pub fn add(&self, start: Instant) {
        let end = Instant::now();
        let mut span = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *span = Some(match *span {
            Some((first, last)) => (first.min(start), last.max(end)),
            None => (start, end),
        });
    }

    /// Seconds from the first start to the last end.
    pub fn seconds(&self) -> f64 {
        let span = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        span.map_or(0.0, |(first, last)| (last - first).as_secs_f64())
    }
}

/// Something per second; 0 if no time passed.
pub fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The middle one, or between the two in the middle; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        let medians = [median(&[]), median(&[3.0]), median(&[9.0, 1.0, 3.0]), median(&[4.0, 1.0, 2.0, 100.0])];
        assert_eq!(medians, [0.0, 3.0, 3.0, 3.0]);
    }
}
