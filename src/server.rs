//! Wiring, start and drain of a node.
