//! The names that a message's members have on the wire, the same on every transport.
