//! The tables and queries of both Diesel connections.

use diesel::{dsl::auto_type, prelude::*};

use crate::api::RideBody;

diesel::table! {
    rides_demo_users (id) {
        id -> BigInt,
        email -> Text,
    }
}

diesel::table! {
    rides_demo_rides (id) {
        id -> BigInt,
        distance -> BigInt,
        user_id -> BigInt,
    }
}

pub(super) use rides_demo_rides as rides;
pub(super) use rides_demo_users as users;

pub(super) const CREATE: &str = "\
    CREATE TABLE rides_demo_users (id bigserial PRIMARY KEY, email text NOT NULL UNIQUE); \
    CREATE TABLE rides_demo_rides (id bigserial PRIMARY KEY, distance bigint NOT NULL, \
    user_id bigint NOT NULL REFERENCES rides_demo_users)";
pub(super) const DROP: &str = "DROP TABLE rides_demo_rides, rides_demo_users";

/// The columns of a [`RideBody`].
pub(super) type Ride = (i64, i64);

pub(super) const RIDE: (rides::id, rides::distance) = (rides::id, rides::distance);

#[auto_type]
pub(super) fn find(ride: i64) -> _ {
    rides::table.filter(rides::id.eq(ride)).select((rides::id, rides::distance))
}

#[auto_type]
pub(super) fn find_own(user: i64, ride: i64) -> _ {
    rides::table.filter(rides::id.eq(ride)).filter(rides::user_id.eq(user)).select(rides::id)
}

impl From<Ride> for RideBody {
    fn from((id, distance): Ride) -> Self {
        Self { id, distance }
    }
}
