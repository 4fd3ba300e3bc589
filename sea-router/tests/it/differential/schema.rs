//! Changes of the schema as steps of the program: migrations up and down, schema sync.

use sea_orm::{ConnectionTrait, DbErr, StreamTrait, TransactionSession, TransactionTrait};
use sea_orm_migration::prelude::*;
use sea_router::RoutingConnection;

use super::{Log, sql, steps};

/// A connection as the program needs it: SeaORM's own, or ours.
pub(super) trait Database: ConnectionTrait + StreamTrait + sea_schema::Connection + TransactionTrait {
    /// To be called after migrations.
    async fn settle(&self) -> Result<(), DbErr>;
}

impl Database for sea_orm::DatabaseConnection {
    async fn settle(&self) -> Result<(), DbErr> {
        Ok(())
    }
}

impl Database for RoutingConnection {
    async fn settle(&self) -> Result<(), DbErr> {
        self.settle().await
    }
}

struct Migrator;

impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![Box::new(CreateNote), Box::new(AddStars), Box::new(Fails)]
    }
}

macro_rules! names {
    ($($migration:ident: $name:literal;)*) => {
        $(
            struct $migration;

            impl MigrationName for $migration {
                fn name(&self) -> &str {
                    $name
                }
            }
        )*
    };
}

names! {
    CreateNote: "m1_create_note";
    AddStars: "m2_add_stars";
    Fails: "m3_fails";
}

#[async_trait::async_trait]
impl MigrationTrait for CreateNote {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let id = ColumnDef::new("id").integer().not_null().auto_increment().primary_key().to_owned();
        let text = ColumnDef::new("text").text().not_null().to_owned();
        manager.create_table(Table::create().table("note").col(id).col(text).to_owned()).await?;
        manager.create_index(Index::create().name("note_text").table("note").col("text").unique().to_owned()).await?;
        manager.get_connection().execute_unprepared("INSERT INTO note (text) VALUES ('first'), ('second')").await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table("note").to_owned()).await
    }
}

#[async_trait::async_trait]
impl MigrationTrait for AddStars {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let seen = (manager.has_table("note").await?, manager.has_column("note", "stars").await?);
        if seen != (true, false) {
            return Err(DbErr::Custom(format!("the migration saw {seen:?}")));
        }
        let stars = ColumnDef::new("stars").integer().to_owned();
        manager.alter_table(Table::alter().table("note").add_column(stars).to_owned()).await?;
        manager.get_connection().execute_unprepared("UPDATE note SET stars = id * 10").await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.alter_table(Table::alter().table("note").drop_column("stars").to_owned()).await
    }
}

#[async_trait::async_trait]
impl MigrationTrait for Fails {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection.execute_unprepared("INSERT INTO note (text) VALUES ('of a failed migration')").await?;
        Err(DbErr::Migration("changed my mind".into()))
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Ok(())
    }
}

async fn names<C: ConnectionTrait>(db: &C, applied: bool) -> Result<Vec<String>, DbErr> {
    let migrations = if applied {
        Migrator::get_applied_migrations(db).await?
    } else {
        Migrator::get_pending_migrations_read_only(db).await?
    };
    Ok(migrations.iter().map(|migration| migration.name().to_owned()).collect())
}

/// The notes as one text, with their stars if asked for.
async fn notes<C: ConnectionTrait>(db: &C, stars: bool) -> Result<Vec<String>, DbErr> {
    let text = if stars { "text || ' ' || COALESCE(stars, 0)" } else { "text" };
    let rows = db.query_all_raw(sql(&format!("SELECT {text} FROM note ORDER BY id"))).await?;
    rows.iter().map(|row| row.try_get_by_index(0)).collect()
}

/// Migrations up and down, each read at once and again after the session is settled.
pub(super) async fn migrations<C>(db: &C, log: &mut Log)
where
    C: Database,
    for<'c> &'c C: IntoSchemaManagerConnection<'c>,
{
    steps! { log;
        "no migration yet" => names(db, true);
        "up by one" => Migrator::up(db, Some(1));
        "its table, at once" => notes(db, false);
        "settled" => db.settle();
        "its table" => notes(db, false);
        "applied" => names(db, true);
        "pending" => names(db, false);
        "insert into it" => db.execute_raw(sql("INSERT INTO note (text) VALUES ('third')"));
        "no stars yet" => notes(db, true);
        "up by another" => Migrator::up(db, Some(1));
        "settled again" => db.settle();
        "with stars" => notes(db, true);
        "up to one that fails" => Migrator::up(db, None);
        "settled after a failure" => db.settle();
        "not applied" => names(db, true);
        "and undone" => notes(db, true);
        "down by one" => Migrator::down(db, Some(1));
        "settled after down" => db.settle();
        "without stars" => notes(db, true);
        "but the notes" => notes(db, false);
        "reset" => Migrator::reset(db);
        "settled after reset" => db.settle();
        "none applied" => names(db, true);
        "no table" => notes(db, false);
        "up once more" => Migrator::up(db, Some(2));
        "settled at last" => db.settle();
        "as after the first" => notes(db, true);
    }
}

macro_rules! shelf {
    ($name:ident { $($column:tt)* }) => {
        mod $name {
            #![allow(unreachable_pub, missing_docs, reason = "what the derives make")]
            use sea_orm::entity::prelude::*;

            #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
            #[sea_orm(table_name = "shelf")]
            pub struct Model {
                #[sea_orm(primary_key)]
                pub id: i32,
                #[sea_orm(unique)]
                pub name: String,
                $($column)*
            }

            #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
            pub enum Relation {}

            impl ActiveModelBehavior for ActiveModel {}
        }
    };
}

shelf!(shelf {});
shelf!(wide_shelf {
    pub width: Option<i32>,
});

/// Schema sync of a table, twice; of one with a column more; and in a transaction.
pub(super) async fn sync<C>(db: &C, log: &mut Log)
where
    C: Database,
    C::Transaction: TransactionSession + sea_schema::Connection,
{
    use sea_orm::{ActiveModelTrait, ActiveValue::Set, EntityTrait, QueryOrder, Schema};

    let builder = || Schema::new(sea_orm::DbBackend::Postgres).builder();
    let new = |name: &str| shelf::ActiveModel { name: Set(name.into()), ..Default::default() };
    let wide =
        |name: &str| wide_shelf::ActiveModel { name: Set(name.into()), width: Set(Some(9)), ..Default::default() };
    steps! { log;
        "sync" => builder().register(shelf::Entity).sync(db);
        "sync of the same" => builder().register(shelf::Entity).sync(db);
        "insert into what was synced" => new("low").insert(db);
        "the same name" => new("low").insert(db);
        "sync of a column" => builder().register(wide_shelf::Entity).sync(db);
        "insert with the column" => wide("high").insert(db);
        "read with it" => wide_shelf::Entity::find().order_by_asc(wide_shelf::Column::Id).all(db);
        "read without it" => shelf::Entity::find().order_by_asc(shelf::Column::Id).all(db);
        "drop it" => db.execute_unprepared("DROP TABLE shelf");
    }
    for (end, commit) in [("rolled back", false), ("committed", true)] {
        let transaction = db.begin().await.expect("begun");
        log.note(end, &builder().register(wide_shelf::Entity).sync(&transaction).await);
        log.note(end, &wide("inside").insert(&transaction).await);
        log.note(end, &if commit { transaction.commit().await } else { transaction.rollback().await });
        log.note(end, &wide_shelf::Entity::find().all(db).await);
    }
}
