//! Both adapters on real servers: one binary.
