//! The async connection, over diesel-async.
