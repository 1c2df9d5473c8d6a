//! State machine of a placement group: configurations, order of writes, catching up; without I/O
