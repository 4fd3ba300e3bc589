//! A ride: what is written, and read back at once.

use sea_orm::entity::prelude::*;

/// A row of `rides_demo_rides`.
#[sea_orm::model]
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "rides_demo_rides")]
pub(crate) struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    pub distance: i64,
    pub user_id: i64,
    #[sea_orm(belongs_to, from = "user_id", to = "id")]
    pub user: HasOne<super::user::Entity>,
}

impl ActiveModelBehavior for ActiveModel {}
