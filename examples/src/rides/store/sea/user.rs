//! Who rides. The article keeps a `min_lsn` here; with a session in the server's memory the table stays as it was.

use sea_orm::entity::prelude::*;

/// A row of `rides_demo_users`.
#[sea_orm::model]
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "rides_demo_users")]
pub(crate) struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    #[sea_orm(unique)]
    pub email: String,
    #[sea_orm(has_many)]
    pub rides: HasMany<super::ride::Entity>,
}

impl ActiveModelBehavior for ActiveModel {}
