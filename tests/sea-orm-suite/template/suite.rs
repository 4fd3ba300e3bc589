//! SeaORM's test files as modules of one crate.
#![allow(warnings)]

// The files bring this macro along, exported from each, which one crate cannot hold more than once: the feature that
// it hangs on is off here, and this is the same.
macro_rules! block_on {
    ($($expr:tt)*) => {
        ::tokio::runtime::Runtime::new().unwrap().block_on($($expr)*)
    };
}
pub(crate) use block_on;

