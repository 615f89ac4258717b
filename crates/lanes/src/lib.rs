//! lanes.
