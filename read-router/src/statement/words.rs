//! The words and operators that tell a call from everything else before a parenthesis.

use std::sync::LazyLock;

/// Longer than any word in a list.
const LONGEST: usize = 31;

/// An unquoted name in lower case, as PostgreSQL folds it before it looks it up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folded {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Folded {
    /// Folds `word`; one too long to stand in any list becomes the empty word, which is in none.
    pub(super) fn new(word: &[u8]) -> Self {
        let mut bytes = [0; LONGEST];
        let length = match bytes.get_mut(..word.len()) {
            Some(target) => {
                target.copy_from_slice(word);
                target.make_ascii_lowercase();
                word.len()
            }
            None => 0,
        };
        Self { bytes, length }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// A fixed list of words or operators, to look one up in.
pub(super) struct WordSet(LazyLock<Vec<&'static [u8]>>);

impl WordSet {
    /// A set of the words that `lists`, written with blanks between them, hold.
    pub(super) const fn new(lists: fn() -> Vec<&'static [u8]>) -> Self {
        Self(LazyLock::new(lists))
    }

    pub(super) fn contains(&self, word: &[u8]) -> bool {
        self.0.binary_search(&word).is_ok()
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|word| std::str::from_utf8(word).unwrap())
    }
}

/// The words of some lists with blanks between them, sorted.
pub(super) fn sorted(lists: &[&'static str]) -> Vec<&'static [u8]> {
    let mut words: Vec<_> = lists.iter().flat_map(|list| list.split_ascii_whitespace()).map(str::as_bytes).collect();
    words.sort_unstable();
    words
}

/// The words that without quotes no function can be named by: reserved in each of PostgreSQL 13 to 18.
///
/// Those reserved later (`system_user`) are missing on purpose: where they are not, they may name a function.
pub(super) static RESERVED: WordSet = WordSet::new(|| {
    sorted(&[
        "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
         default deferrable desc distinct do else except fetch for foreign from grant group having in initially
         intersect into lateral leading limit not offset on only or order placing primary references returning
         select some symmetric table then to trailing union unique using variadic when where window with",
        VALUES,
    ])
});

/// The reserved words that are a value by themselves, so that no function can follow.
pub(super) static RESERVED_VALUES: WordSet = WordSet::new(|| sorted(&[VALUES]));

const VALUES: &str = "current_catalog current_date current_role current_time current_timestamp current_user end false
    localtime localtimestamp null session_user true user";

/// The words that take a parenthesis by a rule of the grammar, and never name a function without quotes:
/// special forms, and types with a length.
///
/// `treat` is such a word too, and is left out: `treat(x AS nextval)` calls the function with the type's name.
pub(super) static SPECIAL_FORMS: WordSet = WordSet::new(|| {
    sorted(&[
        "between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping int
        integer interval least national nchar normalize nullif numeric overlay position precision real row smallint
        substring time timestamp trim values varchar xmlattributes xmlconcat xmlelement xmlexists xmlforest
        xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable",
    ])
});

/// The words that are not reserved and after which an expression may start.
///
/// After any other word that is not reserved, an infix word stands between two values.
pub(super) static STARTERS: WordSet = WordSet::new(|| {
    sorted(&["between by columns content cross document escape first full groups ilike inner is join left like natural
        next outer overlaps passing path range ref right rows sets similar tablesample value version zone"])
});

/// PostgreSQL's own operators, and those of its best known extensions.
pub(super) static OPERATORS: WordSet = WordSet::new(|| {
    sorted(&[
        "+ - * / % ^ @ |/ ||/ & | # ~ << >> || = < > <> != <= >=",
        // Text and patterns.
        "~* !~ !~* ~~ ~~* !~~ !~~* ^@ ~<~ ~<=~ ~>~ ~>=~",
        // json and jsonb; `?` also asks hstore.
        "-> ->> #> #>> @> <@ ? ?| ?& #- @? @@",
        // Arrays, ranges, network addresses, full text search.
        "&& &< &> -|- <<= >>= !! <-> @@@",
        // Rows compared by their image.
        "*= *<> *< *<= *> *>=",
        // Geometry; PostGIS uses the same signs for its boxes.
        "@-@ ## &<| |&> <<| |>> <^ >^ ?# ?- ?|| ~= ?-| ~== <#> <<->> |=| &&&",
        // pg_trgm.
        "<% %> <<% %>> <<-> <->> <<<-> <->>>",
        // pgvector.
        "<=> <+> <~> <%>",
    ])
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_can_be_found() {
        for set in [&RESERVED, &RESERVED_VALUES, &SPECIAL_FORMS, &STARTERS] {
            for word in set.iter() {
                assert!(set.contains(Folded::new(word.to_ascii_uppercase().as_bytes()).as_bytes()), "{word}");
            }
            assert!(set.0.is_sorted_by(|a, b| a < b));
        }
        assert!(OPERATORS.0.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_word_too_long_is_in_no_list() {
        assert_eq!(Folded::new(b"SeLeCt").as_bytes(), b"select");
        assert_eq!(Folded::new(&[b'a'; LONGEST + 1]).as_bytes(), b"");
        assert!(!RESERVED.contains(b""));
    }
}
