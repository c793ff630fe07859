//! The commands.

pub mod listen;
