//! What a function's declaration says of it.

use super::super::functions::HARMLESS;

/// As what a function's declaration lets it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// Harmless by its own word.
    Harmless,
    /// As harmless as what its text names.
    ByBody,
    /// As harmless as the functions that it is made of.
    ByParts,
    /// As harmless as the server's own function of the name that its text is.
    AsBuiltIn,
    /// It may do anything.
    Anything,
}

/// Extensions whose `STABLE` functions neither run a text that they are given nor look at what only one server knows.
const STABLE: &[&str] = &[
    "btree_gin",
    "btree_gist",
    "citext",
    "cube",
    "earthdistance",
    "fuzzystrmatch",
    "hstore",
    "intarray",
    "isn",
    "ltree",
    "pg_bigm",
    "pg_trgm",
    "pgcrypto",
    "postgis",
    "postgis_raster",
    "rum",
    "seg",
    "unaccent",
    "uuid-ossp",
    "vector",
];

/// Functions that are `VOLATILE` since they draw from the system's random numbers, read the clock, or both.
const RANDOM: &[(&str, &str)] = &[
    ("pgcrypto", "gen_random_bytes"),
    ("pgcrypto", "gen_random_uuid"),
    ("pgcrypto", "gen_salt"),
    ("pgcrypto", "pgp_pub_encrypt"),
    ("pgcrypto", "pgp_pub_encrypt_bytea"),
    ("pgcrypto", "pgp_sym_encrypt"),
    ("pgcrypto", "pgp_sym_encrypt_bytea"),
    ("uuid-ossp", "uuid_generate_v1"),
    ("uuid-ossp", "uuid_generate_v1mc"),
    ("uuid-ossp", "uuid_generate_v4"),
];

/// What the catalogue says of a function that is not built in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declaration<'a> {
    kind: &'a str,
    volatility: &'a str,
    language: &'a str,
    /// `row.name` may call it.
    pub(super) is_field: bool,
    /// It changes settings, while it runs, that may count.
    sets: bool,
    extension: &'a str,
}

impl<'a> Declaration<'a> {
    /// Reads the words of the query; one that is missing is one that is not known.
    pub(super) fn read(info: &'a str) -> Self {
        let mut words = info.splitn(6, ' ');
        let mut next = || words.next().unwrap_or_default();
        Self {
            kind: next(),
            volatility: next(),
            language: next(),
            is_field: next() != "-",
            sets: next() != "-",
            extension: next(),
        }
    }

    pub(super) fn declared(&self, name: &str) -> Declared {
        if self.kind == "a" {
            return Declared::ByParts;
        }
        let is_stable = matches!(self.volatility, "i" | "s");
        match self.language {
            "sql" | "plpgsql" if is_stable && !self.sets => Declared::ByBody,
            // As citext has for its casts and its input: by names that are none of a function.
            "internal" if is_stable && STABLE.contains(&self.extension) => Declared::Harmless,
            "internal" if is_stable => Declared::AsBuiltIn,
            "c" if self.volatility == "i" && !self.extension.is_empty() => Declared::Harmless,
            "c" if self.volatility == "s" && STABLE.contains(&self.extension) => Declared::Harmless,
            "c" if RANDOM.contains(&(self.extension, name)) => Declared::Harmless,
            _ => Declared::Anything,
        }
    }
}

/// Immutable by name only: they look into the catalogue, or at the server's own libraries.
const NOT_IMMUTABLE: &[&[u8]] = &[b"icu_unicode_version", b"satisfies_hash_partition", b"unicode_version"];

/// Whether all built-in functions of that name are harmless. Those that tell of the server itself begin with `pg_`, and one
/// that is immutable may still fail on a standby, as `pg_walfile_name` does.
pub(super) fn is_built_in_harmless(name: &[u8], all_immutable: bool) -> bool {
    let is_own = || name.starts_with(b"pg_") || NOT_IMMUTABLE.contains(&name);
    HARMLESS.contains(name) || all_immutable && !is_own()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_follows_language_and_volatility() {
        for (info, name, expected) in [
            ("f i sql - -", "f", Declared::ByBody),
            ("f s plpgsql - -", "f", Declared::ByBody),
            ("f v sql - -", "f", Declared::Anything),
            ("f s sql - sets", "f", Declared::Anything),
            ("f i c - -", "f", Declared::Anything),
            ("f i c - - postgis", "f", Declared::Harmless),
            ("f i c - - unheard_of", "f", Declared::Harmless),
            ("f s c - - tablefunc", "crosstab", Declared::Anything),
            ("f s c - - pg_trgm", "similarity_op", Declared::Harmless),
            ("f v c - - pg_trgm", "set_limit", Declared::Anything),
            ("f v c - - pgcrypto", "gen_salt", Declared::Harmless),
            ("f i internal - -", "f", Declared::AsBuiltIn),
            ("f i internal - - citext", "citext", Declared::Harmless),
            ("f s internal - - citext", "citextrecv", Declared::Harmless),
            ("f v internal - - citext", "f", Declared::Anything),
            ("f i internal - - unheard_of", "f", Declared::AsBuiltIn),
            ("f i plperl - -", "f", Declared::Anything),
            ("a i internal - -", "f", Declared::ByParts),
            ("w i internal - -", "f", Declared::AsBuiltIn),
            ("", "f", Declared::Anything),
        ] {
            assert_eq!(Declaration::read(info).declared(name), expected, "{info}");
        }
        assert!(is_built_in_harmless(b"int4pl", true) && is_built_in_harmless(b"pg_typeof", false));
        assert!(!is_built_in_harmless(b"pg_walfile_name", true) && !is_built_in_harmless(b"nextval", false));
        assert!(Declaration::read("f v sql field -").is_field);
        assert!(!Declaration::read("f v sql - -").is_field);
    }
}
