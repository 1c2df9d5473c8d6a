//! The progress bar; hidden when standard error is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Operations between two updates by one client.
const STEP: u64 = 64;

/// A bar for `total` operations.
pub fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg:8} {wide_bar} {human_pos}/{human_len} {per_sec} eta {eta}") {
        bar.set_style(style);
    }
    bar
}

/// A client's share of the bar, updated now and then.
pub struct Ticker<'a> {
    bar: &'a ProgressBar,
    pending: u64,
}

impl<'a> Ticker<'a> {
    /// Of this bar.
    pub fn new(bar: &'a ProgressBar) -> Self {
        Self { bar, pending: 0 }
    }

    /// One more.
    pub fn tick(&mut self) {
        self.pending += 1;
        if self.pending == STEP {
            self.bar.inc(std::mem::take(&mut self.pending));
        }
    }
}

impl Drop for Ticker<'_> {
    fn drop(&mut self) {
        self.bar.inc(self.pending);
    }
}
