//! The tables of the program: authors, their books, and the labels of books.

macro_rules! entity {
    ($name:ident { $($content:tt)* }) => {
        pub(super) mod $name {
            #![allow(unreachable_pub, missing_docs, reason = "what the derives make")]
            use sea_orm::entity::prelude::*;
            $($content)*
            impl ActiveModelBehavior for ActiveModel {}
        }
    };
}

entity!(author {
    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "author")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        #[sea_orm(unique)]
        pub name: String,
        #[sea_orm(has_many)]
        pub books: HasMany<super::book::Entity>,
    }
});

entity!(book {
    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "book")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub author_id: i32,
        pub title: String,
        pub pages: i64,
        #[sea_orm(belongs_to, from = "author_id", to = "id")]
        pub author: BelongsTo<super::author::Entity>,
        #[sea_orm(has_many, via = "book_label")]
        pub labels: HasMany<super::label::Entity>,
    }
});

entity!(label {
    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "label")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub text: String,
        #[sea_orm(has_many, via = "book_label")]
        pub books: HasMany<super::book::Entity>,
    }
});

entity!(book_label {
    #[sea_orm::model]
    #[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
    #[sea_orm(table_name = "book_label")]
    pub struct Model {
        #[sea_orm(primary_key, auto_increment = false)]
        pub book_id: i32,
        #[sea_orm(primary_key, auto_increment = false)]
        pub label_id: i32,
        #[sea_orm(belongs_to, from = "book_id", to = "id")]
        pub book: BelongsTo<super::book::Entity>,
        #[sea_orm(belongs_to, from = "label_id", to = "id")]
        pub label: BelongsTo<super::label::Entity>,
    }
});
