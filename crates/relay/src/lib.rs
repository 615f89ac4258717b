//! relay.
