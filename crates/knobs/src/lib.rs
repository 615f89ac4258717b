//! knobs.
