//! A whole Pando cluster in one process, for pando up, tests and loadgen
